"""Folds a shard in memory, one event at a time, with the same decisions as the Lua scripts (pure).

The test kit uses it, workers split runs with it, and tests on a real server compare the scripts with it. Its state does not survive
a crash.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from streams_app.folding.core.aggregates import Aggregates, Values, combined, stored_value
from streams_app.folding.core.closing import LEADING, Bounds
from streams_app.folding.core.event import ScoredEvent
from streams_app.folding.core.kept_events import packed_events, size_of_event
from streams_app.folding.core.record import SealedGroup


@dataclass(slots=True)
class OpenGroup:
    """A group that is not sealed yet. Offsets are those of the source; times and scores are in ms.

    With ``leading``, it has no events until the second one arrives, because the first one was emitted at once.

    Attributes:
        silent_from_ms: Time from which silence after the last event counts.
        names: Stored values by changed name; if events are kept, packed events by the first offset of their run.
        bytes_kept: Size of the kept events, in bytes.
        shorter_ms: By how much the quiet period after the last event is shorter than the fold's longest one; 0 if events set none.
        ids: With ``dedupe_by``, the offset of the event of each id.
        duplicates: Number of ignored events.
    """

    first_offset: int
    opened_ms: int
    last_offset: int
    score_ms: int
    silent_from_ms: int
    events: int = 0
    low_ms: int = 2**62
    high_ms: int = -1
    names: dict[str, bytes] = field(default_factory=dict)
    bytes_kept: int = 0
    shorter_ms: int = 0
    ids: dict[bytes, int] = field(default_factory=dict)
    duplicates: int = 0

    @property
    def quiet_from_ms(self) -> int:
        """Return the time, in ms, from which the longest quiet period of the fold has to pass until silence closes the group.

        Usually this is the start of the silence. If the last event has set a shorter quiet period, it is earlier by the difference,
        so that one period serves all groups.
        """
        return self.silent_from_ms - self.shorter_ms


@dataclass(slots=True)
class MemoryShard:
    """The open groups of one (fold, topic, partition), folded and sealed in memory instead of Redis."""

    bounds: Bounds
    partitions: int = 1
    open: dict[bytes, OpenGroup] = field(default_factory=dict)

    def fold(self, event: ScoredEvent, score_ms: int, silent_from_ms: int = 0) -> list[SealedGroup]:
        """Add one event to its group; close the group before or after it if a bound requires that.

        If the group is still open by time, and has the id of the event already, the event changes nothing but a counter.

        Args:
            event: An event beyond all offsets that were folded before.
            score_ms: Score of the event, at least that of the event before.
            silent_from_ms: Earliest time at which silence can begin, see :meth:`.ShardClock.silent_from_ms`: silence after the
                event begins at its score, or at this time if that is later.

        Returns:
            The entries for the outbox, in order. Each time that a bound closed the group of the event, there is an entry for the
            closed group. If the event opened the group and the fold is declared with ``leading``, there is also an entry for this
            event alone, and the group stays open. The list is empty if the group only became or stayed open.
        """
        bounds, group, sealed = self.bounds, event.group, []
        stored = self.open.get(group)
        last_ms = stored.score_ms - stored.shorter_ms if stored else 0
        if stored is not None and self.is_duplicate(event, score_ms):
            stored.duplicates += 1
            return []
        if stored is not None and bounds.closes_before(stored.opened_ms, last_ms, score_ms):
            sealed += self._close(group, *bounds.closed_by(stored.opened_ms, last_ms, quiet=bounds.sessions))
        elif stored is not None:
            names = len(stored.names) + sum(name not in stored.names for name in event.changed)
            kept = stored.bytes_kept + size_of_event(event.json)
            if (reason := bounds.exceeded_by(names, kept)) is not None:
                sealed += self._close(group, reason, score_ms)
        stored = self.open.get(group)
        is_early = stored is None and bounds.leading and not event.closes
        if stored is None or not stored.events:
            silent_from_ms = max(silent_from_ms, stored.silent_from_ms if stored else 0)
            stored = self.open[group] = OpenGroup(event.offset, score_ms, event.offset, score_ms, score_ms)
        stamp_ms = event.timestamp_ms if event.timestamp_ms >= 0 else score_ms
        stored.last_offset, stored.score_ms = event.offset, score_ms
        stored.silent_from_ms = max(stored.silent_from_ms, score_ms, silent_from_ms)
        stored.events += 1
        stored.shorter_ms = event.shorter_ms
        stored.low_ms, stored.high_ms = min(stored.low_ms, stamp_ms), max(stored.high_ms, stamp_ms)
        _add(stored, event, bounds.aggregates)
        if is_early:
            sealed += self._close(group, LEADING, score_ms)
            self.open[group] = replace(stored, events=0, names={}, bytes_kept=0)
        elif (reason := bounds.reached_by(stored.events, closes=event.closes)) is not None:
            sealed += self._close(group, reason, score_ms)
        return sealed

    def is_duplicate(self, event: ScoredEvent, score_ms: int) -> bool:
        """Return whether the group of an event has the id of the event, and is still open by time at the score of the event.

        An event without an id is no duplicate. The offsets are compared because a script that failed half-way may have stored the
        id of this event, but not the event.
        """
        stored = self.open.get(event.group)
        if stored is None or stored.ids.get(event.id, event.offset) == event.offset:
            return False
        return not self.bounds.closes_before(stored.opened_ms, stored.score_ms - stored.shorter_ms, score_ms)

    def seal(self, clock_ms: int, *, quiet: bool = True, everything: bool = False, late_ms: int = 0) -> list[SealedGroup]:
        """Close the due groups; return those that have events, in the order of first offsets.

        Args:
            quiet: Whether silence closes groups; False while a backlog is read with the backlog policy ``merge``.
            everything: Whether to close all groups, with the reason ``flush``.
            late_ms: By how many ms record time lags behind the clock. ``max_hold`` is extended by this time, because the time at
                which a group was opened is record time.
        """
        sealed = []
        for group, stored in sorted(self.open.items(), key=lambda item: item[1].first_offset):
            exceeds_hold = clock_ms >= stored.opened_ms + self.bounds.hold_ms + late_ms
            if everything:
                sealed += self._close(group, "flush", clock_ms)
            elif exceeds_hold or (quiet and clock_ms > stored.quiet_from_ms + self.bounds.quiet_ms):
                closed = self.bounds.closed_by(stored.opened_ms + late_ms, stored.quiet_from_ms, quiet=quiet)
                sealed += self._close(group, *closed)
        return sealed

    def drop(self, group: bytes, first_offset: int) -> OpenGroup | None:
        """Remove an open group without a record; return None if it is not open, or its first event has another offset."""
        stored = self.open.get(group)
        return self.open.pop(group) if stored is not None and stored.first_offset == first_offset else None

    def next_due_ms(self) -> int | None:
        """Return the earliest time, in ms, at which silence or ``max_hold`` makes a group due; None if no group is open."""
        bounds = self.bounds
        times = (
            min(stored.opened_ms + bounds.hold_ms, stored.quiet_from_ms + bounds.quiet_ms + 1) for stored in self.open.values()
        )
        return min(times, default=None)

    def _close(self, group: bytes, reason: str, due_ms: int) -> list[SealedGroup]:
        stored = self.open.pop(group)
        if not stored.events:
            return []  # no event since its early record
        numbers = group, stored.first_offset, stored.last_offset, stored.events, stored.low_ms, stored.high_ms
        return [SealedGroup(*numbers, reason, due_ms, self.partitions, stored.names)]


def _add(stored: OpenGroup, event: ScoredEvent, aggregates: Aggregates | None) -> None:
    names = stored.names
    if event.id:
        stored.ids[event.id] = event.offset
    if event.json:
        names[str(event.offset)] = packed_events([event], event.offset)
        stored.bytes_kept += size_of_event(event.json)
    elif isinstance(event.names, int):
        names |= event.changed
    else:
        changed = event.changed if aggregates is None else aggregates.begun(event.changed)
        for name, value in changed.items():
            new = stored_value(value)
            names[name] = combined(names[name], new) if type(value) is Values and name in names else new
