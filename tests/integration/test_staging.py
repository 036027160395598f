"""Sessions and groups ahead of the fence: nobody sees them before it moves over them, whatever happens in between."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest
from redis.asyncio import Redis

from streams_app.folding import arguments
from streams_app.folding.arguments import Arguments, Portion, arguments_of
from streams_app.folding.batch import Chunk, FoldEvent, Scoring, chunks_of
from streams_app.folding.definition import Fold
from streams_app.folding.keys import shard_keys
from streams_app.folding.record import Sealed
from streams_app.folding.scripts import ScriptSet
from streams_app.folding.staging import stage
from streams_app.folding.store import RefusedError, ShardStore
from streams_app.operating.groups import Place, collect
from tests.conftest import Names
from tests.integration.test_scripts import BOUNDS, WALL, fold

ENDED = 5
LAST = ENDED + 1
FOLD = Fold(name="f", source="t", group_key="a", changed="m", quiet_period=timedelta(milliseconds=BOUNDS.quiet_ms))


@pytest.fixture
async def store(redis_client: Redis, names: Names, monkeypatch: pytest.MonkeyPatch) -> ShardStore:
    monkeypatch.setattr(arguments, "STAGED_RECORDS", 2)
    monkeypatch.setattr(arguments, "STAGED_GROUPS", 1)
    made = ShardStore(ScriptSet(redis_client), shard_keys(names.app_id, "f", "t", 0))
    await made.claim("me", -1, b"eeee", "")
    return made


def chunk_of(begin: int = 0) -> Chunk:
    """Five sessions that have ended, and two groups that are open, of offsets from ``begin`` on."""
    events = [FoldEvent(begin + number, 1_000 + begin + number, b"s%d" % number, {"u": number}) for number in range(ENDED)]
    events.append(FoldEvent(begin + ENDED, 2_000 + begin, b"sopen", {"u": 1}))
    events.append(FoldEvent(begin + LAST, 2_000 + begin, b"s0", {"w": 1}))
    (chunk,) = chunks_of(events, events[-1].offset, Scoring(0, WALL, None, BOUNDS.quiet_ms))
    return chunk


def packed(chunk: Chunk) -> Arguments:
    return arguments_of(chunk, BOUNDS, gaps_close=True, keeps_values=True, partitions=4, epoch=b"eeee")


async def staged(store: ShardStore, token: str = "me", fence: int = -1) -> list[Sealed]:
    done = await stage(store, token, fence, LAST, packed(chunk_of()), "one")
    assert ([], [], 2) == (done.rest.closed, done.rest.plain, done.opened)
    return list(done.sealed)


async def beyond(store: ShardStore, redis: Redis, fence: int = -1) -> tuple[int, int, int, int]:
    """Records, groups, timers and sidecars."""
    records, groups = [int(await redis.zcount(key, f"({fence}", "+inf")) for key in (store.keys.outbox, store.keys.first)]
    return records, groups, int(await redis.zcard(store.keys.due)), len(await redis.keys(f"{store.keys.group_prefix}*"))


async def test_what_is_staged_is_sealed_and_opened_by_the_fold_alone(store: ShardStore, names: Names) -> None:
    sessions = await staged(store)
    seen = await store.outbox(-1, 9, fence=-1), await store.watermark()
    listed = await collect(store.redis, [Place(names.app_id, FOLD, 0, 0, -1)], 9, "quiet")
    left = await store.finish("me", [])
    await store.define("me", "another")
    sealed = await fold(store, -1, chunk_of(), BOUNDS, sessions=True)
    places = [Place(names.app_id, FOLD, 0, 0, LAST)]
    opened = await collect(store.redis, places, 9, "oldest")

    assert list(range(ENDED)) == [entry.first_offset for entry in sessions]
    assert ([], 0) == seen
    assert (0, []) == (left, listed)
    assert sessions == sealed == [Sealed.unpack(entry) for _, entry in await store.outbox(-1, 9, fence=LAST)]
    assert [("open", ENDED, 1), ("0", LAST, 1)] == [(row["group"], row["first_offset"], row["names"]) for row in opened]


async def test_groups_that_were_staged_are_due_when_they_should_be(store: ShardStore) -> None:
    chunk = chunk_of()
    done = await stage(store, "me", -1, LAST, packed(chunk), "one", 5_000)
    await store.fold(
        "me", -1, LAST, 2_000, 2_000, BOUNDS, gaps_close=True, partitions=4, arguments=done.rest, staged=ENDED, opened=2,
        attempt="one", arrived_ms=5_000,
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
    await stage(store, "me", -1, LAST, longer, "two")

    assert (ENDED, 2, 2, 2) == twice == await beyond(store, redis_client)


async def test_a_portion_that_is_sent_twice_stages_once(store: ShardStore, redis_client: Redis) -> None:
    portions = list(packed(chunk_of()).portions())
    for _ in range(2):
        for number, portion in enumerate(portions):
            for _ in range(2):
                held = await store.stage("me", -1, LAST, portion, attempt="one", begin=number == 0, gaps_close=True)
                assert Portion([], []) == held

    assert (ENDED, 2, 2, 2) == await beyond(store, redis_client)


async def test_leftovers_are_not_sealed_by_a_fold_that_staged_nothing(
    store: ShardStore, redis_client: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    await staged(store)
    monkeypatch.setattr(arguments, "STAGED_RECORDS", 100)
    monkeypatch.setattr(arguments, "STAGED_GROUPS", 100)
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
            staged=len(sessions), opened=2, attempt="one",
        )  # fmt: skip
    assert await store.watermark() == 0


async def test_stage_asks_for_owner_and_fence_and_recognises_a_lost_reply(store: ShardStore, redis_client: Redis) -> None:
    for token, fence, cause in (("other", -1, "token"), ("me", 3, "fence")):
        with pytest.raises(RefusedError, match=cause):
            await staged(store, token, fence)
    await fold(store, -1, chunk_of(), BOUNDS, sessions=True)
    again = await stage(store, "me", -1, LAST, packed(chunk_of()), "two")
    repeated = await store.fold("me", -1, LAST, 2_000, 2_000, BOUNDS, gaps_close=True, partitions=4, arguments=again.rest)
    await redis_client.delete(store.keys.meta)
    with pytest.raises(RefusedError, match="no-state"):
        await staged(store)

    assert (Arguments(again.rest.groups, opens=True), 0, 0, True) == (
        again.rest, len(again.sealed), again.opened, repeated.repeated,
    )  # fmt: skip


async def test_a_seal_frees_what_an_attempt_left(store: ShardStore, redis_client: Redis) -> None:
    await staged(store)
    done = await store.seal("me", -1, 9_000, BOUNDS, quiet=True, everything=False, limit=9, partitions=4)

    assert (0, [], 0) == (done.outbox_records, done.sealed, done.open_groups)
    assert (0, 0, 0, 0) == await beyond(store, redis_client)


async def test_portions_of_two_attempts_are_not_mixed(store: ShardStore) -> None:
    first, second, *_ = packed(chunk_of()).portions()
    await store.stage("me", -1, LAST, first, attempt="one", begin=True, gaps_close=True)
    await store.stage("me", -1, LAST, first, attempt="two", begin=True, gaps_close=True)
    with pytest.raises(RefusedError, match="staged"):
        await store.stage("me", -1, LAST, second, attempt="one", begin=False, gaps_close=True)
    with pytest.raises(RefusedError, match="staged"):
        await store.fold(
            "me", -1, LAST, 2_000, 2_000, BOUNDS, gaps_close=True, partitions=4, arguments=packed(chunk_of()), staged=2, opened=1,
            attempt="one",
        )  # fmt: skip


async def test_a_copy_of_finish_that_comes_late_removes_nothing(store: ShardStore) -> None:
    await fold(store, -1, chunk_of(), BOUNDS, sessions=True)
    first = await store.finish("me", [(0, 0, 1), (4, 4, 1)])
    late = await store.finish("me", [(0, 4, 3)])

    assert (3, 3) == (first, late)
    assert [1, 2, 3] == [offset for offset, _ in await store.outbox(-1, 9, fence=LAST)]


async def test_a_session_whose_group_is_open_is_left_for_the_fold(store: ShardStore) -> None:
    await fold(store, -1, chunk_of(), BOUNDS, sessions=True)
    late = [FoldEvent(10 + number, 2_001 + number, b"s%d" % number, {"v": 1}) for number in range(3)]
    late += [FoldEvent(20, 2_004, b"sopen", {"v": 1}), FoldEvent(21, 9_000, b"slast", {})]
    (chunk,) = chunks_of(late, 21, Scoring(2_000, WALL, None, BOUNDS.quiet_ms))
    done = await stage(store, "me", LAST, 21, packed(chunk), "two")
    sealed = await fold(store, LAST, chunk, BOUNDS, sessions=True)

    assert ([b"s0", b"sopen"], [b"s1", b"s2"]) == (
        sorted(session.sealed.member for session in done.rest.closed),
        [entry.member for entry in done.sealed],
    )
    assert [(5, 20, 2, {"u": b"1", "v": b"1"})] == [
        (entry.first_offset, entry.last_offset, entry.events, entry.names) for entry in sealed if entry.member == b"sopen"
    ]


async def test_a_full_outbox_counts_only_what_is_sealed(store: ShardStore) -> None:
    await staged(store)
    bounds = BOUNDS.__class__(BOUNDS.quiet_ms, BOUNDS.hold_ms, 0, BOUNDS.max_changed, 1)

    assert ENDED == len(await fold(store, -1, chunk_of(), bounds, sessions=True))


async def test_a_group_that_is_open_moves_with_the_fold(store: ShardStore) -> None:
    await fold(store, -1, chunk_of(), BOUNDS, sessions=True)
    events = [FoldEvent(10, 2_001, b"sopen", {"v": 1}), FoldEvent(11, 2_001, b"snew", {})]
    (chunk,) = chunks_of(events, 11, Scoring(2_000, WALL, None, BOUNDS.quiet_ms))
    done = await stage(store, "me", LAST, 11, packed(chunk), "two")
    assert [] == await fold(store, LAST, chunk, BOUNDS, sessions=True)
    sealed = await store.seal("me", 11, 9_000, BOUNDS, quiet=True, everything=False, limit=9, partitions=4)

    assert ([b"sopen"], 1) == ([group for group, *_ in done.rest.plain], done.opened)
    assert [(b"s0", 1, 1), (b"snew", 1, 0), (b"sopen", 2, 2)] == sorted(
        (entry.member, entry.events, len(entry.names)) for entry in sealed.sealed
    )
