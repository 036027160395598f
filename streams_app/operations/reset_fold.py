"""Removes the state of a fold, to uninstall the fold or after its source topic was deleted and created again.

A reset removes the fold's keys in Redis and its offset in the commits. The fold then starts like a new one, and its records may
have lower versions than before. So that read stores accept these records, the versions in them are reset as well, see
:mod:`streams_app.operations.reset_read_store`. The workers of the application must be stopped, because Kafka rejects commits by
others for a group that has members. On request, :func:`emit_all` emits the open groups first.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

import orjson
from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.errors import KafkaError
from redis.asyncio import Redis

from streams_app.clock import SystemClock
from streams_app.delivery.batch import TP
from streams_app.delivery.clocks import TrustedClock
from streams_app.delivery.group_consumer import PartitionCommit
from streams_app.delivery.log_continuity import is_recreated
from streams_app.delivery.offset_metadata import OffsetAndMetadata, check_format, commit_of, offsets_of
from streams_app.delivery.scripts import FencedError
from streams_app.errors import ConfigurationError, TryAgainError
from streams_app.fold import FOLD_NAME, Fold
from streams_app.folding.agents.context import FoldContext
from streams_app.folding.agents.emitter import Emitter
from streams_app.folding.agents.retired_folds import retired_fold
from streams_app.folding.core.record import RecordShape
from streams_app.folding.shard.shard import Shard
from streams_app.folding.store.keys import fold_pattern, shard_keys
from streams_app.folding.store.scripts import FoldScripts
from streams_app.folding.store.shard_store import ShardStore
from streams_app.formatting import counted
from streams_app.health.metrics import Metrics
from streams_app.health.status import Status
from streams_app.kafka.admin import admin_client
from streams_app.kafka.diagnosis import why_unreachable
from streams_app.kafka.group_offsets import commits_in, in_group, member_count, move
from streams_app.kafka.log_ends import stable_ends
from streams_app.kafka.producer import AckedProducer
from streams_app.kafka.topic_ids import topic_ids
from streams_app.operations.groups import redis_of
from streams_app.operations.outbox_blocks import count_records
from streams_app.operations.reset_read_store import ResetEffect, known_partitions, reset_effect, reset_versions
from streams_app.operations.state_removal import remove_state
from streams_app.requirements.components import FOLDS, components_of
from streams_app.requirements.workload import Workload
from streams_app.settings import Settings

SCAN_COUNT: Final = 1_000
SHARD: Final = re.compile(rb"^\{[^/]+/([^/]+)/([^/]+)/(\d+)\}:")


@dataclass(slots=True)
class ResetPlan:
    """What a reset of a fold would change: Redis keys to remove, and commits and read stores to change.

    Attributes:
        open_groups: Number of open groups, which are lost unless they are emitted first.
        outbox: Number of records in the outbox, which may not have been sent.
        emittable: Partitions whose open groups and records can be emitted. Each has the fold that determines output topic and form
            of the records, see :func:`emittable_shards`.
        partitions: Number of partitions of each source, derived from the highest partition with state.
        is_stranded: Whether there are groups or records that no worker can emit, because their source log is gone or no declared
            fold reads it.
        missing: Source topics that do not exist, so that their committed offsets are gone as well.
    """

    keys: list[bytes] = field(default_factory=list)
    open_groups: int = 0
    outbox: int = 0
    emittable: dict[TP, Fold] = field(default_factory=dict)
    partitions: dict[str, int] = field(default_factory=dict)
    is_stranded: bool = False
    offsets: dict[TP, PartitionCommit] = field(default_factory=dict)
    missing: list[str] = field(default_factory=list)
    read_stores: list[ResetEffect] = field(default_factory=list)

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing of this fold to remove or reset."""
        return not (self.keys or self.offsets or any(store.values for store in self.read_stores))


