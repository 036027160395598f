"""Emits the open groups of retired folds, which are no longer declared, under their former definition.

A fold that was removed or renamed still has its position in the commits of its source. The next claim of a partition finds the
position there, and the rest of the state in Redis. The state stays: during a rolling restart, a worker that still declares the fold
continues at its fence, and no event is lost. ``streams-app reset`` removes state and position.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import orjson

from streams_app.delivery.batch import TP, Batch
from streams_app.delivery.claim import Claim
from streams_app.delivery.offset_metadata import OffsetAndMetadata
from streams_app.delivery.processor import NO_OFFSET, Processor
from streams_app.delivery.scripts import FencedError
from streams_app.delivery.tasks import run
from streams_app.errors import text_of
from streams_app.fold import EVENTS, RECORD_KEY, Fold
from streams_app.folding.agents.context import FoldContext
from streams_app.folding.agents.emitter import Emitter
from streams_app.folding.core.record import RecordShape
from streams_app.folding.shard.shard import Shard
from streams_app.folding.store.replies import RESYNC_CAUSES
from streams_app.folding.store.shard_store import ShardStore
from streams_app.redis_access.client import REDIS_ERRORS
from streams_app.reported_backoff import ReportedBackoff
from streams_app.retries import retried

logger = logging.getLogger(__name__)


class RetiredFoldProcessor(Processor):
    """Emits the remaining groups of a retired fold in a partition; receives no batches."""

    in_flight = 0

    def __init__(self, store: ShardStore, context: FoldContext) -> None:
        self._store = store
        self._context = context
        self._committed: OffsetAndMetadata | None = None
        self._shard: Shard | None = None
        self._task: asyncio.Task[None] | None = None

    async def claim(self, claim: Claim) -> int:
        """Take over the shard only if Redis still stores open groups or sealed records of the fold; return ``NO_OFFSET``."""
        self._committed = claim.committed
        left = await self._store.left_behind()
        if left is None or claim.committed is None:
            return NO_OFFSET
        definition, topics = left
        fold = retired_fold(claim.tp, RecordShape.from_text(definition), orjson.loads(topics))
        self._shard = shard = Shard(fold, claim.tp, self._store)
        await shard.claim(claim.committed.offset, claim.partitions, claim.topic_id, claim.token)
        await shard.store_singly(singly=True)
        context = self._context
        emitter = Emitter(
            shard, context.producer, context.dead_letter_sender_of(fold, claim.tp), context.clock, context.metrics,
            tracing=context.record_tracing_of(shard),
        )  # fmt: skip
        self._task = run(claim, emit_open_groups(emitter), f"drain {fold.name} {claim.tp}", RESYNC_CAUSES)
        return NO_OFFSET

    def deliver(self, batch: Batch) -> None: ...

    async def position_to_commit(self) -> OffsetAndMetadata | None:
        low = await self._store.watermark() if self._shard else None
        return self._committed if low is None or self._committed is None else OffsetAndMetadata(low, self._committed.metadata)

    async def revoke(self, seconds: float) -> None:
        if self._shard:
            self._shard.release()
        if self._task:
            self._task.cancel()


def retired_fold(tp: TP, shape: RecordShape, topics: list[str]) -> Fold:
    """Create a declaration by which the open groups of a retired fold become the same records as before.

    The shape and the topics (output, then dead letters) are those that Redis stores.
    """
    output, dead_letter_topic = topics
    values: dict[str, Any] = {
        "name": shape.fold,
        "source": tp.topic,
        "output": output,
        "dead_letters": dead_letter_topic,
        "group_key": RECORD_KEY if shape.group_from == RECORD_KEY else shape.group_fields,
        "changed": "" if shape.keep == EVENTS else shape.changed,
        "keep": shape.declared_keep(),
        "quiet_period": "1s",
    }
    return Fold(**values)


async def emit_open_groups(emitter: Emitter) -> None:
    """Emit all open groups with the reason ``flush``; retry until all are emitted, or until the partition must be claimed again."""
    shard = emitter.shard
    name = shard.fold.name
    logger.warning(
        "fold is no longer declared, its open groups are emitted unchanged fold=%s source=%s output=%s; "
        "`streams-app reset --fold %s` removes the rest of its state",
        name, shard.tp, shard.fold.output, name,
    )  # fmt: skip
    backoff = ReportedBackoff(first_seconds=1.0, longest_seconds=10.0)

    async def reported(error: BaseException) -> float:
        if backoff.should_report:
            logger.warning("open groups cannot be emitted yet fold=%s source=%s error=%s", name, shard.tp, text_of(error))
        if not shard.is_claimed:
            raise FencedError("seal", "lost-reply") from error
        return backoff.failed()

    await retried(emitter.drain, (*REDIS_ERRORS, OSError), reported)
    logger.info("all open groups of the retired fold are emitted fold=%s source=%s", name, shard.tp)
