"""What a reset does to a read store: its values stay, and whatever is folded from then on is newer.

Versions are made of source offsets, and those begin low again in a topic that was made again: everything folded of it would be
refused as stale, for ever. So the version guard of the fold's values is lowered, and nothing disappears from the read side. Before
that, the records on the output topic that the store has not taken yet are synced: applied later, under their old and high
versions, they would raise the guard again. The ends of that topic are kept in the progress of the store: what lies below them is no
evidence of what the store should hold.
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
from streams_app.kafka.log_reader import stable_ends
from streams_app.operations.insisting import insisted
from streams_app.read_store.agents.sync import Sync, steps
from streams_app.read_store.targets.choice import open_store
from streams_app.read_store.targets.port import ProgressStep, ReadStore, former_end_of, reset_of
from streams_app.settings import ReadStoreSettings, Settings

POLL_MS: Final = 500


@dataclass(frozen=True, slots=True)
class Behind:
    """What is to be done in a read store.

    Attributes:
        store: Name of the store.
        values: Number of values of the fold, each guarded by a version.
        records: Number of records on its output topic that the store has not taken yet.
    """

    store: str
    values: int = 0
    records: int = 0

    def lines(self) -> list[str]:
        """What the operator is told, one sentence each."""
        found, store = [], f"read store {self.store}"
        if self.records:
            found.append(f"{counted(self.records, 'record')} of its output topic would be brought to {store} first")
        if self.values:
            found.append(f"{counted(self.values, 'value')} in {store} would stay, and be replaced once folded again")
        return found


async def behind(settings: Settings, declared: ReadStoreSettings, fold: str, consumer: AIOKafkaConsumer) -> Behind:
    """Finds out what :func:`follow` would do; changes nothing.

    Args:
        settings: Settings of the application.
        declared: The read store.
        fold: Name of the fold, declared or not.
        consumer: Consumer that has joined no group; its assignment is replaced.

    Raises:
        TryAgainError: The read store is locked.
    """
    store = open_store(declared)
    try:
        values = await store.guarded(fold)
        unread = {} if values is None else await _unread(await _edges(settings, declared, fold, consumer), store)
        return Behind(declared.name, values or 0, sum(place.end - place.begin for place in unread.values()))
    finally:
        await store.close()


async def follow(settings: Settings, declared: ReadStoreSettings, fold: str, consumer: AIOKafkaConsumer) -> None:
    """Syncs what the store has not taken yet, marks where the output topic ends, then lowers the guard of the fold's values.

    A crash in between leaves a store whose guard is not lowered yet; nothing is lost, and the call may be repeated.

    Args:
        settings: Settings of the application.
        declared: The read store.
        fold: Name of the fold, declared or not.
        consumer: Consumer that has joined no group; its assignment is replaced.

    Raises:
        TryAgainError: The store or its source is away; the call may be repeated.
    """
    store = open_store(declared)
    try:
        if await store.guarded(fold) is not None:
            edges = await _edges(settings, declared, fold, consumer)
            await _sync(settings, declared, consumer, await _unread(edges, store))
            now_ms = SystemClock().now_ms()
            for tp, (_, end) in edges.items():
                await store.begin(former_end_of(TP(*tp)), end, now_ms)
            await store.begin(reset_of(fold), now_ms, now_ms)  # for the dead letters from before
            await store.lower(fold)
    finally:
        await store.close()


class Unread(NamedTuple):
    """What a store has not taken of a partition.

    Attributes:
        stored: Its progress; None: it has none.
        begin: The first offset it has not taken and that is still there.
        end: End of the log.
    """

    stored: int | None
    begin: int
    end: int


async def _edges(
    settings: Settings, declared: ReadStoreSettings, fold: str, consumer: AIOKafkaConsumer
) -> dict[TopicPartition, tuple[int, int]]:
    """Partition of the fold's output topic → where its log begins and ends; empty where the store does not read it."""
    if fold not in declared.folds:
        return {}
    topic = settings.fold(fold).output
    if topic not in await consumer.topics():
        return {}
    tps = [TopicPartition(topic, number) for number in sorted(await known_partitions(consumer, topic))]
    consumer.assign(tps)
    ends, begins = await stable_ends(consumer, tps), await consumer.beginning_offsets(tps)
    return {tp: (begins[tp], ends[tp]) for tp in tps}


async def _unread(edges: Mapping[TopicPartition, tuple[int, int]], store: ReadStore) -> dict[TopicPartition, Unread]:
    """Partition of the fold's output topic → what the store has not taken of it."""
    progress = await store.progress() if edges else {}
    stored = {tp: progress.get(TP(*tp)) for tp in edges}
    places = {tp: Unread(stored[tp], max(begin, stored[tp] or 0), end) for tp, (begin, end) in edges.items()}
    return {tp: place for tp, place in places.items() if place.begin < place.end}


async def _sync(
    settings: Settings, declared: ReadStoreSettings, consumer: AIOKafkaConsumer, unread: Mapping[TopicPartition, Unread]
) -> None:
    if not unread:
        return
    sync = Sync(settings, declared, Metrics(settings), SystemClock())
    stands = {tp: place.stored for tp, place in unread.items()}
    consumer.assign(list(unread))
    for tp, place in unread.items():
        consumer.seek(tp, place.begin)
    try:
        # By position and not by record: the last offsets may be markers of transactions.
        while left := [tp for tp, place in unread.items() if await consumer.position(tp) < place.end]:
            for tp, fetched in (await consumer.getmany(*left, timeout_ms=POLL_MS)).items():
                for records in steps(fetched):
                    end, rest = records[-1].offset + 1, records
                    while rest:
                        done = await insisted(partial(sync.sync_once, ProgressStep(TP(*tp), stands[tp], end), rest))
                        stands[tp], rest = done.next_offset, rest[done.records :]
    finally:
        await sync.close()


async def known_partitions(consumer: AIOKafkaConsumer, topic: str) -> set[int]:
    """The partitions of a topic; empty where it does not exist. The topic is not created."""
    if not consumer.partitions_for_topic(topic):
        await consumer._client.add_topic(topic)
        await consumer._client.force_metadata_update()
    return set(consumer.partitions_for_topic(topic) or ())