async def plan(settings: Settings, fold: str) -> ResetPlan:
    """Return what a reset of a fold, declared or not, would remove and change. Nothing is changed yet."""
    if not FOLD_NAME.fullmatch(fold):
        # The name becomes part of a Redis pattern, in which "*" would match every fold.
        declared = ", ".join(other.name for other in settings.folds)
        raise ConfigurationError([f"{fold!r} is not the name of a fold (a-z, 0-9, _ and -); declared are: {declared}"])
    found = ResetPlan()
    # Read all sources: a fold that is not declared and has no state may still have offsets in their commits.
    sources: set[str] = {declared.source for declared in settings.folds}
    tps: set[TP] = set()
    async with redis_of(settings) as redis:
        async for key in redis.scan_iter(match=fold_pattern(settings.app_id, fold), count=SCAN_COUNT):
            match = SHARD.match(key)
            if match is None or match[1].decode() != fold:
                continue
            found.keys.append(key)
            source, number = match[2].decode(), int(match[3])
            sources.add(source)
            tps.add(TP(source, number))
            found.partitions[source] = max(found.partitions.get(source, 0), number + 1)
            await _count(redis, key, found)
        found.emittable = await emittable_shards(redis, settings, fold, tps)
        folded = {tp: await topic_id_of(redis, settings, fold, tp) for tp in found.emittable}
    async with in_group(settings.kafka, settings.app_id) as consumer:
        there = await consumer.topics()
        found.missing = sorted(sources - there)
        found.is_stranded = await _is_stranded(settings, consumer, fold, folded, there)
        for source in sorted(sources & there):
            await _plan_offsets(settings, consumer, fold, source, found)
        found.read_stores = [await reset_effect(settings, declared, fold, consumer) for declared in settings.read_stores]
    return found


async def emit_all(settings: Settings, planned: ResetPlan) -> int:
    """Emit all open groups and unsent records of the fold before the fold is removed. No worker may be running.

    Returns:
        Number of groups that were emitted, including those that were already in the outbox.

    Raises:
        ConfigurationError: Some groups or records cannot be emitted, or a worker or another reset has claimed a shard.
        TryAgainError: Redis does not answer, or the broker has not acknowledged everything. The call may be repeated.
    """
    emitted = await emit(settings, planned.emittable, planned.partitions)
    rest = ResetPlan()
    async with redis_of(settings) as redis:
        for key in planned.keys:
            await _count(redis, key, rest)
    if rest.open_groups or rest.outbox:
        raise ConfigurationError(
            [
                f"{counted(rest.open_groups, 'open group')} and {counted(rest.outbox, 'record')} cannot be emitted: they are of "
                f"another state version, or their state is incomplete; {NOTHING_REMOVED}. Without --emit they are removed, too"
            ]
        )
    return emitted


async def carry_out(settings: Settings, fold: str, planned: ResetPlan) -> None:
    """Reset a fold as planned: first its commits, then the read stores, and its Redis keys last.

    The commits come first because Kafka rejects them while a worker runs; in this case nothing was changed.

    Raises:
        TryAgainError: Redis, Kafka or a read store does not answer. The call may be repeated.
    """
    async with in_group(settings.kafka, settings.app_id) as consumer:
        await move(settings.kafka, consumer, settings.app_id, planned.offsets)
        for declared in settings.read_stores:
            await reset_versions(settings, declared, fold, consumer)
    await remove_state(settings, FOLDS, fold)


async def members(settings: Settings) -> int:
    """Return at least how many workers run folds or read stores; 0 if there are none, or if the broker does not report it.

    The folds have a consumer group, and so has each read store. A worker may be a member of several groups, so only the members of
    the largest group are counted.
    """
    folding = Workload(settings, settings.folds, settings.read_stores)
    groups = {settings.app_id, *(component.group for component in components_of(folding))}
    async with admin_client(settings.kafka) as client:
        return max([await member_count(client, group) for group in groups])


async def _count(redis: Redis, key: bytes, found: ResetPlan) -> None:
    kind = key.rpartition(b"}")[2]
    if kind in (b":v1:first", b":v2:first"):
        found.open_groups += await redis.zcard(key)
    elif kind == b":v1:outbox":
        found.outbox += await redis.zcard(key)  # an entry of this version is a record
    elif kind == b":v2:outbox":
        found.outbox += await count_records(redis, key)


async def _is_stranded(
    settings: Settings, consumer: AIOKafkaConsumer, fold: str, folded: Mapping[TP, str], there: Collection[str]
) -> bool:
    """Return whether some partition has open groups or unsent records that no worker can emit.

    Args:
        folded: Such partitions, each with the id of the topic that was folded; "": the id is unknown.
        there: Names of the existing topics.
    """
    read = {declared.source for declared in settings.folds if declared.name == fold} & set(there)
    if any(tp.topic not in read for tp in folded):
        return True
    try:
        present = await topic_ids(consumer._client, sorted({tp.topic for tp in folded})) if folded else {}
    except (KafkaError, OSError) as error:
        raise await why_unreachable(settings.kafka, error) from error
    return any(is_recreated(topic_id, present[tp.topic]) for tp, topic_id in folded.items())


