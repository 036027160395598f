"""Explains what a fold did with one event of its source, for subscribers that read the records of the fold."""

from __future__ import annotations

from typing import Any, Final

from aiokafka import TopicPartition
from msgspec.structs import replace
from redis.asyncio import Redis

from streams_app.delivery.batch import TP, Batch
from streams_app.errors import ConfigurationError
from streams_app.fold import Fold
from streams_app.folding.reading.reader import RangeFaults
from streams_app.folding.reading.readers import reader_of
from streams_app.folding.reading.replay_routing import RoutedRange
from streams_app.folding.store.drop_request import DropAnswer
from streams_app.formatting import counted, escaped, group_value
from streams_app.kafka.admin import admin_client, partition_counts
from streams_app.kafka.log_ends import stable_ends
from streams_app.kafka.log_reader import log_reader, read_ranges
from streams_app.operations.event_facts import FoldedEventState
from streams_app.operations.group_facts import GroupDrop
from streams_app.operations.groups import StoredShard, group_text, redis_of, rows_of, stored_shards
from streams_app.schemas.registry import registry_of
from streams_app.settings import Settings

_GONE: Final = "the log no longer has a record at this offset, so its group is unknown"


async def explain_folded_event(settings: Settings, fold: Fold, partition: int, offset: int) -> FoldedEventState:
    """Return what became of an event of a fold's source: it is in a record, an open or a dropped group, or a dead letter."""
    record, end = await _record(settings, fold, partition, offset)
    member, fault = (None, _GONE) if record is None else await _group(settings, fold, partition, record)
    async with redis_of(settings) as redis:
        shard = next((each for each in await stored_shards(redis, settings, fold.name) if each.partition == partition), None)
        read_to = None if shard is None else shard.fence
        found = FoldedEventState("not-folded", fold.name, fold.source, partition, offset, fold.output, end, read_to)
        if shard is None or offset > shard.fence or offset >= end:
            return found
        if member is None:
            drops = await _drops_around(redis, shard, offset)
            return replace(found, verdict="no-group", why=fault, drops=drops)
        answer: Any = await redis.hget(shard.keys.dropped, member)
        score: Any = await redis.zscore(shard.keys.first, member)
        rows = await rows_of(redis, shard, [(member, score)]) if score is not None else []
    found = replace(found, verdict="closed", group=group_text(member), key=group_value(member))
    dropped = DropAnswer.from_text(answer) if answer else None
    if dropped is not None and dropped.first_offset <= offset <= dropped.last_offset:
        return replace(found, verdict="dropped", drops=(GroupDrop.of(shard, member, dropped),))
    return replace(found, verdict="open") if rows and offset >= rows[0].first_offset else found


async def _record(settings: Settings, fold: Fold, partition: int, offset: int) -> tuple[Any, int]:
    """Return the record at an offset, or None if the log has none there; and the last stable offset of the partition."""
    async with admin_client(settings.kafka) as client:
        count = (await partition_counts(client, [fold.source])).get(fold.source, 0)
    if partition >= count:
        raise ConfigurationError([f"topic {fold.source!r} has {counted(count, 'partition')}, numbered from 0, not {partition}"])
    tp = TopicPartition(fold.source, partition)
    async with log_reader(settings.kafka, fold.source, range(count)) as consumer:
        begin, end = (await consumer.beginning_offsets([tp]))[tp], (await stable_ends(consumer, [tp]))[tp]
        if begin <= offset < end:
            batches: list[Batch] = [batch async for batch in read_ranges(consumer, {TP(*tp): (offset, offset + 1)})]
            return next((record for batch in batches for record in batch.records if record.offset == offset), None), end
    return None, end


async def _group(settings: Settings, fold: Fold, partition: int, record: Any) -> tuple[bytes | None, str]:
    """Return the group key of an event, and "". If the event has no group, return None and the reason."""
    registry = registry_of(settings, [fold.format])
    if registry is not None:
        await registry.prepare((record.key, record.value))
    folds = [one.name for one in settings.folds if one.source == fold.source]
    mine, _ = RoutedRange(settings.app_id, folds, [record], None).records_for(fold.name, RangeFaults())
    taken = reader_of(fold, settings.limits, registry).read(mine)
    if taken.rejected:
        return None, f"it is a dead letter of the fold, {escaped(taken.rejected[0].reason)} ({escaped(taken.rejected[0].detail)})"
    if not taken.events:
        return None, "the fold skips it, by only, source_filter or tombstones, or it was replayed for another fold"
    return taken.events[0].group, ""


async def _drops_around(redis: Redis, shard: StoredShard, offset: int) -> tuple[GroupDrop, ...]:
    """Return the dropped groups whose range of offsets contains an offset; the event may have been in one of them."""
    stored: Any = await redis.hgetall(shard.keys.dropped)
    answers = {member: DropAnswer.from_text(text) for member, text in stored.items()}
    return tuple(
        GroupDrop.of(shard, member, answer)
        for member, answer in answers.items()
        if answer.first_offset <= offset <= answer.last_offset
    )
