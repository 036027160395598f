"""Reads the ranges of a partition for each of its folds; the records of a range are decoded once for all of them."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Mapping
from operator import attrgetter
from typing import NamedTuple
from weakref import WeakKeyDictionary

from streams_app.delivery.batch import Batch
from streams_app.folding.core.chunks import Chunk
from streams_app.folding.core.event import FoldInput
from streams_app.folding.reading.reader import EventReader, RangeFaults, decode_all
from streams_app.folding.reading.replay_routing import RoutedRange
from streams_app.schemas.waiting import PatientRegistry
from streams_app.settings import Limits

_OFFSET = attrgetter("offset")


class ReadRange(NamedTuple):
    """The events of a range of source offsets, as one fold reads them.

    Attributes:
        events: Events in offset order; iterate over them only once.
        faults: Rejected events, and the number of events whose record key is not their group key; complete once ``events`` was
            iterated over.
        reread: Function that reads the events of a chunk again. The result may contain events outside the chunk.
    """

    events: Iterable[FoldInput]
    faults: RangeFaults
    reread: Callable[[Chunk], Iterable[FoldInput]]


class DecodedBatchCache:
    """Caches each decoded range of a partition until all folds of the source have read it."""

    def __init__(
        self, app_id: str, readers: Mapping[str, EventReader], limits: Limits, schemas: PatientRegistry | None = None
    ) -> None:
        self._schemas = schemas
        self._app_id = app_id
        self._readers = readers
        self._limits = limits
        self._routed: WeakKeyDictionary[Batch, RoutedRange] = WeakKeyDictionary()

    async def prepare(self, batch: Batch, fold: str) -> None:
        """Fetch the schemas that a fold needs to decode a range; wait until the schema registry answers.

        Call :meth:`read` for the range before the next ``await``, after which the schemas may have been evicted.
        """
        if self._schemas is not None and self._readers[fold].reads_frames:
            await self._schemas.prepare(self._readers[fold].framed_parts(batch.records), (batch.tp, fold))

    def read(self, batch: Batch, fold: str) -> ReadRange:
        """Return the events of a range as a fold reads them, after :meth:`prepare`."""
        reader, faults = self._readers[fold], RangeFaults()
        records, decoded = self._of(batch).records_for(fold, faults)
        events = reader.events(records, decoded, faults)
        if reader.needs_decoded:
            # Read only once: functions of the user may return a different result for the same event.
            listed = list(events)
            return ReadRange(listed, faults, lambda _: listed)

        def reread(chunk: Chunk) -> Iterable[FoldInput]:
            begin, end = (bisect_right(records, offset, key=_OFFSET) for offset in (chunk.above, chunk.to))
            return reader.events(records[begin:end], decoded and decoded[begin:end], RangeFaults())

        return ReadRange(events, faults, reread)

    def _of(self, batch: Batch) -> RoutedRange:
        routed = self._routed.get(batch)
        if routed is None:
            is_decoded = any(reader.needs_decoded and not reader.reads_frames for reader in self._readers.values())
            decoded = decode_all(batch.records, self._limits) if is_decoded else None
            routed = self._routed[batch] = RoutedRange(self._app_id, list(self._readers), batch.records, decoded)
        return routed
