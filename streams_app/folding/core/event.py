"""An event as a fold reads it (pure)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from streams_app.folding.core.names import unmasked

PlainEvent = tuple[int, int, bytes, dict[str, Any] | int]
"""The fields of a :class:`FoldEvent` as a plain tuple: it is created for each event, in half the time."""


class FoldEvent(NamedTuple):
    """An event as a fold reads it.

    Attributes:
        offset: Offset in the source partition.
        timestamp_ms: Timestamp of the record; negative if the producer set none.
        group: Member bytes (see :func:`streams_app.codec.member_of`).
        names: Changed name → value, as decoded; if values are not kept, possibly a mask of the names.
    """

    offset: int
    timestamp_ms: int
    group: bytes
    names: dict[str, Any] | int

    @property
    def changed(self) -> Mapping[str, Any]:
        """Return the changed names with their values; the values of a mask are empty."""
        return unmasked(self.names)

    @property
    def closes(self) -> bool:
        """Return whether the event closes its group; see :class:`DetailedEvent`."""
        return False

    @property
    def json(self) -> bytes:
        """Return what is kept of the event: nothing, see :class:`DetailedEvent`."""
        return b""

    @property
    def shorter_ms(self) -> int:
        """Return 0: the quiet period does not depend on the event."""
        return 0


class DetailedEvent(NamedTuple):
    """An event of a fold whose events say more than what changed; see :attr:`streams_app.fold.Fold.reads_details`.

    Attributes:
        offset: As in :class:`FoldEvent`.
        timestamp_ms: As in :class:`FoldEvent`.
        group: As in :class:`FoldEvent`.
        names: As in :class:`FoldEvent`; empty if events are kept.
        closes: Whether the event closes its group, itself included (``close_when``).
        json: What is kept of the event (``keep = "events"``); empty for other folds.
        shorter_ms: By how much its quiet period is shorter than the longest one; 0 unless each event decides it.
    """

    offset: int
    timestamp_ms: int
    group: bytes
    names: dict[str, Any]
    closes: bool = False
    json: bytes = b""
    shorter_ms: int = 0

    @property
    def changed(self) -> Mapping[str, Any]:
        """Return the changed names with their values; the values of a mask are empty."""
        return self.names


Event = PlainEvent | DetailedEvent
"""What a reader yields: plain tuples, unless the fold reads details."""

ScoredEvent = FoldEvent | DetailedEvent


def event_of(fields: Event) -> ScoredEvent:
    """Return an event whose fields have names."""
    return fields if isinstance(fields, DetailedEvent) else FoldEvent(*fields)
