"""Sessions and groups ahead of the fence: nobody sees them before it moves over them, whatever happens in between."""

from __future__ import annotations

from dataclasses import replace

import pytest
from redis.asyncio import Redis

from streams_app.folding.core.chunks import FoldEvent, Scoring, chunks_of
from streams_app.folding.core.record import Sealed
from streams_app.folding.shard.staging import stage
from streams_app.folding.store.arguments import Arguments, arguments_of
from streams_app.folding.store.portions import Ahead, Portion, Portioned, portions_of
from streams_app.folding.store.replies import RefusedError
from streams_app.folding.store.shard_store import ShardStore
from streams_app.operating.groups import Place, collect
from tests.conftest import Names
from tests.integration.ahead import (
    ENDED,
    FOLD,
    LAST,
    chunk_of,
    packed,
    small_store,
    stage_all,
)
from tests.integration.test_scripts import BOUNDS, WALL, fold, sealed_in


@pytest.fixture
async def store(redis_client: Redis, names: Names, monkeypatch: pytest.MonkeyPatch) -> ShardStore:
    return await small_store(redis_client, names, monkeypatch)


async def staged(store: ShardStore, token: str = "me", fence: int = -1) -> list[Sealed]:
    done = await stage(store, (token, fence, LAST), packed(chunk_of()), BOUNDS, 4)
    assert ([], [], 2) == (done.rest.closed, done.rest.plain, done.opened)
    return list(done.sessions)


async def stage_one(store: ShardStore, portion: Portion, attempt: str, number: int) -> Portioned | None:
    return await store.stage("me", -1, LAST, portion, BOUNDS, attempt=attempt, number=number, gaps_close=True, partitions=4)


async def attempt_of(redis: Redis, store: ShardStore) -> str:
    (attempt,) = await redis.hmget(store.keys.meta, "attempt")
    assert isinstance(attempt, bytes)
    return attempt.decode()


async def beyond(store: ShardStore, redis: Redis, fence: int = -1) -> tuple[int, int, int, int]:
    """Records, groups, timers and sidecars."""
    records, groups = [int(await redis.zcount(key, f"({fence}", "+inf")) for key in (store.keys.outbox, store.keys.first)]
    return records, groups, int(await redis.zcard(store.keys.due)), len(await redis.keys(f"{store.keys.group_prefix}*"))


async def test_what_is_staged_is_sealed_and_opened_by_the_fold_alone(store: ShardStore, names: Names) -> None:
    sessions = await staged(store)
    seen = await sealed_in(store, -1), await store.watermark()
    listed = await collect(store.redis, [Place(names.app_id, FOLD, 0, 0, -1)], 9, "quiet")
    left = await store.finish("me", [])
    await store.define("me", "another")
    sealed = await fold(store, -1, chunk_of(), BOUNDS, sessions=True)
    places = [Place(names.app_id, FOLD, 0, 0, LAST)]
    opened = await collect(store.redis, places, 9, "oldest")

    assert list(range(ENDED)) == [entry.first_offset for entry in sessions]
    assert ([], 0) == seen
    assert (0, []) == (left, listed)
    assert sessions == sealed == [Sealed.unpack(entry) for _, entry in await sealed_in(store, LAST)]
    assert [("open", ENDED, 1), ("0", LAST, 1)] == [(row["group"], row["first_offset"], row["names"]) for row in opened]


async def test_groups_that_were_staged_are_due_when_they_should_be(store: ShardStore) -> None:
    chunk = chunk_of()
    done = await stage(store, ("me", -1, LAST), packed(chunk), BOUNDS, 4, 5_000)
    await store.fold(
        "me", -1, LAST, 2_000, 2_000, BOUNDS, gaps_close=True, partitions=4, arguments=done.rest, ahead=Ahead(ENDED, 2),
        attempt=done.attempt, arrived_ms=5_000,
    )  # fmt: skip
    bounds = replace(BOUNDS, hold_ms=9_000)
    early, late = [
        await store.seal("me", LAST, 5_000 + BOUNDS.quiet_ms + more, bounds, quiet=True, everything=False, limit=9, partitions=4)
        for more in (0, 1)
    ]

    assert ([], 2) == (early.sealed, early.open_groups)
    assert [(ENDED, {"u": b"1"}), (LAST, {"w": b"1"})] == sorted((entry.first_offset, entry.names) for entry in late.sealed)


async def test_another_owner_begins_without_it(store: ShardStore, redis_client: Redis) -> None:
    await staged(store)
    claimed = await store.claim("other", None, b"", "")

    assert (0, 0, 0, 0) == await beyond(store, redis_client)
    assert (0, 0) == (claimed and (claimed.open_groups, claimed.outbox_records))
    with pytest.raises(RefusedError, match="token"):
        await staged(store)


async def test_a_repetition_begins_anew(store: ShardStore, redis_client: Redis) -> None:
    await staged(store)
    await staged(store)
    twice = await beyond(store, redis_client)
    longer = arguments_of(chunk_of(), BOUNDS, gaps_close=True, keeps_values=False, partitions=4, epoch=b"eeee")
    await stage(store, ("me", -1, LAST), longer, BOUNDS, 4)

    assert (ENDED, 2, 2, 2) == twice == await beyond(store, redis_client)


