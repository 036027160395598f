"""Reads the output topics of a read store's folds from the beginning, without a consumer group or commits."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, aclosing, asynccontextmanager
from dataclasses import dataclass, replace
from typing import Self

from aiokafka import AIOKafkaConsumer

from streams_app.delivery.batch import TP, Batch
from streams_app.errors import ConfigurationError
from streams_app.kafka.admin import admin_client, partition_counts
from streams_app.kafka.log_ends import stable_ends
from streams_app.kafka.log_reader import log_reader, read_ranges
from streams_app.read_store.core.merge import BEFORE_RESET, CellChange, newest
from streams_app.read_store.core.record import ExpectedRecords, RejectedRecord, parse
from streams_app.read_store.sync.store_sync import parts_of
from streams_app.settings import ReadStoreSettings, Settings


@dataclass(frozen=True, slots=True)
class AnnouncedChanges:
    """The changes of cells that consecutive folded records of one partition announce.

    Attributes:
        changes: The newest change of each cell.
        begin: First offset that these records cover.
        end: Offset after the last one that they cover, including offsets without a record.
        records: Number of records, without skipped records from before a reset.
        rejected: Number of records that are not folded records.
    """

    tp: TP
    changes: list[CellChange]
    begin: int
    end: int
    records: int
    rejected: int


class FoldedTopics:
    """Reads the output topics of a read store's folds; created by :meth:`opened`."""

    def __init__(self, expected: Mapping[str, ExpectedRecords], readers: Sequence[AIOKafkaConsumer]) -> None:
        self._expected = expected
        self._readers = readers

    @classmethod
    @asynccontextmanager
    async def opened(cls, settings: Settings, declared: ReadStoreSettings) -> AsyncIterator[Self]:
        """Return a reader that is connected to Kafka, for an ``async with`` block."""
        folds = [settings.fold(name) for name in declared.folds]
        is_carried = declared.source == "carried"
        expected = {fold.output: ExpectedRecords(fold.name, fold.changed_field, fold.group_fields, is_carried) for fold in folds}
        async with admin_client(settings.kafka) as client:
            counts = await partition_counts(client, list(expected))
        if missing := expected.keys() - counts.keys():
            raise ConfigurationError([f"the topic {topic!r} does not exist; run `streams-app topics create`" for topic in missing])
        async with AsyncExitStack() as stack:
            readers = [
                await stack.enter_async_context(log_reader(settings.kafka, topic, range(counts[topic]))) for topic in expected
            ]
            yield cls(expected, readers)

    async def log_bounds(self) -> dict[TP, tuple[int, int]]:
        """Return the current first offset and last stable offset of each partition."""
        found: dict[TP, tuple[int, int]] = {}
        for reader in self._readers:
            tps = sorted(reader.assignment())
            ends, begins = await stable_ends(reader, tps), await reader.beginning_offsets(tps)
            found |= {TP(*tp): (begins[tp], ends[tp]) for tp in tps}
        return found

    async def read(self, ranges: Mapping[TP, tuple[int, int]], former: Mapping[TP, int]) -> AsyncGenerator[AnnouncedChanges, None]:
        """Read ranges of offsets, and yield the cell changes of their records.

        The result comes in parts, each with at most as many records as a worker writes into the store at once. The parts of a
        partition are yielded in the order of their offsets.

        Args:
            ranges: First offset to read in each partition, and the offset after the last one.
            former: For each partition, the offset below which records are older than the last reset of their fold. If records
                carry the values, these older records are skipped. Otherwise their changes get the version ``BEFORE_RESET``,
                which is lower than that of every record folded since the reset.
        """
        for reader in self._readers:
            mine = {TP(*tp): ranges[TP(*tp)] for tp in reader.assignment() if TP(*tp) in ranges}
            reader.resume(*reader.assignment())  # an earlier read paused them
            async for batch in read_ranges(reader, mine):
                end = min(batch.end, mine[batch.tp][1])
                for part in _parts(batch, end):
                    yield self._announced(part, former.get(part.tp, 0))

    async def has_records(self, ranges: Mapping[TP, tuple[int, int]]) -> bool:
        """Return whether any range contains a record. The last offsets of a log may be transaction markers instead of records."""
        async with aclosing(self.read(ranges, {})) as parts:
            async for part in parts:
                if part.records:
                    return True
        return False

    def _announced(self, part: Batch, former_end: int) -> AnnouncedChanges:
        expected = self._expected[part.tp.topic]
        records = [one for one in part.records if one.offset >= former_end] if expected.carries_values else part.records
        changes: list[CellChange] = []
        rejected = 0
        for record in records:
            parsed = parse(record.key, record.value, expected)
            if isinstance(parsed, RejectedRecord):
                rejected += 1
            elif record.offset < former_end:
                changes += [replace(change, version=BEFORE_RESET) for change in parsed]
            else:
                changes += parsed
        return AnnouncedChanges(part.tp, newest(changes), part.begin, part.end, len(records), rejected)


def _parts(batch: Batch, end: int) -> Iterator[Batch]:
    """Split a batch into parts of at most as many records as a worker writes at once; the last one ends at the offset ``end``."""
    begin, taken = batch.begin, list(parts_of(batch.records)) or [[]]
    for at, records in enumerate(taken):
        until = taken[at + 1][0].offset if at + 1 < len(taken) else end
        yield Batch(batch.tp, records, begin, until, stable_offset=None, fetched_at_ms=None, seek_number=0)
        begin = until
