"""Groups that an operator drops, on a real Redis: they leave without a record, and others stay."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
from redis.asyncio import Redis
from redis.exceptions import ResponseError

from streams_app.delivery.scripts import FencedError
from streams_app.folding.core.event import FoldEvent
from streams_app.folding.store.drop_request import DropAnswer, DropRequest
from streams_app.folding.store.keys import EVERYTHING, shard_keys
from streams_app.folding.store.scripts import FoldScripts
from streams_app.folding.store.shard_store import ShardStore
from tests.conftest import Names
from tests.helpers.folding.scripts import edited, emptied, fold, new_store, one, open_groups, outbox_of, seal
from tests.helpers.folding.shards import Answering, claimed_shard, emitter_of, fold_some
from tests.simulation.redis import dying

pytestmark = pytest.mark.usefixtures("each_form")


@pytest.fixture
async def store(redis_client: Redis, names: Names) -> ShardStore:
    made = ShardStore(FoldScripts(redis_client), shard_keys(names.app_id, "f", "t", 0))
    await made.claim("me", -1, b"eeee", "")
    return made


async def request(store: ShardStore, group: bytes, first_offset: int) -> None:
    await store.redis.hset(store.keys.drop, group, DropRequest(first_offset, "anna@host", "a loop").to_text())


async def stored_answers(store: ShardStore) -> dict[bytes, bytes]:
    found: Any = await store.redis.hgetall(store.keys.dropped)
    return dict(found)


async def test_dropped_group_makes_no_record_and_the_next_event_reopens_it(store: ShardStore) -> None:
    for offset, group in enumerate([b"sa", b"sb", b"sa"]):
        await fold(store, offset - 1, one(offset, group))
    await request(store, b"sa", 0)
    done = await seal(store, 2, 0)
    watermark = await store.watermark()
    await fold(store, 2, one(3, b"sa"))
    opened = await open_groups(store)

    assert [(b"sa", 0, 2, 2, DropRequest(0, "anna@host", "a loop"))] == done.dropped
    assert ([], [], 1, 1) == (done.sealed, await outbox_of(store), done.open_groups, watermark)
    assert {b"sa": (3, 1), b"sb": (1, 1)} == {
        group: (content.numbers.first_offset, content.numbers.events) for group, content in opened.items()
    }
    assert (0, [b"sa"]) == (await store.redis.exists(store.keys.drop), list(await stored_answers(store)))
    answer = DropAnswer.from_text((await stored_answers(store))[b"sa"])
    assert DropAnswer(0, 2, 2, 1_000, DropRequest(0, "anna@host", "a loop")) == answer
    assert 0 < await store.redis.ttl(store.keys.dropped) <= 7 * 86_400
    assert [] == (await seal(store, 3, 0)).dropped


@pytest.mark.parametrize("text", ["1 [", "x", ""])
async def test_request_for_another_fold_of_the_group_drops_nothing_and_is_removed(store: ShardStore, text: str) -> None:
    await fold(store, -1, one(0))
    await store.redis.hset(store.keys.drop, b"sa", text)
    await request(store, b"sgone", 0)
    done = await seal(store, 0, 0)

    assert ([], 1) == (done.dropped, done.open_groups)
    assert [0, 0] == [await store.redis.exists(key) for key in (store.keys.drop, store.keys.dropped)]


async def test_dropped_group_has_no_record_even_if_it_is_due_or_flushed(store: ShardStore) -> None:
    for offset, group in enumerate([b"sa", b"sb", b"sc"]):
        await fold(store, offset - 1, one(offset, group))
        if group != b"sc":
            await request(store, group, offset)
    await store.redis.sadd(store.keys.flush, EVERYTHING)
    done = await seal(store, 2, 90_000)

    assert ([b"sc"], {b"sa", b"sb"}) == ([entry.member for entry in done.sealed], {group.member for group in done.dropped})
    assert (0, 0) == (done.open_groups, await store.redis.exists(store.keys.flush))


@pytest.mark.parametrize(("cursor", "leaves"), [(b"sb", False), (b"sc", True)])
async def test_group_above_the_fence_is_dropped_once_the_range_has_passed_it(
    store: ShardStore, cursor: bytes, leaves: bool
) -> None:
    await fold(store, -1, one(3, b"sc"))
    # As a script leaves it that died half-way.
    await store.redis.hset(store.keys.meta, mapping={"fence": 1, "to": 9, "cursor": cursor, "cap": 0, "arrived": ""})
    await request(store, b"sc", 3)
    done = await seal(store, 1, 1_000)
    left = await store.redis.hexists(store.keys.drop, "sc")
    everything = await seal(store, 1, 1_000, everything=True)

    assert ([b"sc"] if leaves else [], not leaves) == ([group.member for group in done.dropped], left)
    assert ([] if leaves else [b"sc"], []) == ([group.member for group in everything.dropped], everything.sealed)


async def test_many_drop_requests_are_handled_in_batches(store: ShardStore) -> None:
    for offset in range(5):
        await fold(store, offset - 1, one(offset, b"s%d" % offset))
        await request(store, b"s%d" % offset, offset)
    counts = [len((await seal(store, 4, 90_000, limit=2)).dropped) for _ in range(4)]

    assert ([2, 2, 1, 0], []) == (counts, await outbox_of(store))


async def test_fenced_owner_drops_nothing(store: ShardStore) -> None:
    await fold(store, -1, one(0))
    await request(store, b"sa", 0)
    with pytest.raises(FencedError, match="token"):
        await seal(store, 0, 0, token="another")

    assert ({b"sa"}, True) == (set(await open_groups(store)), await store.redis.hexists(store.keys.drop, "sa"))


async def test_drop_is_repeated_after_its_script_dies_at_any_write(redis_client: Redis) -> None:
    deaths = 0
    for writes in range(12):
        store = new_store(redis_client)
        await store.claim("me", -1, b"eeee", "")
        for offset, group in enumerate([b"sa", b"sb", b"sc"]):
            await fold(store, offset - 1, one(offset, group))
        await request(store, b"sa", 0)
        try:
            await seal(edited(store, partial(dying, writes=writes), "seal"), 2, 1_011)
        except ResponseError as error:
            assert "the script fails here" in str(error)
            deaths += 1
        await seal(store, 2, 1_011)

        assert {b"sb", b"sc"} == {entry.member for entry in await outbox_of(store)}
        answer = b'0 1 0 1011 0 ["anna@host","a loop"]'
        assert ({}, {b"sa": answer}) == (await open_groups(store), await stored_answers(store))
        assert (0, 1) == (await store.redis.exists(store.keys.drop), await store.watermark())
        await emptied(store)
    assert 4 < deaths < 12


async def test_dropped_group_is_counted_and_logged_with_requester_and_reason(
    redis_client: Redis, names: Names, caplog: pytest.LogCaptureFixture
) -> None:
    shard = await claimed_shard(redis_client, names)
    await fold_some(shard, [FoldEvent(0, 49_000, b"sa", {"u": 1})])
    producer = Answering()
    emitter = emitter_of(shard, producer)
    await request(shard.store, b"sa", 0)
    with caplog.at_level("WARNING"):
        await emitter.emit_due_once()
        await fold_some(shard, [FoldEvent(1, 49_000, b"sb", {"u": 1})])
        await request(shard.store, b"sb", 1)
        await emitter.drain()
    lines = [line for line in caplog.messages if line.startswith("group dropped on request")]

    assert [] == producer.sent
    assert 2 == emitter.metrics.groups_dropped.labels(fold="f")._value.get()
    assert 2 == len(lines)
    assert "fold=f source=t-0 group='a' first_offset=0 last_offset=0 events=1 by=anna@host reason='a loop'" in lines[0]