async def test_a_portion_that_is_sent_twice_stages_once(store: ShardStore, redis_client: Redis) -> None:
    for _ in range(2):
        for number, portion in enumerate(portions_of(packed(chunk_of())), 1):
            for repeated in (False, True):
                sessions = [session.sealed for session in portion.sessions]
                nothing = Portion([], [])
                expected = Portioned(nothing, len(portion.plain), [], sessions, [], nothing, 0, repeated)
                assert expected == await stage_one(store, portion, "one", number)

    assert (ENDED, 2, 2, 2) == await beyond(store, redis_client)


async def test_leftovers_are_not_sealed_by_a_fold_that_staged_nothing(
    store: ShardStore, redis_client: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    await staged(store)
    stage_all(monkeypatch, records=100, groups=100)
    (chunk,) = chunks_of([FoldEvent(9, 1_000, b"sx", {"u": 1})], 9, Scoring(0, WALL, None, BOUNDS.quiet_ms))

    assert [] == await fold(store, -1, chunk, BOUNDS, sessions=True)
    assert (0, 0, 1, 1) == await beyond(store, redis_client, 9)


@pytest.mark.parametrize("missing", ["outbox", "first"])
async def test_a_fold_that_misses_what_it_staged_is_refused(store: ShardStore, redis_client: Redis, missing: str) -> None:
    sessions = await staged(store)
    await redis_client.zremrangebyrank(getattr(store.keys, missing), 0, 0)

    with pytest.raises(RefusedError, match="staged"):
        await store.fold(
            "me", -1, LAST, 2_000, 2_000, BOUNDS, gaps_close=True, partitions=4, arguments=Arguments(b"\x90"),
            ahead=Ahead(len(sessions), 2), attempt=await attempt_of(redis_client, store),
        )  # fmt: skip
    assert await store.watermark() == 0


async def test_stage_asks_for_owner_and_fence_and_recognises_a_lost_reply(store: ShardStore, redis_client: Redis) -> None:
    for token, fence, cause in (("other", -1, "token"), ("me", 3, "fence")):
        with pytest.raises(RefusedError, match=cause):
            await staged(store, token, fence)
    await fold(store, -1, chunk_of(), BOUNDS, sessions=True)
    again = await stage(store, ("me", -1, LAST), packed(chunk_of()), BOUNDS, 4)
    repeated = await store.fold("me", -1, LAST, 2_000, 2_000, BOUNDS, gaps_close=True, partitions=4, arguments=again.rest)
    await redis_client.delete(store.keys.meta)
    with pytest.raises(RefusedError, match="no-state"):
        await staged(store)

    assert (Arguments(again.rest.groups), 0, 0, True) == (again.rest, len(again.sessions), again.opened, repeated.repeated)


async def test_a_range_that_was_folded_and_came_back_is_refused(store: ShardStore, redis_client: Redis) -> None:
    await fold(store, -1, chunk_of(), BOUNDS, sessions=True)
    again = await stage(store, ("me", -1, LAST), packed(chunk_of()), BOUNDS, 4)
    await redis_client.hset(store.keys.meta, "fence", -1)  # an older copy of Redis

    with pytest.raises(RefusedError, match="staged"):
        await store.fold(
            "me", -1, LAST, 2_000, 2_000, BOUNDS, gaps_close=True, partitions=4, arguments=again.rest, attempt=again.attempt
        )


async def test_a_seal_frees_what_an_attempt_left(store: ShardStore, redis_client: Redis) -> None:
    await staged(store)
    done = await store.seal("me", -1, 9_000, BOUNDS, quiet=True, everything=False, limit=9, partitions=4)

    assert (0, [], 0) == (done.outbox_records, done.sealed, done.open_groups)
    assert (0, 0, 0, 0) == await beyond(store, redis_client)


async def test_portions_of_two_attempts_are_not_mixed(store: ShardStore) -> None:
    first, second, *_ = portions_of(packed(chunk_of()))
    await stage_one(store, first, "one", 1)
    await stage_one(store, first, "two", 1)
    with pytest.raises(RefusedError, match="staged"):
        await stage_one(store, second, "one", 2)
    for attempt in ("one:1", "two:2", "two"):
        with pytest.raises(RefusedError, match="staged"):
            await store.fold(
                "me", -1, LAST, 2_000, 2_000, BOUNDS, gaps_close=True, partitions=4, arguments=packed(chunk_of()),
                ahead=Ahead(len(first.sessions), len(first.plain)), attempt=attempt,
            )  # fmt: skip


async def test_no_portion_is_missing(store: ShardStore) -> None:
    first, second, third, *_ = portions_of(packed(chunk_of()))
    await stage_one(store, first, "one", 1)
    with pytest.raises(RefusedError, match="staged"):
        await stage_one(store, third, "one", 3)
    await stage_one(store, second, "one", 2)

    assert await stage_one(store, third, "one", 3) is not None


async def test_a_copy_of_finish_that_comes_late_removes_nothing(store: ShardStore) -> None:
    await fold(store, -1, chunk_of(), BOUNDS, sessions=True)
    first = await store.finish("me", [(0, 0, 1), (4, 4, 1)])
    late = await store.finish("me", [(0, 4, 3)])

    assert (3, 3) == (first, late)
    assert [1, 2, 3] == [offset for offset, _ in await sealed_in(store, LAST)]


async def test_a_full_outbox_counts_only_what_is_sealed(store: ShardStore) -> None:
    await staged(store)
    bounds = BOUNDS.__class__(BOUNDS.quiet_ms, BOUNDS.hold_ms, 0, BOUNDS.max_changed, 1)

    assert ENDED == len(await fold(store, -1, chunk_of(), bounds, sessions=True))
