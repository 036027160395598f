"""A record of a fold that was never folded: for tests of whoever takes it (pure)."""

from __future__ import annotations

from typing import Any

import msgspec

from streams_app.events.codec import encode
from streams_app.events.declaration import Event
from streams_app.events.folded import FoldInfo
from streams_app.folding.core.record import FoldedRecord
from streams_app.subscribers.declaration import Records


def record_of(source: Records[Any], data: Any, number: int, now_ms: int, fold_id: str | None, group: str | None) -> FoldedRecord:
    """A record as if it had been folded of one event.

    Args:
        source: Whose record.
        data: Its payload.
        number: Orders it among those of the fold.
        now_ms: When its event was.
        fold_id: None: made of the number.
        group: Its key; None: it is empty.

    Raises:
        BadEventError: The payload cannot be written as JSON.
    """
    told = FoldInfo(
        fold_id or f"{source.fold}:{source.fold}.source:0:{number}-{number}", source.fold, "quiet", 1, now_ms, now_ms, number
    )
    _, value = encode(Event("test.record", source.payload, description="A record.", keyed_by=None), data, None, None)
    separator = b"" if value == b"{}" else b","
    return FoldedRecord(
        told.id.encode(), (group or "").encode(), b'%b%b"fold":%b}' % (value[:-1], separator, msgspec.json.encode(told))
    )
