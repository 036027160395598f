"""The field ``fold`` of a folded record, for subscribers (pure)."""

from __future__ import annotations

import msgspec


class FoldInfo(msgspec.Struct, frozen=True):
    """The field ``fold`` of a folded record."""

    id: str
    """Id of the record, the same in each re-send."""
    name: str
    reason: str
    """Why the group was closed; ``docs/semantics.md`` lists the reasons."""
    events: int
    first_event_ms: int
    last_event_ms: int
    version: int
    """Orders the records of one group."""
