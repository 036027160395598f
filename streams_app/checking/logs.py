"""Detects topics that were deleted and created again, and truncated logs, by comparing logs with stored positions.

A worker detects this when it claims a partition, and then stops or reads the new log. An operator should know it before a worker
starts. Logs are compared only if the broker has topic ids.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import AsyncGenerator, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from aiokafka import TopicPartition
from aiokafka.errors import KafkaError
from redis.asyncio import Redis

from streams_app.checking.facts import Declarations, KafkaFacts
from streams_app.checking.finding import Finding, Level
from streams_app.delivery.batch import TP
from streams_app.delivery.fingerprints import OTHER, Fingerprint, common_end, of_text
from streams_app.delivery.group_consumer import PartitionCommit
from streams_app.delivery.offset_metadata import offsets_in
from streams_app.delivery.processor import NO_OFFSET
from streams_app.errors import StreamsAppError, TryAgainError, text_of
from streams_app.journal.store.keys import journal_keys
from streams_app.kafka.group_offsets import commits_in, in_group
from streams_app.kafka.log_ends import stable_ends
from streams_app.kafka.log_reader import log_reader
from streams_app.kafka.one_record import checksum_at
from streams_app.kafka.topic_ids import UNKNOWN
from streams_app.live.store.keys import view_keys
from streams_app.operations.groups import stored_shards
from streams_app.redis_access.client import REDIS_ERRORS, redis_fault_text
from streams_app.settings import Settings
from streams_app.subscribers.state.initial_offsets import committed, how_to_set_offsets
from streams_app.subscribers.state.offset_metadata import decoded


@dataclass(frozen=True, slots=True)
class ComparedReader:
    """A component that reads topics, and whose stored positions are compared with the logs.

    Attributes:
        name: Name for messages, such as ``fold x``.
        advice: What the operator has to do if the topic was created again; "": nothing, because workers read the new topic.
    """

    name: str
    advice: str = ""


@dataclass(frozen=True, slots=True)
class ReaderPosition:
    """Stored position of a reader in a partition.

    Attributes:
        topic_id: Id of the topic that was read; "": no id was stored.
        to: Offset after the last one that was read.
        read: Fingerprints of some of the records that were read, to identify the log.
    """

    topic_id: str
    to: int
    read: tuple[Fingerprint, ...] = ()


Read = dict[TP, ReaderPosition]


async def log_findings(declarations: Declarations, kafka: KafkaFacts, redis: Redis) -> AsyncGenerator[Finding, None]:
    """Compare topics with the positions that components have stored: yield topics that were created again, and truncated logs.

    If Kafka or Redis does not answer, or hides a topic, at most a warning is yielded. Nothing is yielded if the catalogue cannot be
    used.
    """
    settings, ids = declarations.settings, kafka.ids
    if declarations.fault is not None or kafka.hides_any(_read_topics(declarations)):
        return
    try:
        readers = await _readers(declarations, kafka, redis)
        if not {tp.topic for read in readers.values() for tp in read} <= ids.keys():
            return  # the check of Kafka reports the topic that does not exist
        for reader, read in readers.items():
            present = {tp: so_far for tp, so_far in read.items() if ids.get(tp.topic, UNKNOWN) != UNKNOWN}
            for finding in [*recreations(reader, present, ids)] or await _compared(settings, reader, present):
                yield finding
    except StreamsAppError:
        return  # other checks report it
    except (KafkaError, OSError, TimeoutError) as error:
        yield Finding(
            Level.WARNING, f"fingerprints of consumed events cannot be compared with the logs: {text_of(error)}", "check again"
        )


async def _compared(settings: Settings, reader: ComparedReader, read: Read) -> list[Finding]:
    """Compare the logs of a reader with the fingerprints of records that the reader has read."""
    found: list[Finding] = []
    for topic in sorted({tp.topic for tp in read}):
        tps = [tp for tp in read if tp.topic == topic]
        async with log_reader(settings.kafka, topic, [tp.partition for tp in tps]) as consumer:
            ends = await stable_ends(consumer, [TopicPartition(*tp) for tp in tps])
            for tp in tps:
                so_far, end = read[tp], ends[TopicPartition(*tp)]
                kept = so_far.read or ((Fingerprint(so_far.to - 1, OTHER),) if so_far.to > end else ())
                if (common := await common_end(kept, partial(checksum_at, consumer, tp))) is not None:
                    found.append(went_back(reader, tp, min(common, end), so_far))
    if not found and read:
        what = f"{reader.name} has read the current logs: topics and records match its stored positions ({len(read)} partitions)"
        found.append(Finding(Level.OK, what))
    return found


def recreations(reader: ComparedReader, read: Read, ids: Mapping[str, str]) -> Iterator[Finding]:
    """Yield one finding if a topic was deleted and created again since a component has read it; otherwise nothing (pure)."""
    for tp, so_far in read.items():
        if so_far.topic_id in (UNKNOWN, ids[tp.topic]):
            continue
        text = f"{tp} was deleted and created again: {reader.name} has read another log of that name, up to offset {so_far.to - 1}"
        if reader.advice:
            yield Finding(Level.ERROR, f"{text}; no worker would run it", reader.advice)
        else:
            yield Finding(Level.WARNING, text, "nothing: a worker reads the new one from its beginning")
        return


def went_back(reader: ComparedReader, tp: TP, common: int, so_far: ReaderPosition) -> Finding:
    """Return the finding that the broker has lost records from the offset ``common`` on after they were read (pure)."""
    text = f"{tp} went back: the broker has lost what {reader.name} had read from offset {common} to {so_far.to - 1}"
    return Finding(Level.WARNING, text, f"nothing: a worker reads again from {common}; find out why the broker lost the events")


def _read_topics(declarations: Declarations) -> set[str]:
    """Return the topics that read stores, live views, journals and subscribers read."""
    settings = declarations.settings
    topics = {settings.fold(fold).output for store in settings.read_stores for fold in store.folds}
    topics |= {view.source for view in settings.live_of_topics} | {journal.source for journal in settings.journals}
    return topics | {one.topic for one in declarations.enabled}


async def _readers(declarations: Declarations, kafka: KafkaFacts, redis: Redis) -> dict[ComparedReader, Read]:
    """Return the stored positions, by partition, of each component that reads topics."""
    settings = declarations.settings
    try:
        readers = await _in_redis(settings, kafka, redis)
    except REDIS_ERRORS as error:
        raise TryAgainError(redis_fault_text(error, settings.redis)) from error
    for store in settings.read_stores:
        tps = kafka.tps_of([settings.fold(fold).output for fold in store.folds])
        group = f"{settings.app_id}.{store.group}"
        async with in_group(settings.kafka, group) as consumer:
            commits = await commits_in(settings.kafka, consumer, group, tps) if tps else {}
        readers[ComparedReader(f"read store {store.name}")] = {
            tp: ReaderPosition(parts[0], offset, of_text(parts[2]))
            for tp, (offset, metadata) in _positions(store.name, commits).items()
            if (parts := metadata.partition("~"))
        }
    return readers | await _subscribers(declarations, kafka)


async def _subscribers(declarations: Declarations, kafka: KafkaFacts) -> dict[ComparedReader, Read]:
    readers: dict[ComparedReader, Read] = {}
    for one in declarations.enabled:
        name, tps = one.subscriber.name, kafka.tps_of([one.topic])
        commits = await committed(declarations.settings, one, tps) if tps else {}
        readers[ComparedReader(f"subscriber {name}", how_to_set_offsets(name))] = {
            tp: ReaderPosition(metadata.topic_id, max(offset, *(each.offset + 1 for each in metadata.read), 0), metadata.read)
            for tp, (offset, text) in _positions(name, commits).items()
            if (metadata := decoded(text, offset, NO_OFFSET)) is not None
        }
    return readers


def _positions(name: str, commits: Mapping[TP, PartitionCommit]) -> dict[TP, Any]:
    """Return the committed offset and metadata of one component, by partition; partitions without them are omitted."""
    return {tp: positions[name] for tp, commit in commits.items() if (positions := offsets_in(commit)) and name in positions}


async def _in_redis(settings: Settings, kafka: KafkaFacts, redis: Redis) -> dict[ComparedReader, Read]:
    """Return the positions, by partition, that Redis stores of each fold, live view and journal."""
    readers: dict[ComparedReader, Read] = defaultdict(dict)
    for shard in await stored_shards(redis, settings, None):
        topic_id, log, to = await redis.hmget(shard.keys.meta, ["topic_id", "log", "to"])
        advice = f"streams-app reset --fold {shard.fold.name} --emit (it says first what it would do)"
        readers[ComparedReader(f"fold {shard.fold.name}", advice)][TP(shard.fold.source, shard.partition)] = ReaderPosition(
            _text(topic_id), max(shard.fence, int(to or -1)) + 1, of_text(_text(log))
        )
    metas = [
        (ComparedReader(f"live view {view.name}"), view.source, partial(_meta_of_view, settings.app_id, view.name))
        for view in settings.live_of_topics
    ]
    for journal in settings.journals:
        reader = ComparedReader(
            f"journal {journal.name}", f"streams-app reset --journal {journal.name} (it says first what it would do)"
        )
        metas.append((reader, journal.source, partial(_meta_of_journal, settings.app_id, journal.name)))
    for reader, source, meta_of in metas:
        for tp in kafka.tps_of([source]):
            topic_id, log, fence = await redis.hmget(meta_of(*tp), ["topic_id", "log", "fence"])
            if fence is not None:
                readers[reader][tp] = ReaderPosition(_text(topic_id), int(fence) + 1, of_text(_text(log)))
    return readers


def _meta_of_view(app_id: str, view: str, topic: str, partition: int) -> str:
    return view_keys(app_id, view, topic, partition).meta


def _meta_of_journal(app_id: str, journal: str, topic: str, partition: int) -> str:
    return journal_keys(app_id, journal, topic, partition).meta


def _text(value: Any) -> str:
    return (value or b"").decode()
