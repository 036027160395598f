"""Type of the field ``fold`` of a folded record (pure)."""

from __future__ import annotations

import msgspec


class FoldInfo(msgspec.Struct, frozen=True):
    """Content of the field ``fold`` of a folded record: its id and version, the fold, and facts about the group when it closed."""

    id: str
    """Fold id of the record, which is the same whenever the record is sent."""
    name: str
    reason: str
    """Why the group was closed; ``docs/reference/folds.md`` lists the reasons."""
    events: int
    first_event_ms: int
    last_event_ms: int
    version: int
    """Increases with each record of a group."""
