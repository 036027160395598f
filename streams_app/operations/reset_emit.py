"""Emits what a fold has left in Redis, before a reset removes it: where its source is gone or was made again, no worker does.

A shard is claimed as by a worker, with a token of its own: a worker that still has it is refused, and a reset that another worker
overtakes is, too. The records have the ids and the content a worker would give them. Until the broker has acknowledged a record it
stays in the outbox, so whatever breaks off leaves nothing out, and the call may be repeated.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Final

import orjson
from redis.asyncio import Redis

from streams_app.clock import SystemClock
from streams_app.delivery.batch import TP
from streams_app.delivery.scripts import RefusedError
from streams_app.delivery.trusted_clock import TrustedClock
from streams_app.errors import ConfigurationError, TryAgainError
from streams_app.fold import Fold
from streams_app.folding.agents.context import FoldContext
from streams_app.folding.agents.emitter import Emitter
from streams_app.folding.agents.retired_folds import retired_fold
from streams_app.folding.core.record import RecordShape
from streams_app.folding.shard.shard import Shard
from streams_app.folding.store.keys import shard_keys
from streams_app.folding.store.scripts import FoldScripts
from streams_app.folding.store.shard_store import ShardStore
from streams_app.formatting import counted
from streams_app.health.metrics import Metrics
from streams_app.health.status import Status
from streams_app.kafka.producer import AckedProducer
from streams_app.operations.groups import redis_of
from streams_app.settings import Settings

NOTHING_REMOVED: Final = "nothing was removed"


async def left_of(redis: Redis, settings: Settings, name: str, tps: Collection[TP]) -> dict[TP, Fold]:
    """The shards of a fold from which something can be emitted, each with the fold that says where to.

    Args:
        redis: Client of the application's Redis.
        settings: Settings of the application.
        name: Name of the fold, declared or not.
        tps: Partitions of which the fold has state.
    """
    scripts = FoldScripts(redis)
    declared = {fold.source: fold for fold in settings.folds if fold.name == name}
    found: dict[TP, Fold] = {}
    for tp in sorted(tps):
        left = await _store(scripts, settings, name, tp).left_behind()
        if left is not None:
            definition, topics = left
            found[tp] = declared.get(tp.topic) or retired_fold(tp, RecordShape.from_text(definition), orjson.loads(topics))
    return found


async def topic_id_of(redis: Redis, settings: Settings, name: str, tp: TP) -> str:
    """The id of the topic that a fold has folded of a partition; "" where that is not known."""
    return await _store(FoldScripts(redis), settings, name, tp).topic_id()


async def emit(settings: Settings, left: Mapping[TP, Fold], partitions: Mapping[str, int]) -> int:
    """Emits all open groups, with the reason ``flush``, and what waits in the outboxes.

    Args:
        settings: Settings of the application.
        left: What :func:`left_of` has found.
        partitions: Source → how many partitions it had; versions of records say so.

    Returns:
        Number of groups that were emitted.

    Raises:
        TryAgainError: Redis does not answer, or the broker has not acknowledged everything.
        ConfigurationError: Somebody else has taken a shard over.
    """
    producer = AckedProducer(settings.kafka, client_id=f"{settings.app_id}-reset")
    try:
        async with redis_of(settings) as redis:
            clock = TrustedClock(SystemClock())
            parts = FoldContext(settings, FoldScripts(redis), producer, clock, Metrics(settings), Status())
            return sum([await _emit_shard(parts, fold, tp, partitions[tp.topic]) for tp, fold in left.items()])
    finally:
        await producer.stop()


async def _emit_shard(parts: FoldContext, fold: Fold, tp: TP, partitions: int) -> int:
    shard = Shard(fold, tp, _store(parts.scripts, parts.settings, fold.name, tp))
    emitter = Emitter(shard, parts.producer, parts.dead_letters_of(fold, tp), parts.clock, parts.metrics)
    try:
        # No id of the source: the state keeps the one it has. Should the reset break off, workers still refuse the new log.
        await shard.claim(0, partitions)
        await emitter.drain()
    except RefusedError as error:
        fault = f"a worker, or another reset, has taken fold {fold.name!r} of {tp} over: stop it first"
        raise ConfigurationError([f"{fault}; {NOTHING_REMOVED}"]) from error
    except ConnectionError as error:
        done = f"{counted(emitter.acknowledged, 'record')} of {tp} acknowledged, {len(shard.outbox)} or more are not"
        raise TryAgainError(f"topic {fold.output}: {done} ({error}); {NOTHING_REMOVED}, repeat the command") from error
    return emitter.acknowledged


def _store(scripts: FoldScripts, settings: Settings, fold: str, tp: TP) -> ShardStore:
    return ShardStore(scripts, shard_keys(settings.app_id, fold, *tp))
