"""Emission of a shard on a real Redis: acknowledged records are finished, and groups of a former definition leave first."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from aiokafka.errors import KafkaError
from redis.asyncio import Redis

from streams_app.delivery.batch import TP
from streams_app.delivery.clocks import ReaderView
from streams_app.fold import Fold
from streams_app.folding.core.event import FoldEvent
from streams_app.folding.shard.shard import Shard
from streams_app.folding.store.keys import shard_keys
from streams_app.folding.store.replies import FoldOutcome
from streams_app.folding.store.scripts import FoldScripts
from streams_app.folding.store.shard_store import ShardStore
from tests.conftest import Names
from tests.helpers.folding.scripts import entries_of, sealed_in
from tests.helpers.folding.shards import Answering, claimed_shard, emitter_of, fold_some

# Acknowledgments


@pytest.mark.parametrize("rejected", [0, 1, 2])
async def test_split_record_is_finished_only_when_every_part_is_acknowledged(
    redis_client: Redis, names: Names, rejected: int
) -> None:
    shard = await claimed_shard(redis_client, names)
    await fold_some(shard, [FoldEvent(0, 1_000, b"sa", {f"n{number}": "x" * 500_000 for number in range(3)})])
    answer: list[BaseException | None] = [None] * 3
    answer[rejected] = KafkaError()
    producer = Answering(answer)
    emitter = emitter_of(shard, producer)
    failed = await emitter.emit_due_once()
    waiting = await sealed_in(shard.store)
    done = await emitter.emit_due_once()

    assert (0, 1, [0]) == (failed.records, done.records, [first for first, _ in waiting])
    assert producer.sent[0] == producer.sent[1]
    assert [] == await sealed_in(shard.store)


async def test_open_groups_stay_open_while_the_broker_does_not_acknowledge(redis_client: Redis, names: Names) -> None:
    shard = await claimed_shard(redis_client, names)
    await fold_some(shard, [FoldEvent(0, 1_000, b"sa", {"u": 1})])
    emitter = emitter_of(shard, Answering([KafkaError()], [KafkaError()]))
    await emitter.emit_due_once()
    await fold_some(shard, [FoldEvent(1, 1_000, b"sb", {"u": 1})])
    emitter.clock.now_ms = lambda: 52_000  # type: ignore[method-assign]  # it is due
    emitter.view = lambda: ReaderView(0, 52_000)
    failed = await emitter.emit_due_once()
    waiting = len(shard.outbox)
    done = await emitter.emit_due_once()

    assert (True, 1, 2) == (failed.failed is not None, waiting, done.records)


async def test_entry_with_records_that_are_not_acknowledged_stays_and_only_these_are_sent_again(
    redis_client: Redis, names: Names
) -> None:
    shard = await claimed_shard(redis_client, names)
    await fold_some(shard, [FoldEvent(number, 1_000, b"s%d" % number, {"u": 1}) for number in range(5)])
    producer = Answering([None, KafkaError(), None, KafkaError(), None])
    emitter = emitter_of(shard, producer)
    failed = await emitter.emit_due_once()
    left = [entry.first_offset for entry in shard.outbox]
    [(first, stored)], low = await entries_of(shard.store), await shard.store.watermark()
    done = await emitter.emit_due_once()

    assert (3, [stored[1], stored[3]], 0, 0) == (failed.records, left, first, low)
    assert [0, 1, 2, 3, 4] == sorted(stored)  # they are due at the same time, in any order
    assert (2, 2, []) == (done.records, len(producer.sent[1]), await sealed_in(shard.store))
    assert 5 == await shard.store.watermark()


# Changed definition


async def test_groups_of_the_former_definition_are_emitted_before_anything_is_folded(redis_client: Redis, names: Names) -> None:
    former = await claimed_shard(redis_client, names)
    await fold_some(former, [FoldEvent(0, 1_000, b"sa", {"u": 1})])
    other = Fold(name="f", source="t", group_key=("a", "b"), changed="n", keep="last", quiet_period=timedelta(seconds=1))
    heir = Shard(other, TP("t", 0), former.store)
    await heir.claim(0, 1)
    assert FoldOutcome.FULL is await fold_some(heir, [FoldEvent(1, 1_000, b'j["a",1]', {"u": 1})])
    await emitter_of(heir, Answering()).emit_due_once()
    await fold_some(heir, [FoldEvent(1, 1_000, b'j["a",1]', {"u": 1})])

    assert (1, heir.definition.present) == (heir.fence, heir.definition.stored)


async def test_groups_by_a_field_named_key_are_emitted_before_groups_by_the_record_key(redis_client: Redis, names: Names) -> None:
    keys = shard_keys(names.app_id, "f", "t", 0)
    producer = Answering()
    keys_of_groups: list[Any] = ["key", "@key", lambda _: "a"]
    for number, group_key in enumerate(keys_of_groups):
        definition = Fold(name="f", source="t", group_key=group_key, changed="m", quiet_period=timedelta(hours=1))
        shard = Shard(definition, TP("t", 0), ShardStore(FoldScripts(redis_client), keys))
        await shard.claim(0, 1)
        await emitter_of(shard, producer).emit_due_once()
        await fold_some(shard, [FoldEvent(number, 1_000, b"sa", {"u": 1})])

    assert [b"f:t:0:0-0", b"f:t:0:1-1"] == [record.headers[0][1] for sent in producer.sent for record in sent]
