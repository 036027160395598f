"""Removes a fold's state: after its source was deleted and made again, or to uninstall it.

Removed are the fold's keys in Redis and its mark in the committed offsets. The fold then begins by its ``start``, as a new one. It
needs the workers of the application to be stopped: Kafka refuses to move the offsets of a group that has members.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any, Final

import orjson
from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.errors import KafkaError
from aiokafka.structs import OffsetAndMetadata
from redis.asyncio import Redis

from streams_app.errors import ConfigurationError, TryAgainError
from streams_app.folding.keys import APP_PATTERN
from streams_app.kafka.admin import admin_client
from streams_app.kafka.client import client_options
from streams_app.operating.groups import redis_of
from streams_app.settings import Settings

SCAN_COUNT: Final = 1_000
SHARD: Final = re.compile(rb"^\{[^/]+/([^/]+)/([^/]+)/(\d+)\}:")


@dataclass(slots=True)
class Plan:
    """What a reset removes.

    Attributes:
        keys: Keys in Redis.
        open_groups: Groups that would never be emitted.
        outbox: Records that may not have been sent.
        offsets: Partition → the offset to be committed instead, with its metadata.
        missing: Sources that do not exist: what was committed for them is gone with them.
    """

    keys: list[bytes] = field(default_factory=list)
    open_groups: int = 0
    outbox: int = 0
    offsets: dict[TopicPartition, OffsetAndMetadata] = field(default_factory=dict)
    missing: list[str] = field(default_factory=list)


async def plan(settings: Settings, fold: str) -> Plan:
    """Finds out what a reset would remove; changes nothing.

    Args:
        settings: Of the application; the fold need not be among its folds any more.
        fold: Name.

    Raises:
        TryAgainError: Redis or Kafka does not answer.
    """
    found = Plan()
    # All of them: a fold that is not declared any more, and has lost its state, still has its marks in the commits.
    sources: set[str] = {declared.source for declared in settings.folds}
    async with redis_of(settings) as redis:
        pattern = APP_PATTERN.format(app_id=settings.app_id).replace("/*", f"/{fold}/*")
        async for key in redis.scan_iter(match=pattern, count=SCAN_COUNT):
            found.keys.append(key)
            if match := SHARD.match(key):
                sources.add(match[2].decode())
            await _count(redis, key, found)
    async with _consumer(settings) as consumer:
        there = await consumer.topics()
        found.missing = sorted(sources - there)
        for source in sorted(sources & there):
            await _plan_offsets(settings, consumer, fold, source, found)
    return found


async def carry_out(settings: Settings, planned: Plan) -> None:
    """Removes what was planned: the offsets first, as Kafka knows whether a worker still runs.

    Raises:
        ConfigurationError: A worker of the application is running.
        TryAgainError: Redis or Kafka does not answer; may be repeated.
    """
    async with _consumer(settings) as consumer:
        if planned.offsets:
            consumer.assign(list(planned.offsets))
            try:
                await consumer.commit(planned.offsets)
            except KafkaError as error:
                raise ConfigurationError(
                    [f"Kafka refuses to move the offsets of group {settings.app_id!r}: stop its workers first ({error!r})"]
                ) from error
    async with redis_of(settings) as redis:
        for begin in range(0, len(planned.keys), SCAN_COUNT):
            async with redis.pipeline(transaction=False) as pipe:
                for key in planned.keys[begin : begin + SCAN_COUNT]:
                    pipe.unlink(key)
                await pipe.execute()


async def members(settings: Settings) -> int:
    """How many workers the application's group has now; 0 where the broker does not tell.

    Raises:
        TryAgainError: Kafka does not answer.
    """
    async with admin_client(settings.kafka) as client:
        try:
            (reply,) = await client.describe_consumer_groups([settings.app_id])
            return sum(len(group[5]) for group in reply.groups if group[0] == 0)
        except (KafkaError, ValueError, IndexError, AttributeError):
            return 0


async def _count(redis: Redis, key: bytes, found: Plan) -> None:
    if key.endswith(b"}:v1:first"):
        found.open_groups += await redis.zcard(key)
    elif key.endswith(b"}:v1:outbox"):
        found.outbox += await redis.zcard(key)


async def _plan_offsets(settings: Settings, consumer: AIOKafkaConsumer, fold: str, source: str, found: Plan) -> None:
    partitions = consumer.partitions_for_topic(source) or await _partitions(consumer, source)
    tps = [TopicPartition(source, number) for number in sorted(partitions)]
    if not tps:
        return
    begins, ends = await consumer.beginning_offsets(tps), await consumer.end_offsets(tps)
    committed = await consumer._coordinator.fetch_committed_offsets(tps)
    for tp in tps:
        held = committed.get(tp)
        if held is None or held.offset < 0:
            continue
        if not _concerns(
            held.metadata, fold, any(fold == declared.name and source == declared.source for declared in settings.folds)
        ):
            continue
        start = next((declared.start for declared in settings.folds if declared.name == fold), "earliest")
        offset = begins[tp] if start == "earliest" else ends[tp]
        found.offsets[tp] = without_mark(held.offset, held.metadata, fold, offset)


def _concerns(metadata: str, fold: str, is_declared: bool) -> bool:
    """Whether a commit says something of a fold: by its mark; without marks it is every declared fold's."""
    marks = _marks(metadata)
    return fold in marks if marks else is_declared


def _marks(metadata: str) -> dict[str, int]:
    try:
        marks: Any = orjson.loads(metadata) if metadata else {}
    except orjson.JSONDecodeError:
        return {}
    return marks if isinstance(marks, dict) else {}


def without_mark(committed: int, metadata: str, fold: str, start: int) -> OffsetAndMetadata:
    """The commit of a partition without one fold's mark (pure).

    Args:
        committed: Offset now.
        metadata: Of that commit.
        fold: To be removed.
        start: Where it would begin as a new fold.

    Returns:
        The marks of the other folds; where there is none, the offset at which the fold begins, as its mark.
    """
    others = {name: mark for name, mark in _marks(metadata).items() if name != fold}
    if not others:
        return OffsetAndMetadata(start, orjson.dumps({fold: start}).decode())
    return OffsetAndMetadata(min(others.values()), orjson.dumps(dict(sorted(others.items()))).decode())


async def _partitions(consumer: AIOKafkaConsumer, source: str) -> set[int]:
    await consumer._client.add_topic(source)
    await consumer._client.force_metadata_update()
    return set(consumer.partitions_for_topic(source) or ())


class _consumer:  # used as a context manager only
    """A consumer in the application's group that joins nothing: it may commit while the group has no members."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._consumer = AIOKafkaConsumer(
            **client_options(settings.kafka), group_id=settings.app_id, enable_auto_commit=False, isolation_level="read_committed"
        )

    async def __aenter__(self) -> AIOKafkaConsumer:
        try:
            await self._consumer.start()
        except (KafkaError, OSError, TimeoutError) as error:
            await self._consumer.stop()
            servers = self._settings.kafka.bootstrap_servers
            raise TryAgainError(f"cannot reach Kafka at {servers}: {str(error) or type(error).__name__}") from error
        return self._consumer

    async def __aexit__(self, *_: object) -> None:
        await self._consumer.stop()
