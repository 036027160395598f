"""Explains why a group has not been emitted, with facts from Redis, the broker and a worker; changes nothing."""

from __future__ import annotations

import asyncio
from typing import Any

from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.errors import KafkaError
from redis.asyncio import Redis

from streams_app.clock import Clock
from streams_app.codec import keys_typed
from streams_app.errors import ConfigurationError
from streams_app.fold import Fold
from streams_app.folding.store.drop_request import DropAnswer
from streams_app.folding.store.open_groups import read_groups
from streams_app.kafka.admin import ANSWER_SECONDS
from streams_app.kafka.client import client_options
from streams_app.kafka.log_ends import high_watermarks, stable_ends
from streams_app.operations.folded_events import pointer_to_journal
from streams_app.operations.group_facts import FoundGroup, GroupDrop, GroupExplanation, Reopening, state_of
from streams_app.operations.groups import StoredShard, listed_group, outbox_counts, redis_of, stored_shards
from streams_app.operations.worker_pages import Page, pages, usual_url
from streams_app.settings import Settings
from streams_app.tuning.live import live_metrics_in


async def find(redis: Redis, stored: list[StoredShard], group: str) -> list[FoundGroup]:
    """Return the state of a group in each shard in which the group is open or has records in the outbox."""
    found = []
    for shard in stored:
        sealed = await outbox_counts(redis, shard)
        for member in keys_typed(group):
            score: Any = await redis.zscore(shard.keys.first, member)
            contents = await read_groups(redis, shard.keys, [member], with_names=True) if score is not None else {}
            row, names = None, list[str]()
            if content := contents.get(member):
                row = listed_group(shard, member, content)
                names = sorted(name.decode("utf-8", "backslashreplace") for name in content.names)
            if row is not None or member in sealed:
                found.append(FoundGroup(shard, member, row, tuple(names), sealed.get(member, 0)))
    return found


async def explain(settings: Settings, fold: Fold, group: str, clock: Clock) -> GroupExplanation:
    """Collect what is known of a group.

    Args:
        settings: Redis has to answer. The broker and a worker need not answer.
        group: Group key as typed, see :func:`.keys_typed`.
    """
    async with redis_of(settings) as redis:
        stored = await stored_shards(redis, settings, fold.name)
        if not stored:
            raise ConfigurationError([f"fold {fold.name!r} has no state in Redis: no worker has ever claimed a partition of it"])
        found = await find(redis, stored, group)
        metas: list[Any] = [await redis.hgetall(each.shard.keys.meta) for each in found]
        drops = await _drops(redis, stored, group)
    reopening = await _reopening(settings, fold)
    ends = await asyncio.gather(*[_end(settings, each.shard) for each in found])
    now_ms = clock.now_ms()
    states = tuple(
        state_of(each, fold, meta, end, now_ms, drops.get((each.shard.partition, each.member)))
        for each, meta, end in zip(found, metas, ends, strict=True)
    )
    return GroupExplanation(
        fold.name, fold.source, fold.output, fold.dead_letters, group, now_ms, len(stored), states, tuple(drops.values()),
        reopening, pointer_to_journal(settings, fold, group),
    )  # fmt: skip


async def _drops(redis: Redis, stored: list[StoredShard], group: str) -> dict[tuple[int, bytes], GroupDrop]:
    """Return the last ``streams-app groups drop`` of a group, by partition and group key."""
    found = {}
    for shard in stored:
        for member in keys_typed(group):
            text: Any = await redis.hget(shard.keys.dropped, member)
            if text:
                found[shard.partition, member] = GroupDrop.of(shard, member, DropAnswer.from_text(text))
    return found


async def _reopening(settings: Settings, fold: Fold) -> Reopening:
    url = usual_url(settings.http)
    return reopening_in((await pages(settings, [url]))[0] if url else None, fold)


def reopening_in(page: Page | None, fold: Fold) -> Reopening:
    """Return how often groups of a fold reopen, by the metrics of a worker, or why that is not known (pure)."""
    within_ms = fold.quiet_period_ms
    if page is None:
        return Reopening(None, "not known: http.port is 0, so no worker can be asked", within_ms)
    if page.text is None:
        return Reopening(page.url, f"not known: {page.url} {page.fault}", within_ms)
    try:
        live_metrics = live_metrics_in(page.text, fold.name)
    except (ValueError, KeyError):
        return Reopening(page.url, f"not known: the worker at {page.url} is of another version", within_ms)
    if live_metrics is None:
        return Reopening(page.url, f"not known: the worker at {page.url} does not have this fold", within_ms)
    emitted = live_metrics.emitted
    if not emitted:
        return Reopening(page.url, f"not known yet: the worker at {page.url} has emitted no record of this fold", within_ms)
    return Reopening(page.url, "", within_ms, emitted, min(live_metrics.split, emitted), live_metrics.share < 1)


async def _end(settings: Settings, shard: StoredShard) -> tuple[int, int] | None:
    """Return the last stable offset of a partition and its high watermark; None if the broker does not answer in time."""
    tp = TopicPartition(shard.fold.source, shard.partition)
    consumer = AIOKafkaConsumer(
        **client_options(settings.kafka), isolation_level="read_committed", request_timeout_ms=int(ANSWER_SECONDS * 1_000)
    )
    try:
        async with asyncio.timeout(ANSWER_SECONDS):
            await consumer.start()
            stable = (await stable_ends(consumer, [tp]))[tp]
            return stable, max(stable, (await high_watermarks(consumer, [tp]))[tp])
    except (KafkaError, OSError, TimeoutError):
        return None
    finally:
        await consumer.stop()
