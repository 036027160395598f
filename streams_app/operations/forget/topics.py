"""What of a key stays in the topics of an application and until when, and the tombstones by which compacted topics lose it.

Tombstones are written last, after every component has read what it had: a record of the key that follows a tombstone would stay.
They have the header :data:`.ERASURE`, so no component of an application stores the key again, or rejects the tombstone.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple

from aiokafka import AIOKafkaConsumer, TopicPartition

from streams_app.delivery.batch import TP
from streams_app.delivery.producer import OutgoingRecord
from streams_app.errors import ConfigurationError, StreamsAppError, TryAgainError, text_of
from streams_app.events.headers import ERASURE
from streams_app.formatting import compact_duration
from streams_app.kafka.admin import Topic, admin_client, partition_counts, topic_configs
from streams_app.kafka.log_ends import stable_ends
from streams_app.kafka.log_reader import log_reader, read_ranges
from streams_app.kafka.producer import AckedProducer
from streams_app.operations.forget.dead_letters import CountedRecords
from streams_app.operations.forget.part import TOMBSTONES, Forgetting, ForgottenKey, Kept, TopicBounds
from streams_app.requirements.components import DEAD_LETTERS, OUTPUT, REPLAYED
from streams_app.settings import Settings

WRITTEN: Final = frozenset({OUTPUT, DEAD_LETTERS, REPLAYED})
"""Roles of the topics that only the application writes: ``--tombstones`` concerns them. Sources belong to their producers."""

FUTURE: Final = -1


class WantedTombstones(NamedTuple):
    """Which compacted topics get tombstones.

    Attributes:
        is_for_own: All topics that only the application writes.
        topics: Further topics of the application. Their producers may choose partitions in another way, so each partition gets one.
    """

    is_for_own: bool = False
    topics: Sequence[str] = ()

    def concern(self, topic: Topic) -> bool:
        return topic.name in self.topics or (self.is_for_own and topic.role in WRITTEN)


class TopicFacts(NamedTuple):
    """A topic of the application.

    Attributes:
        config: Its settings; None if the broker does not report them.
        newest_ms: Highest timestamp of its records; :data:`FUTURE` if it is in the future; None: unknown, or there is no record.
        is_empty: Whether it has no record.
    """

    topic: Topic
    partitions: int
    config: Mapping[str, str] | None = None
    newest_ms: int | None = None
    is_empty: bool = False

    @property
    def where(self) -> str:
        return f"topic {self.topic.name} ({self.topic.role})"

    @property
    def is_compacted(self) -> bool:
        return "compact" in (self.config or {}).get("cleanup.policy", "delete")

    @property
    def retention_ms(self) -> int | None:
        """Time after which retention removes a record; None: never, or it is unknown."""
        found = int((self.config or {}).get("retention.ms", -1))
        is_removed = "delete" in (self.config or {}).get("cleanup.policy", "delete")
        return found if is_removed and found >= 0 else None


async def facts_of(settings: Settings, topics: Sequence[Topic]) -> list[TopicFacts]:
    """Return the topics that exist, without times of records."""
    async with admin_client(settings.kafka) as client:
        counts = await partition_counts(client, [topic.name for topic in topics])
        configs = await topic_configs(client, list(counts))
    return [TopicFacts(topic, counts[topic.name], configs.get(topic.name)) for topic in topics if topic.name in counts]


async def with_times(settings: Settings, facts: TopicFacts, logs: Mapping[TP, TopicBounds], now_ms: int) -> TopicFacts:
    """Add what the records of a topic show cheaply: whether it is empty, and the highest timestamp."""
    mine = {tp: bounds for tp, bounds in logs.items() if tp.topic == facts.topic.name and bounds.begin < bounds.end}
    if not mine:
        return facts._replace(is_empty=True)
    if facts.retention_ms is None:
        return facts
    try:
        async with log_reader(settings.kafka, facts.topic.name, [tp.partition for tp in mine]) as consumer:
            return facts._replace(newest_ms=await _newest_ms(consumer, mine, now_ms))
    except StreamsAppError:
        return facts


async def _newest_ms(consumer: AIOKafkaConsumer, logs: Mapping[TP, TopicBounds], now_ms: int) -> int | None:
    """Return the highest timestamp, if it is that of the last record of a partition; None if it is not."""
    if await _has_from(consumer, logs, now_ms + 1):
        return FUTURE
    newest_ms = -1
    async for batch in read_ranges(consumer, {tp: (bounds.end - 1, bounds.end) for tp, bounds in logs.items()}):
        newest_ms = max([newest_ms, *(record.timestamp or -1 for record in batch.records)])
    return newest_ms if newest_ms >= 0 and not await _has_from(consumer, logs, newest_ms + 1) else None


async def _has_from(consumer: AIOKafkaConsumer, tps: Iterable[TP], time_ms: int) -> bool:
    found = await consumer.offsets_for_times({TopicPartition(*tp): time_ms for tp in tps})
    # The embedded broker answers with an offset even if there is no such record, and then without its time.
    return any(one is not None and one.timestamp >= time_ms for one in found.values())


async def bounds_of(settings: Settings, topics: Mapping[str, int]) -> dict[TP, TopicBounds]:
    """Return the first and the end offset of each partition; ``topics`` has the number of partitions of each topic."""
    found: dict[TP, TopicBounds] = {}
    for topic, count in topics.items():
        tps = [TopicPartition(topic, number) for number in range(count)]
        async with log_reader(settings.kafka, topic, range(count)) as consumer:
            begins, ends = await consumer.beginning_offsets(tps), await stable_ends(consumer, tps)
        found |= {TP(*tp): TopicBounds(begins[tp], ends[tp]) for tp in tps}
    return found


def kept_in(
    facts: TopicFacts, key: ForgottenKey, wanted: WantedTombstones, now_ms: int, counted: CountedRecords | None = None
) -> Kept | None:
    """Say what of the key stays in a topic, and until when; None if the topic is empty (pure).

    Args:
        counted: Records of the key in the topic; None: they were not counted.
    """
    if counted is None or not counted.offsets:
        return _kept_in(facts, key, wanted, now_ms)
    facts = facts._replace(is_empty=False)  # workers may have written its first records meanwhile
    what = f"{counted.with_key:,} of its records have the key, {counted.mentions:,} others mention it"
    if counted.read < counted.offsets:
        what += f", of its newest {counted.read:,} of {counted.offsets:,} offsets"
    elif counted.newest_ms < 0:
        return Kept(facts.where, "none of its records has the key or mentions it", None, 0, 0)
    else:
        facts = facts._replace(newest_ms=counted.newest_ms)
    found = _kept_in(facts, key, wanted, now_ms)
    return found and found._replace(why=f"{what}; {found.why}", records=counted.with_key, mentions=counted.mentions)


def _kept_in(facts: TopicFacts, key: ForgottenKey, wanted: WantedTombstones, now_ms: int) -> Kept | None:
    config = facts.config
    if facts.is_empty:
        return None
    if config is None or ("retention.ms" not in config and not facts.is_compacted):
        return Kept(facts.where, "its records stay until retention removes them; the broker does not say when")
    whole = f"; a broker removes whole segments, which may take segment.ms ({_duration(config, 'segment.ms')}) longer"
    retention_ms = facts.retention_ms
    until_ms = None if retention_ms is None else (now_ms if facts.newest_ms is None else facts.newest_ms) + retention_ms
    if facts.newest_ms == FUTURE and retention_ms is not None:
        until_ms, whole = None, "; it has records with timestamps in the future, from which on retention.ms counts" + whole
    if facts.is_compacted:
        return Kept(facts.where, _why_compacted(facts, key, wanted), until_ms)
    if retention_ms is None:
        return Kept(
            facts.where,
            "its records stay forever: retention.ms has no limit; set it, or delete the records with kafka-delete-records",
        )
    return Kept(facts.where, "its records stay until retention.ms removes them" + whole, until_ms)


def _why_compacted(facts: TopicFacts, key: ForgottenKey, wanted: WantedTombstones) -> str:
    stays = "it is compacted: the newest record of each key stays until a tombstone for this key is produced"
    if not wanted.concern(facts.topic):
        option = "--tombstones" if facts.topic.role in WRITTEN else f"--tombstone-topic {facts.topic.name}"
        return f"{stays} ({option})"
    if key.neighbour:
        return f"{stays}; none is, because the group {key.neighbour} has the same record key: type the key so that it means both"
    assert facts.config is not None
    lag, kept = _duration(facts.config, "max.compaction.lag.ms"), _duration(facts.config, "delete.retention.ms")
    return (
        f"it is compacted: the next compaction after the tombstone (max.compaction.lag.ms {lag}) removes the records of the key, "
        f"and a later one (delete.retention.ms {kept}) the tombstone"
    )


def _duration(config: Mapping[str, str], name: str) -> str:
    """Return a setting in ms as a duration; very large ones have no limit."""
    value = config.get(name, "")
    if not value.isdecimal():
        return "unknown"
    return compact_duration(int(value)) if int(value) < 2**62 else "unlimited"


class TombstonePart:
    """The tombstones of the key in a compacted topic. Writing them again changes nothing."""

    has_offsets, fills = False, ""

    def __init__(self, forgetting: Forgetting, facts: TopicFacts, *, is_named: bool) -> None:
        self.where = facts.where
        self._kafka, self._is_written = forgetting.settings.kafka, False
        partitions: Sequence[int | None] = range(facts.partitions) if is_named else [None]
        self._records = [
            OutgoingRecord(facts.topic.name, record_key, None, [(ERASURE, b"1")], None, partition)
            for record_key in forgetting.key.record_keys
            for partition in partitions
        ]

    async def find(self) -> Counter[str]:
        return Counter({TOMBSTONES: len(self._records)})

    async def remove(self, *, is_last: bool) -> Counter[str]:
        if not is_last or self._is_written:
            return Counter()
        producer = AckedProducer(self._kafka, client_id="streams-app-forget")
        try:
            outcomes = await producer.send(self._records)
        finally:
            await producer.stop()
        if failed := [outcome for outcome in outcomes if outcome is not None]:
            raise TryAgainError(f"a tombstone is not acknowledged: {text_of(failed[0])}")
        self._is_written = True
        return Counter({TOMBSTONES: len(self._records)})

    async def unfinished(self) -> list[str]:
        return []


def tombstone_parts(forgetting: Forgetting, topics: Iterable[TopicFacts], wanted: WantedTombstones) -> list[TombstonePart]:
    """Return the compacted topics that get tombstones.

    Raises:
        ConfigurationError: A named topic is none of the application, or is not compacted.
    """
    by_name = {facts.topic.name: facts for facts in topics}
    faults = []
    for name in wanted.topics:
        if name not in by_name:
            faults.append(f"{name!r} is no topic of this application; its topics are: {', '.join(sorted(by_name))}")
        elif by_name[name].config is not None and not by_name[name].is_compacted:
            faults.append(f"topic {name!r} is not compacted: a tombstone removes nothing there")
    if faults:
        raise ConfigurationError([f"--tombstone-topic: {fault}" for fault in faults])
    if forgetting.key.neighbour:
        return []
    return [
        TombstonePart(forgetting, facts, is_named=name in wanted.topics)
        for name, facts in by_name.items()
        if wanted.concern(facts.topic) and (facts.is_compacted or name in wanted.topics)
    ]
