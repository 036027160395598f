"""Decodes the records of each range once for all folds of a partition, for whichever fold reads them first."""

from __future__ import annotations

from collections.abc import Mapping
from weakref import WeakKeyDictionary

from streams_app.delivery.batch import Batch
from streams_app.folding.reading.addressing import Post
from streams_app.folding.reading.reader import EventReader, decode_all
from streams_app.settings import Limits


class Posts:
    """The decoded ranges that some fold of a partition has yet to read."""

    def __init__(self, app_id: str, readers: Mapping[str, EventReader], limits: Limits) -> None:
        """Has decoded nothing yet; ``readers`` are those of all folds of the source, by the names of the folds."""
        self._app_id = app_id
        self._readers = readers
        self._limits = limits
        self._known: WeakKeyDictionary[Batch, Post] = WeakKeyDictionary()

    def of(self, batch: Batch) -> Post:
        """The records of a range, and who reads what of them."""
        known = self._known.get(batch)
        if known is None:
            is_decoded = any(reader.needs_decoded for reader in self._readers.values())
            decoded = decode_all(batch.records, self._limits) if is_decoded else None
            known = self._known[batch] = Post(self._app_id, list(self._readers), batch.records, decoded)
        return known
