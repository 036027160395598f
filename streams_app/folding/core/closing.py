"""The bounds that close a group (pure): quiet period, maximum hold, content. ``docs/explained/internals.md`` describes adding one.

Redis applies the same rules: ``shared/closing.lua`` contains those for time, ``fold.lua`` contains those for content, and
``seal.lua`` finds the open groups that are due. :mod:`streams_app.folding.core.model` applies all of them in memory. The *score* of
an event is its time by the clock of its shard, see :mod:`streams_app.folding.core.shard_clock`.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final, NamedTuple

from streams_app.fold import Fold
from streams_app.folding.core.aggregates import Aggregates

FEW_NAMES: Final = 1_000
FEW_BYTES: Final = 100_000
"""A bound may close a busy group several times within one fetch if ``max_changed`` is below ``FEW_NAMES``, or ``max_bytes`` below
this."""


class ContentBound(NamedTuple):
    """A bound on the number of events, of changed names or of bytes in a group.

    The key of a bound in ``CONTENT_BOUNDS`` is also the name of the fold setting, of the field of :class:`Bounds`, of the argument
    of ``fold.lua``, and of the reason in records.

    Attributes:
        counts: What is counted: ``event``, ``name`` or ``byte``. ``streams-app groups list`` shows the count in the column
            ``events``, ``names`` or ``bytes``.
        is_before: Whether the group closes before the event that would exceed the bound. If False, the group closes after the event
            that reaches the bound, and still contains this event.
    """

    counts: str
    is_before: bool


CONTENT_BOUNDS: Final = {
    "max_events": ContentBound("event", is_before=False),
    "max_changed": ContentBound("name", is_before=True),
    "max_bytes": ContentBound("byte", is_before=True),
}

CLOSED: Final = "closed"
"""Reason of a group that was closed by one of its events, see ``close_when``."""

LEADING: Final = "leading"
"""Reason of a record that has only the first event of a group, see :attr:`streams_app.fold.Fold.leading`; the group stays open."""

REASONS: Final = ("quiet", "max_hold", *CONTENT_BOUNDS, CLOSED, LEADING, "flush")
"""All values of ``reason`` in records: why a group was closed or a record was emitted."""

REASONS_BEFORE_AN_EVENT: Final = {name for name, bound in CONTENT_BOUNDS.items() if bound.is_before}


@dataclass(frozen=True, slots=True)
class Bounds:
    """The bounds at which the groups of a fold close. Times are in ms.

    Attributes:
        quiet_ms: Quiet period; if each event sets its own, the longest one that an event may set.
        max_events: Maximum number of events of one group; 0 if there is no such bound.
        max_bytes: Maximum size of the events of one group, in bytes; 0 if the fold does not keep events.
        leading: Whether an event that opens a group is also emitted at once, as a record of its own.
        aggregates: Aggregates of the changed names; None if values are not aggregated.
        dedupes: Whether events have ids, and a group ignores an event whose id it already has (``dedupe_by``).
        sessions: Whether the backlog policy is ``sessions``: if the score of an event is later than that of its open group's newest
            event by more than the quiet period, the group closes, and the event opens a new one. With ``merge``, silence closes
            groups only once the worker has caught up.
        reads_details: Whether the fold needs more of each event than its group and changed names, see
            :attr:`streams_app.fold.Fold.reads_details`.
    """

    quiet_ms: int
    hold_ms: int
    max_events: int = 0
    max_changed: int = 10_000
    max_bytes: int = 0
    is_quiet_by_event: bool = False
    leading: bool = False
    aggregates: Aggregates | None = None
    sessions: bool = False
    reads_details: bool = False
    dedupes: bool = False

    @classmethod
    def of(cls, fold: Fold) -> Bounds:
        contents = {name: getattr(fold, name) for name in CONTENT_BOUNDS}
        contents["max_bytes"] *= fold.keeps_events
        return cls(
            fold.quiet_period_ms, fold.max_hold_ms, sessions=fold.backlog == "sessions", reads_details=fold.reads_details,
            is_quiet_by_event=not isinstance(fold.quiet_period, timedelta), leading=fold.leading,
            aggregates=None if fold.aggregates is None else Aggregates.of(fold.aggregates),
            dedupes=fold.dedupe_by is not None, **contents,
        )  # fmt: skip

    def arguments(self) -> dict[str, Any]:
        contents = {name: getattr(self, name) for name in CONTENT_BOUNDS}
        rules = {"aggregates": self.aggregates is not None, "leading": self.leading, "dedupe": self.dedupes}
        return {"quiet_ms": self.session_gap_ms, "hold_ms": self.hold_ms, **contents, **rules}

    @property
    def session_gap_ms(self) -> int | None:
        """Return the quiet period, in ms, if an event after a longer silence closes its open group; None with ``merge``."""
        return self.quiet_ms if self.sessions else None

    # ---- contents

    def exceeded_by(self, names: int, kept: int = 0) -> str | None:
        """Return the bound that closes a group before its next event, which ``names`` and ``kept`` (bytes) include; or None."""
        if self.max_bytes:
            return "max_bytes" if kept > self.max_bytes else None
        return "max_changed" if names > self.max_changed else None

    def reached_by(self, events: int, *, closes: bool = False) -> str | None:
        """Return the reason why a group closes right after an event, which ``events`` includes; None if it stays open."""
        return CLOSED if closes else "max_events" if self.max_events and events >= self.max_events else None

    def events_left(self, events: int) -> int | None:
        """Return how many events a group takes until ``max_events`` closes it: at least one, also after the bound was lowered."""
        return max(self.max_events - events, 1) if self.max_events else None

    def keeps_open(self, lasted_ms: int, events: int, names: int, kept: int = 0) -> bool:
        """Return whether neither ``max_hold`` nor a bound on its content closes a group.

        Args:
            lasted_ms: Score of the last event minus score of the first one.
            kept: Size of the kept events, in bytes.
        """
        # For each run: exceeded_by and reached_by, inlined.
        if lasted_ms >= self.hold_ms or (self.max_events and events >= self.max_events):
            return False
        return kept <= self.max_bytes if self.max_bytes else names <= self.max_changed

    @property
    def may_close_often(self) -> bool:
        """Whether the bounds on the content of groups are so low that a busy group may close several times within one fetch."""
        return self.max_events > 0 or (self.max_bytes < FEW_BYTES if self.max_bytes else self.max_changed < FEW_NAMES)

    # ---- time

    def closes_before(self, opened_ms: int, score_ms: int, next_ms: int) -> bool:
        """Return whether a bound on time closes a group before the next event is added.

        This is ``max_hold``, and with the backlog policy ``sessions`` also the quiet period. An event exactly one quiet period
        after the last one still belongs to the group.

        Args:
            score_ms: Score of the group's last event. If that event set a shorter quiet period than the fold's longest one, the
                caller passes the score minus the difference (``shorter_ms``).
        """
        return next_ms >= opened_ms + self.hold_ms or (self.sessions and next_ms > score_ms + self.quiet_ms)

    def closed_by(self, opened_ms: int, silent_from_ms: int, *, quiet: bool = True) -> tuple[str, int]:
        """Return which bound on time closes a group first, ``quiet`` or ``max_hold``, and the time at which it does, in ms.

        Args:
            silent_from_ms: Time from which the group's silence counts. If its last event set a shorter quiet period than the
                fold's longest one, the caller passes this time minus the difference (``shorter_ms``).
            quiet: Whether silence closes groups; False while a backlog is read with the backlog policy ``merge``.
        """
        hold_due_ms, quiet_due_ms = opened_ms + self.hold_ms, silent_from_ms + self.quiet_ms
        return ("max_hold", hold_due_ms) if not quiet or hold_due_ms <= quiet_due_ms else ("quiet", quiet_due_ms)
