"""Shards for tests, used as by their owner: claimed, folded and emitted on a real Redis."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any, Literal, cast

from redis.asyncio import Redis

from streams_app.delivery.batch import TP
from streams_app.delivery.clocks import ReaderView, TrustedClock
from streams_app.delivery.producer import OutgoingRecord
from streams_app.fold import Fold
from streams_app.folding.agents.context import FoldContext
from streams_app.folding.agents.decoded_batches import DecodedBatchCache
from streams_app.folding.agents.emitter import Emitter
from streams_app.folding.core.event import FoldInput
from streams_app.folding.reading.readers import reader_of
from streams_app.folding.shard.shard import Shard
from streams_app.folding.store.keys import shard_keys
from streams_app.folding.store.replies import FoldOutcome
from streams_app.folding.store.scripts import FoldScripts
from streams_app.folding.store.shard_store import ShardStore
from streams_app.health.metrics import Metrics
from streams_app.health.status import Status
from streams_app.kafka.producer import AckedProducer
from streams_app.settings import Limits, Settings
from tests.conftest import Names
from tests.helpers.manual_clock import ManualClock

LIMITS = Limits()


class Answering:
    """A producer with configured answers: one outcome for each record."""

    def __init__(self, *outcomes: list[BaseException | None]) -> None:
        self.outcomes = list(outcomes)
        self.sent: list[list[OutgoingRecord]] = []

    async def send(self, records: Sequence[OutgoingRecord]) -> list[BaseException | None]:
        self.sent.append(list(records))
        return self.outcomes.pop(0) if self.outcomes else [None] * len(records)


async def claimed_shard(redis: Redis, names: Names, backlog: Literal["merge", "sessions"] = "merge") -> Shard:
    """Return the shard of a fold with last values, one group field and a quiet period of a second."""
    definition = Fold(
        name="f", source="t", group_key="a", changed="m", keep="last", quiet_period=timedelta(seconds=1), backlog=backlog
    )
    shard = Shard(definition, TP("t", 0), ShardStore(FoldScripts(redis), shard_keys(names.app_id, "f", "t", 0)))
    await shard.claim(0, 1)
    return shard


async def fold_some(shard: Shard, events: Sequence[FoldInput]) -> FoldOutcome:
    """Fold these events; return the result of the last step."""
    outcome = FoldOutcome.DONE
    for chunk in shard.chunks(events, events[-1][0], ReaderView(None, None), 10_000):
        progress = shard.begin(chunk, lambda: events)
        while (outcome := (await shard.fold_once(progress)).outcome) is FoldOutcome.MORE:
            pass
        if outcome is FoldOutcome.FULL:
            break
    return outcome


def emitter_of(shard: Shard, producer: Answering) -> Emitter:
    """Return the emitter of a shard that has read everything at second 50, the current time."""
    metrics = Metrics(Settings(app_id="a", folds=(shard.fold,)))
    clock: Any = TrustedClock(ManualClock(50_000))
    view = ReaderView(0, 50_000)
    dead_letters: Any = None
    return Emitter(shard, cast("AckedProducer", producer), dead_letters, clock, metrics, view=lambda: view)


def decoded_batches_of(fold: Fold) -> DecodedBatchCache:
    """Return the decoded batches of a fold that is alone in its source."""
    return DecodedBatchCache("a", {fold.name: reader_of(fold, LIMITS)}, LIMITS)


def context_of(redis_client: Redis, names: Names, fold: Fold, clock: TrustedClock) -> FoldContext:
    """Return the context of a fold processor, without a producer."""
    settings = Settings(app_id=names.app_id, folds=(fold,))
    return FoldContext(settings, FoldScripts(redis_client), cast("Any", None), clock, Metrics(settings), Status())