async def _plan_offsets(settings: Settings, consumer: AIOKafkaConsumer, fold: str, source: str, found: ResetPlan) -> None:
    tps = [TopicPartition(source, number) for number in sorted(await known_partitions(consumer, source))]
    if not tps:
        return
    begins, ends = await consumer.beginning_offsets(tps), await stable_ends(consumer, tps)
    committed = await commits_in(settings.kafka, consumer, settings.app_id, [TP(*tp) for tp in tps])
    declared = [other.name for other in settings.folds if other.source == source]
    starts = ends if any(other.name == fold and other.start == "latest" for other in settings.folds) else begins
    for tp in tps:
        current = committed.get(TP(*tp))
        if current is None:
            continue
        position = without_fold(TP(*tp), current, declared, fold, starts[tp])
        if position is not None:
            found.offsets[TP(*tp)] = position


def without_fold(tp: TP, current: PartitionCommit, declared: Iterable[str], fold: str, start: int) -> PartitionCommit | None:
    """Return the commit of a partition without the offset of one fold; the offsets of other folds stay (pure).

    Args:
        current: The current commit. Without metadata, its offset applies to every declared fold.
        declared: Names of the folds of this source.
        start: Offset at which the fold would start as a new fold.

    Returns:
        The new commit. If no other fold has an offset, the new commit is at ``start``. None if the current commit has no offset of
        the fold.

    Raises:
        NewerFormatError: A newer version has made the commit.
    """
    check_format(tp, current.metadata)
    positions = offsets_of(current, declared)
    if fold not in positions:
        return None
    others = {name: position for name, position in positions.items() if name != fold}
    if not others:
        return commit_of({fold: OffsetAndMetadata(start)})
    commit = commit_of(others)
    # Without metadata one offset serves all folds: it must not be above what the others need, nor above the start of this one.
    return commit if current.metadata else PartitionCommit(min(commit.offset, start), commit.metadata)


NOTHING_REMOVED: Final = "nothing was removed"


async def emittable_shards(redis: Redis, settings: Settings, name: str, tps: Collection[TP]) -> dict[TP, Fold]:
    """Find the shards of a fold from which records can be emitted.

    Returns:
        The partition of each such shard, with the fold that determines output topic and form of its records. This is the declared
        fold or, if the settings declare no fold of this name and source, the fold as it is stored in Redis.
    """
    scripts = FoldScripts(redis)
    declared = {fold.source: fold for fold in settings.folds if fold.name == name}
    found: dict[TP, Fold] = {}
    for tp in sorted(tps):
        emittable = await _store(scripts, settings, name, tp).left_behind()
        if emittable is not None:
            definition, topics = emittable
            found[tp] = declared.get(tp.topic) or retired_fold(tp, RecordShape.from_text(definition), orjson.loads(topics))
    return found


async def topic_id_of(redis: Redis, settings: Settings, name: str, tp: TP) -> str:
    """Return the stored id of the topic that a fold has read in a partition; "" if unknown."""
    return await _store(FoldScripts(redis), settings, name, tp).topic_id()


async def emit(settings: Settings, emittable: Mapping[TP, Fold], partitions: Mapping[str, int]) -> int:
    """Emit all open groups, with the reason ``flush``, and the records in the outboxes; see :func:`emit_all`."""
    producer = AckedProducer(settings.kafka, client_id=f"{settings.app_id}-reset")
    try:
        async with redis_of(settings) as redis:
            clock = TrustedClock(SystemClock())
            parts = FoldContext(settings, FoldScripts(redis), producer, clock, Metrics(settings), Status())
            return sum([await _emit_shard(parts, fold, tp, partitions[tp.topic]) for tp, fold in emittable.items()])
    finally:
        await producer.stop()


async def _emit_shard(parts: FoldContext, fold: Fold, tp: TP, partitions: int) -> int:
    shard = Shard(fold, tp, _store(parts.scripts, parts.settings, fold.name, tp))
    emitter = Emitter(shard, parts.producer, parts.dead_letter_sender_of(fold, tp), parts.clock, parts.metrics)
    try:
        # Claim without a topic id, so that the stored id stays: if the reset is interrupted, workers still reject the new log.
        await shard.claim(0, partitions)
        await shard.store_singly(singly=True)  # the next command or worker may have an older version
        await emitter.drain()
    except FencedError as error:
        fault = f"a worker, or another reset, has taken fold {fold.name!r} of {tp} over: stop it first"
        raise ConfigurationError([f"{fault}; {NOTHING_REMOVED}"]) from error
    except ConnectionError as error:
        done = f"{counted(emitter.acknowledged, 'record')} of {tp} acknowledged, {len(shard.outbox)} or more are not"
        raise TryAgainError(f"topic {fold.output}: {done} ({error}); {NOTHING_REMOVED}, repeat the command") from error
    return emitter.acknowledged


def _store(scripts: FoldScripts, settings: Settings, fold: str, tp: TP) -> ShardStore:
    return ShardStore(scripts, shard_keys(settings.app_id, fold, *tp))
