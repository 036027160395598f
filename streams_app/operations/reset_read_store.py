"""Resets the versions of a fold's values in a read store: values stay, and everything that is folded afterwards is newer.

Versions come from source offsets. If a source topic was deleted and created again, its offsets start at 0, and the version guard
would reject everything folded from it as stale. To prevent this, the versions of the fold's values are reset, while the values
stay. Before that, the store applies the remaining records of the output topic: if applied later, their high versions would block
new values again. The end offsets of the output topic at the reset are stored as well, so that ``verify`` and ``rebuild`` recognize
records that were folded before the reset: what these contain may not be what the store should contain now.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Final, NamedTuple

from aiokafka import AIOKafkaConsumer, TopicPartition

from streams_app.clock import SystemClock
from streams_app.delivery.batch import TP
from streams_app.formatting import counted
from streams_app.health.metrics import Metrics
from streams_app.kafka.log_ends import stable_ends
from streams_app.operations.retrying import with_retries
from streams_app.read_store.core.store import CheckpointStep, ReadStore, check_formats, former_end_of, reset_of
from streams_app.read_store.registry import open_store
from streams_app.read_store.sync.store_sync import StoreSync, parts_of
from streams_app.settings import ReadStoreSettings, Settings

POLL_MS: Final = 500


@dataclass(frozen=True, slots=True)
class ResetEffect:
    """What the reset of a fold would do in one read store.

    Attributes:
        values: Number of values of the fold whose versions would be reset.
        records: Number of offsets in the output topic of the fold that the store has not applied yet.
    """

    store: str
    values: int = 0
    records: int = 0

    def lines(self) -> list[str]:
        """Describe for an operator what the reset would do, one sentence per step."""
        found, store = [], f"read store {self.store}"
        if self.records:
            found.append(f"{counted(self.records, 'record')} of its output topic would first be written to {store}")
        if self.values:
            found.append(f"{counted(self.values, 'value')} in {store} would be kept until new records replace them")
        return found


async def reset_effect(settings: Settings, declared: ReadStoreSettings, fold: str, consumer: AIOKafkaConsumer) -> ResetEffect:
    """Return how many values and records a reset of a fold would affect in a read store. Nothing is changed.

    Args:
        fold: Name of the fold, declared or not.
        consumer: Consumer that subscribes to no topic; it is assigned the partitions of the output topic.
    """
    store = open_store(declared)
    try:
        values = await store.count_versioned(fold)
        unread = {} if values is None else await _unread(declared, await _log_bounds_of(settings, declared, fold, consumer), store)
        return ResetEffect(declared.name, values or 0, sum(one.end - one.begin for one in unread.values()))
    finally:
        await store.close()


async def reset_versions(settings: Settings, declared: ReadStoreSettings, fold: str, consumer: AIOKafkaConsumer) -> None:
    """Reset the versions of a fold's values in a read store, so that everything folded afterwards replaces them.

    First the store applies the records of the output topic that it has not applied yet, and stores the end offsets of that topic:
    records below them were folded before the reset. If the store has no tables, nothing is done. After a crash, the call may be
    repeated; nothing is lost.

    Raises:
        TryAgainError: The store or its source does not answer. The call may be repeated.
    """
    store = open_store(declared)
    try:
        if await store.count_versioned(fold) is not None:
            log_bounds = await _log_bounds_of(settings, declared, fold, consumer)
            await _sync(settings, declared, consumer, await _unread(declared, log_bounds, store))
            now_ms = SystemClock().now_ms()
            for tp, (_, end) in log_bounds.items():
                await store.set_checkpoint(former_end_of(TP(*tp)), end, now_ms)
            await store.set_checkpoint(reset_of(fold), now_ms, now_ms)  # marks dead letters that are older than the reset
            await store.reset_versions(fold)
    finally:
        await store.close()


class UnreadRecords(NamedTuple):
    """Records of a partition that a store has not applied.

    Attributes:
        stored: Checkpoint of the store in this partition; None: the store has none there.
        begin: First offset that the store has not applied and the log still has.
        end: Last stable offset of the partition.
    """

    stored: int | None
    begin: int
    end: int


async def _log_bounds_of(
    settings: Settings, declared: ReadStoreSettings, fold: str, consumer: AIOKafkaConsumer
) -> dict[TopicPartition, tuple[int, int]]:
    """Return the log bounds of the output topic by partition; empty if there is no such topic or the store does not read it."""
    if fold not in declared.folds:
        return {}
    topic = settings.fold(fold).output
    if topic not in await consumer.topics():
        return {}
    tps = [TopicPartition(topic, number) for number in sorted(await known_partitions(consumer, topic))]
    if consumer.assignment() != set(tps):  # in a group, aiokafka may fail if an assignment is replaced soon after it was made
        consumer.assign(tps)
    ends, begins = await stable_ends(consumer, tps), await consumer.beginning_offsets(tps)
    return {tp: (begins[tp], ends[tp]) for tp in tps}


async def _unread(
    declared: ReadStoreSettings, log_bounds: Mapping[TopicPartition, tuple[int, int]], store: ReadStore
) -> dict[TopicPartition, UnreadRecords]:
    """Return what the store has not applied, by partition; partitions that it has applied to their end are omitted."""
    progress = await store.checkpoints()
    check_formats(declared.name, progress)
    stored = {tp: progress.get(TP(*tp)) for tp in log_bounds}
    found = {tp: UnreadRecords(stored[tp], max(begin, stored[tp] or 0), end) for tp, (begin, end) in log_bounds.items()}
    return {tp: one for tp, one in found.items() if one.begin < one.end}


async def _sync(
    settings: Settings, declared: ReadStoreSettings, consumer: AIOKafkaConsumer, unread: Mapping[TopicPartition, UnreadRecords]
) -> None:
    if not unread:
        return
    sync = StoreSync(settings, declared, Metrics(settings), SystemClock())
    stands = {tp: one.stored for tp, one in unread.items()}
    for tp, one in unread.items():
        consumer.seek(tp, one.begin)
    try:
        # Compare positions, not offsets of records: the last offsets may be transaction markers.
        while left := [tp for tp, one in unread.items() if await consumer.position(tp) < one.end]:
            for tp, fetched in (await consumer.getmany(*left, timeout_ms=POLL_MS)).items():
                for records in parts_of(fetched):
                    end, rest = records[-1].offset + 1, records
                    while rest:
                        done = await with_retries(partial(sync.sync_once, CheckpointStep(TP(*tp), stands[tp], end), rest))
                        stands[tp], rest = done.next_offset, rest[done.records :]
    finally:
        await sync.close()


async def known_partitions(consumer: AIOKafkaConsumer, topic: str) -> set[int]:
    """Return the partition numbers of a topic; empty if it does not exist. Does not create the topic."""
    if not consumer.partitions_for_topic(topic):
        await consumer._client.add_topic(topic)
        await consumer._client.force_metadata_update()
    return set(consumer.partitions_for_topic(topic) or ())
