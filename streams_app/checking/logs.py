"""Detects topics that were deleted and created again, and truncated logs, by comparing logs with stored positions.

A worker detects this when it claims a partition, and then stops or reads the new log. An operator should know it before a worker
starts. Logs are compared only if the broker has topic ids. The embedded broker has none, and the end offsets that it reports are
not those of its logs.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import AsyncGenerator, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from aiokafka import TopicPartition
from aiokafka.errors import KafkaError

from streams_app.checking.finding import Finding, Level
from streams_app.delivery.batch import TP
from streams_app.delivery.fingerprints import OTHER, Fingerprint, common_end, of_text
from streams_app.delivery.group_consumer import PartitionCommit
from streams_app.delivery.offset_metadata import offsets_in
from streams_app.delivery.processor import NO_OFFSET
from streams_app.errors import StreamsAppError, text_of
from streams_app.journal.store.keys import journal_keys
from streams_app.kafka.admin import admin_client, partition_counts
from streams_app.kafka.group_offsets import commits_in, in_group
from streams_app.kafka.log_reader import log_reader
from streams_app.kafka.one_record import checksum_at
from streams_app.kafka.topic_ids import UNKNOWN, topic_ids
from streams_app.live.store.keys import view_keys
from streams_app.operations.groups import redis_of, stored_shards
from streams_app.settings import Settings
from streams_app.subscribers.declaration.loading import catalogue_of
from streams_app.subscribers.declaration.subscription import subscriptions_of
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


async def log_findings(settings: Settings) -> AsyncGenerator[Finding, None]:
    """Compare topics with the positions that components have stored: yield topics that were created again, and truncated logs.

    If Kafka or Redis does not answer, at most a warning is yielded.
    """
    try:
        readers = await _readers(settings)
        topics = sorted({tp.topic for read in readers.values() for tp in read})
        async with admin_client(settings.kafka) as client:
            ids = await topic_ids(client._client, topics) if topics else {}
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
            ends = await consumer.end_offsets([TopicPartition(*tp) for tp in tps])
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


async def _readers(settings: Settings) -> dict[ComparedReader, Read]:
    """Return the stored positions, by partition, of each component that reads topics."""
    readers = await _in_redis(settings)
    async with admin_client(settings.kafka) as client:
        counts = await partition_counts(client, [settings.fold(fold).output for one in settings.read_stores for fold in one.folds])
    for store in settings.read_stores:
        tps = _partitions([settings.fold(fold).output for fold in store.folds], counts)
        group = f"{settings.app_id}.{store.group}"
        async with in_group(settings.kafka, group) as consumer:
            commits = await commits_in(settings.kafka, consumer, group, tps) if tps else {}
        readers[ComparedReader(f"read store {store.name}")] = {
            tp: ReaderPosition(parts[0], offset, of_text(parts[2]))
            for tp, (offset, metadata) in _positions(store.name, commits).items()
            if (parts := metadata.partition("~"))
        }
    return readers | await _subscribers(settings)


async def _subscribers(settings: Settings) -> dict[ComparedReader, Read]:
    if settings.events.catalogue is None:
        return {}
    subscriptions = [one for one in subscriptions_of(catalogue_of(settings), settings) if one.subscriber.is_enabled]
    async with admin_client(settings.kafka) as client:
        counts = await partition_counts(client, [one.topic for one in subscriptions])
    readers: dict[ComparedReader, Read] = {}
    for one in subscriptions:
        name = one.subscriber.name
        commits = await committed(settings, one, _partitions([one.topic], counts)) if one.topic in counts else {}
        readers[ComparedReader(f"subscriber {name}", how_to_set_offsets(name))] = {
            tp: ReaderPosition(metadata.topic_id, max(offset, *(each.offset + 1 for each in metadata.read), 0), metadata.read)
            for tp, (offset, text) in _positions(name, commits).items()
            if (metadata := decoded(text, offset, NO_OFFSET)) is not None
        }
    return readers


def _positions(name: str, commits: Mapping[TP, PartitionCommit]) -> dict[TP, Any]:
    """Return the committed offset and metadata of one component, by partition; partitions without them are omitted."""
    return {tp: positions[name] for tp, commit in commits.items() if (positions := offsets_in(commit)) and name in positions}


def _partitions(topics: Iterable[str], counts: Mapping[str, int]) -> list[TP]:
    return [TP(topic, number) for topic in topics for number in range(counts.get(topic, 0))]


async def _in_redis(settings: Settings) -> dict[ComparedReader, Read]:
    """Return the positions, by partition, that Redis stores of each fold, live view and journal."""
    readers: dict[ComparedReader, Read] = defaultdict(dict)
    async with redis_of(settings) as redis:
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
        if metas:
            async with admin_client(settings.kafka) as client:
                counts = await partition_counts(client, list({source for _, source, _ in metas}))
        for reader, source, meta_of in metas:
            for tp in _partitions([source], counts):
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
