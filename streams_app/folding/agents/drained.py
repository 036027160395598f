"""Folds that are no longer declared: what is open leaves under the rule it was folded by.

A fold that was removed or renamed still has its mark in the commits of its source. Whoever claims a partition finds it there, and
what is left of it in Redis. The state stays: should another worker still have the fold (half-way through a rolling restart), it
goes on at its fence, and nothing of it is lost. ``streams-app reset`` removes state and mark.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

import orjson

from streams_app.delivery.batch import TP
from streams_app.delivery.partition_clock import ReaderView
from streams_app.errors import text_of
from streams_app.fold import RECORD_KEY, Fold
from streams_app.folding.agents.emission import Emitter
from streams_app.folding.agents.parts import Parts
from streams_app.folding.core.record import RecordShape
from streams_app.folding.shard.shard import Shard
from streams_app.folding.store.keys import shard_keys
from streams_app.folding.store.replies import RefusedError
from streams_app.folding.store.shard_store import ShardStore
from streams_app.redis_client import REDIS_ERRORS

logger = logging.getLogger(__name__)

RETRY_SECONDS: Final = 10.0


async def claimed(tp: TP, marks: Mapping[str, int], declared: Iterable[str], partitions: int, parts: Parts) -> list[Emitter]:
    """Claims what other folds than the declared ones have left in a partition; their groups are not yet emitted.

    Args:
        tp: The partition, which this process owns.
        marks: Of its commit: fold → offset.
        declared: Folds of this source that this worker has.
        partitions: Partition count of the source.
        parts: Of the worker.
    """
    emitters = []
    for name in sorted(set(marks) - set(declared)):
        store = ShardStore(parts.scripts, shard_keys(parts.settings.app_id, name, tp.topic, tp.partition))
        left = await store.left_behind()
        if left is None:
            continue
        definition, topics = left
        shard = Shard(_fold(tp, RecordShape.from_text(definition), orjson.loads(topics)), tp.topic, tp.partition, store)
        await shard.claim(marks[name], partitions)
        emitters.append(
            Emitter(shard, parts.producer, parts.clock, parts.metrics, view=lambda: ReaderView(None, None), trusted=lambda: True)
        )
    return emitters


def _fold(tp: TP, shape: RecordShape, topics: list[str]) -> Fold:
    """As much of a declaration as its records need."""
    output, dead_letters = topics
    values: dict[str, Any] = {
        "name": shape.fold,
        "source": tp.topic,
        "output": output,
        "dead_letters": dead_letters,
        "group_key": RECORD_KEY if shape.group_from == RECORD_KEY else shape.group_fields,
        "changed": shape.changed,
        "keep": shape.keep,
        "quiet_period": "1s",
    }
    return Fold(**values)


async def drain(emitter: Emitter, is_claimed: Callable[[], bool]) -> None:
    """Emits what is open, with the reason ``flush``; tried again until it is done or the partition is let go."""
    shard = emitter.shard
    name = shard.fold.name
    logger.warning(
        "fold is no longer declared, its open groups are emitted as they are fold=%s source=%s-%d output=%s; "
        "`streams-app reset --fold %s` removes what is left of it",
        name, shard.topic, shard.partition, shard.fold.output, name,
    )  # fmt: skip
    failures = 0
    while is_claimed():
        try:
            await emitter.drain()
        except RefusedError:
            return
        except (*REDIS_ERRORS, OSError) as error:
            if failures == 0:
                logger.warning(
                    "open groups cannot be emitted yet fold=%s source=%s-%d error=%s",
                    name, shard.topic, shard.partition, text_of(error),
                )  # fmt: skip
            failures += 1
            await asyncio.sleep(RETRY_SECONDS)
        else:
            logger.info("drained fold=%s source=%s-%d", name, shard.topic, shard.partition)
            return
