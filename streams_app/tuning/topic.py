"""Reads the source topic of a fold into columns: all partitions, without a consumer group, decoded as in a worker."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

from aiokafka import AIOKafkaConsumer, TopicPartition

from streams_app.delivery.batch import TP, Batch
from streams_app.errors import ConfigurationError
from streams_app.fold import Fold
from streams_app.folding.reading.reader import RangeFaults, decode_all
from streams_app.folding.reading.readers import reader_of
from streams_app.folding.reading.replay_routing import RoutedRange
from streams_app.kafka.admin import admin_client, partition_counts
from streams_app.kafka.log_ends import offsets_at, stable_ends
from streams_app.kafka.log_reader import log_reader, read_ranges
from streams_app.schemas.cache import SchemaCache
from streams_app.schemas.registry import registry_of
from streams_app.settings import Settings
from streams_app.tuning.columns import Columns
from streams_app.tuning.read_counts import ReadCounts, ignore_progress
from streams_app.tuning.timestamps import timestamp_remarks

CHECK_EVERY_BATCHES: Final = 20
"""Number of batches between two progress reports."""


async def read_topic(
    settings: Settings,
    fold: Fold,
    columns: Columns,
    tally: ReadCounts,
    *,
    from_ms: int | None = None,
    to_ms: int | None = None,
    on_progress: Callable[[ReadCounts], None] = ignore_progress,
) -> None:
    """Read the source topic of a fold into columns, up to the current ends of its partitions.

    The range of a partition begins with its first record that is not older than ``from_ms``, and ends before the first one that is
    not older than ``to_ms``. All records between them count, whatever their timestamps.

    Args:
        on_progress: Called with the counts every :data:`CHECK_EVERY_BATCHES` batches, and at the end.

    Raises:
        ConfigurationError: The topic does not exist.
        TryAgainError: Kafka or the schema registry does not respond.
    """
    async with admin_client(settings.kafka) as client:
        counts = await partition_counts(client, [fold.source])
    if fold.source not in counts:
        raise ConfigurationError([f"the source {fold.source!r} of fold {fold.name!r} does not exist: there is nothing to read"])
    async with log_reader(settings.kafka, fold.source, range(counts[fold.source])) as consumer:
        ranges = await _ranges(consumer, from_ms)
        tally.total = sum(end - begin for begin, end in ranges.values() if begin < end)
        registry = registry_of(settings, [fold.format])
        parts = {tp: _PartitionRead(settings, fold, columns, tally, from_ms, to_ms, registry) for tp in ranges}
        batches = 0
        async for batch in read_ranges(consumer, ranges):
            batches += 1
            if registry is not None:
                await registry.prepare(parts[batch.tp].reader.framed_parts(batch.records))
            _, end = ranges[batch.tp]
            if parts[batch.tp].take(batch):
                consumer.pause(TopicPartition(*batch.tp))
                tally.total -= end - min(batch.end, end)  # beyond to_ms
            tally.done += min(batch.end, end) - batch.begin
            if batches % CHECK_EVERY_BATCHES == 0:
                on_progress(tally)
    tally.remarks += timestamp_remarks(columns, tally, "events")
    on_progress(tally)


async def _ranges(consumer: AIOKafkaConsumer, from_ms: int | None) -> dict[TP, tuple[int, int]]:
    """Return the offsets to read of each partition: the first offset, and the end, which is not included."""
    tps = sorted(consumer.assignment())
    ends = await stable_ends(consumer, tps)
    begins = await consumer.beginning_offsets(tps)
    if from_ms is not None:
        begins = await offsets_at(consumer, ends, from_ms)
    return {TP(*tp): (begins[tp], ends[tp]) for tp in tps}


class _PartitionRead:
    """Reads the records of one partition that lie in the time range, and adds their events to columns."""

    def __init__(
        self,
        settings: Settings,
        fold: Fold,
        columns: Columns,
        tally: ReadCounts,
        from_ms: int | None,
        to_ms: int | None,
        schemas: SchemaCache | None,
    ) -> None:
        self._app_id = settings.app_id
        self._limits = settings.limits
        self._folds = [one.name for one in settings.folds if one.source == fold.source]
        self._fold = fold
        self.reader = reader_of(fold, settings.limits, schemas)
        self._columns = columns
        self._tally = tally
        self._from_ms = from_ms
        self._to_ms = to_ms

    def take(self, batch: Batch) -> bool:
        """Add the next records to the columns; return whether the time range ends within them."""
        records, is_over = batch.records, False
        if self._from_ms is not None:
            begin = next((i for i, record in enumerate(records) if record.timestamp >= self._from_ms), len(records))
            if begin < len(records):
                self._from_ms = None
            records = records[begin:]
        if self._to_ms is not None:
            end = next((i for i, record in enumerate(records) if record.timestamp >= self._to_ms), len(records))
            is_over = end < len(records)
            records = records[:end]
        if records:
            self._add(batch.tp, records)
        return is_over

    def _add(self, tp: TP, records: Sequence[Any]) -> None:
        decoded = decode_all(records, self._limits) if self.reader.needs_decoded and not self.reader.reads_frames else None
        faults = RangeFaults()
        mine, values = RoutedRange(self._app_id, self._folds, records, decoded).records_for(self._fold.name, faults)
        self._columns.add(tp.partition, self.reader.events(mine, values, faults))
        self._tally.read += len(records)
        if faults.rejected:
            self._tally.reject_all(faults.rejected, lambda offset: f"{tp.topic}:{tp.partition}:{offset}")
