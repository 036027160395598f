"""Finds and removes a key in read stores, and reads where topics end."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from aiokafka import TopicPartition

from streams_app.delivery.batch import TP
from streams_app.kafka.admin import admin_client, partition_counts
from streams_app.kafka.log_ends import stable_ends
from streams_app.kafka.log_reader import log_reader
from streams_app.operations.forget.part import Forgetting, TopicBounds
from streams_app.read_store.core.store import ReadableStore, check_formats
from streams_app.read_store.registry import open_store
from streams_app.settings import ReadStoreSettings, Settings


async def bounds_of(settings: Settings, topics: Mapping[str, int]) -> dict[TP, TopicBounds]:
    """Return the first and the end offset of each partition; ``topics`` has the number of partitions of each topic."""
    found: dict[TP, TopicBounds] = {}
    for topic, count in topics.items():
        tps = [TopicPartition(topic, number) for number in range(count)]
        async with log_reader(settings.kafka, topic, range(count)) as consumer:
            begins, ends = await consumer.beginning_offsets(tps), await stable_ends(consumer, tps)
        found |= {TP(*tp): TopicBounds(begins[tp], ends[tp]) for tp in tps}
    return found


class StorePart:
    """The rows or documents of the key in a read store, of each fold that it reads.

    The output topics get records of the key until the folds have emitted what they had. So their ends are read when the component
    is asked for the first time whether it is finished, which is after the folds have finished.
    """

    has_offsets = False

    def __init__(self, forgetting: Forgetting, declared: ReadStoreSettings) -> None:
        self.where = f"read store {declared.name}"
        self._forgetting, self._declared = forgetting, declared
        self._groups = [(fold, column) for fold in declared.folds for column in forgetting.key.columns]
        self._logs: dict[TP, TopicBounds] | None = None

    async def find(self) -> Counter[str]:
        store = open_store(self._declared)
        try:
            if not await _exists(store):
                return Counter()
            return Counter({"values": len(await store.names(self._groups))})
        finally:
            await store.close()

    async def remove(self, *, is_last: bool) -> Counter[str]:
        store = open_store(self._declared)
        try:
            if not await _exists(store):
                return Counter()
            check_formats(self._declared.name, await store.checkpoints())
            return Counter({"rows": await store.remove_groups(self._groups)})
        finally:
            await store.close()

    async def unfinished(self) -> list[str]:
        store = open_store(self._declared)
        try:
            checkpoints = await store.checkpoints() if await _exists(store) else {}
        finally:
            await store.close()
        outputs = [self._forgetting.settings.fold(name).output for name in self._declared.folds]
        if self._logs is None:
            async with admin_client(self._forgetting.settings.kafka) as client:
                counts = await partition_counts(client, outputs)
            self._logs = await bounds_of(self._forgetting.settings, counts)
        read = {topic: {tp.partition: offset for tp, offset in checkpoints.items() if tp.topic == topic} for topic in outputs}
        return [why for topic in outputs for why in self._forgetting.unread(topic, read[topic], self._logs)]


async def _exists(store: ReadableStore) -> bool:
    """Return whether the store was ever initialised; a store without tables has nothing of any key."""
    return not await store.missing()
