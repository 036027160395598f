"""Events as a fold reads them: group, time and changed names (pure)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from streams_app.folding.core.names import unmasked

PlainEvent = tuple[int, int, bytes, dict[str, Any] | int]
"""The fields of a :class:`FoldEvent` as a plain tuple. Readers yield plain tuples, which are created in half the time."""


class FoldEvent(NamedTuple):
    """An event with its group, time and changed names.

    Attributes:
        timestamp_ms: Timestamp of the record; negative if the record has none.
        group: Group key as bytes, see :func:`streams_app.codec.member_of`.
        names: Decoded values by changed name. If the fold keeps no values, the values have no meaning, and ``names`` may be a bit
            mask of the changed names, see :mod:`streams_app.folding.core.names`.
    """

    offset: int
    timestamp_ms: int
    group: bytes
    names: dict[str, Any] | int

    @property
    def changed(self) -> Mapping[str, Any]:
        """Return the changed names with their values, which are empty if ``names`` is a mask."""
        return unmasked(self.names)

    @property
    def closes(self) -> bool:
        return False

    @property
    def json(self) -> bytes:
        return b""

    @property
    def shorter_ms(self) -> int:
        return 0

    @property
    def id(self) -> bytes:
        return b""


class DetailedEvent(NamedTuple):
    """An event that may close its group, set a quiet period or be kept as JSON; see :attr:`streams_app.fold.Fold.reads_details`.

    Attributes:
        names: Decoded values by changed name; empty if the fold keeps whole events.
        closes: Whether the event is the last one of its group (``close_when``).
        json: The event, or its selected fields, as JSON (``keep = "events"``); empty for other folds.
        shorter_ms: By how many ms the quiet period after this event is shorter than the fold's longest one; 0 if events set none.
        id: Digest of the id by which the fold ignores duplicates (``dedupe_by``); empty for other folds.
    """

    offset: int
    timestamp_ms: int
    group: bytes
    names: dict[str, Any]
    closes: bool = False
    json: bytes = b""
    shorter_ms: int = 0
    id: bytes = b""

    @property
    def changed(self) -> Mapping[str, Any]:
        return self.names


FoldInput = PlainEvent | DetailedEvent
"""An event as a reader yields it: a :class:`DetailedEvent` if :attr:`.Fold.reads_details` is true, otherwise a plain tuple."""

ScoredEvent = FoldEvent | DetailedEvent


def event_of(fields: FoldInput) -> ScoredEvent:
    """Convert an event that is a plain tuple to a :class:`FoldEvent`; return a :class:`DetailedEvent` unchanged."""
    return fields if isinstance(fields, DetailedEvent) else FoldEvent(*fields)


def without_values(event: ScoredEvent) -> ScoredEvent:
    """Return an event with only the names that changed: if a fold keeps no values, JSON may be unable to represent them."""
    return event if isinstance(event.names, int) else event._replace(names=dict.fromkeys(event.names))
