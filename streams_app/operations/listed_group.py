"""An open group as lists and explanations show it (pure)."""

from __future__ import annotations

from typing import Any

import msgspec


class ListedGroup(msgspec.Struct, frozen=True):
    """An open group, for display and as JSON.

    Attributes:
        group: Record key of its records, as text.
        key: The same with its JSON type, so that ``1`` and ``"1"`` differ.
        names: Number of changed names; 0 if the fold keeps whole events.
        bytes: Size of the stored events; 0 if the fold does not keep whole events.
        first_event_ms: Earliest record time.
        last_event_ms: Latest record time.
        quiet_in_ms: Time until the quiet period ends; 0 or less: the group is due.
        hold_in_ms: Time until ``max_hold`` ends; 0 or less: the group is due.
        duplicates: Number of events that were ignored, because the group had their id (``dedupe_by``).
        quiet_period_ms: The quiet period after its last event.
    """

    fold: str
    source: str
    partition: int
    group: str
    key: Any
    events: int
    names: int
    bytes: int
    first_offset: int
    last_offset: int
    first_event_ms: int
    last_event_ms: int
    quiet_in_ms: int
    hold_in_ms: int
    duplicates: int = 0
    quiet_period_ms: int = 0
