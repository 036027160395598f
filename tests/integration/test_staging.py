"""Sessions in the outbox ahead of the fence: nobody sees them before it moves over them, whatever happens in between."""

from __future__ import annotations

import pytest
from redis.asyncio import Redis

from streams_app.folding import arguments
from streams_app.folding.arguments import Arguments, arguments_of
from streams_app.folding.batch import Chunk, FoldEvent, Scoring, chunks_of
from streams_app.folding.keys import shard_keys
from streams_app.folding.record import Sealed
from streams_app.folding.staging import stage
from streams_app.folding.store import RefusedError, ScriptSet, ShardStore
from tests.conftest import Names
from tests.integration.test_scripts import BOUNDS, WALL, fold

ENDED = 5


@pytest.fixture
async def store(redis_client: Redis, names: Names, monkeypatch: pytest.MonkeyPatch) -> ShardStore:
    monkeypatch.setattr(arguments, "STAGED_RECORDS", 2)
    made = ShardStore(ScriptSet(redis_client), shard_keys(names.app_id, "f", "t", 0))
    await made.claim("me", -1, b"eeee", "")
    return made


def chunk_of(begin: int = 0) -> Chunk:
    """Five sessions that have ended, and a group that is open, of offsets from ``begin`` on."""
    events = [FoldEvent(begin + number, 1_000 + begin + number, b"s%d" % number, {"u": number}) for number in range(ENDED)]
    events.append(FoldEvent(begin + ENDED, 2_000 + begin, b"sopen", {"u": 1}))
    (chunk,) = chunks_of(events, events[-1].offset, Scoring(0, WALL, None, BOUNDS.quiet_ms))
    return chunk


def packed(chunk: Chunk) -> Arguments:
    return arguments_of(chunk, BOUNDS, gaps_close=True, keeps_values=True, partitions=4, epoch=b"eeee")


async def staged(store: ShardStore, token: str = "me", fence: int = -1) -> list[Sealed]:
    rest, sessions = await stage(store, token, fence, ENDED, packed(chunk_of()), "one")
    assert [] == rest.closed
    return sessions


async def beyond(store: ShardStore, redis: Redis, fence: int = -1) -> int:
    return int(await redis.zcount(store.keys.outbox, f"({fence}", "+inf"))


async def test_what_is_staged_is_sealed_by_the_fold_alone(store: ShardStore) -> None:
    sessions = await staged(store)
    seen = await store.outbox(-1, 9, fence=-1), await store.watermark()
    left = await store.finish("me", [])
    await store.define("me", "another")
    sealed = await fold(store, -1, chunk_of(), BOUNDS, sessions=True)

    assert list(range(ENDED)) == [entry.first_offset for entry in sessions]
    assert ([], 0) == seen
    assert 0 == left
    assert sessions == sealed == [Sealed.unpack(entry) for _, entry in await store.outbox(-1, 9, fence=ENDED)]


async def test_another_owner_begins_without_it(store: ShardStore, redis_client: Redis) -> None:
    await staged(store)
    claimed = await store.claim("other", None, b"", "")

    assert (0, 0) == (await beyond(store, redis_client), claimed.outbox_records if claimed else None)
    with pytest.raises(RefusedError, match="token"):
        await staged(store)


async def test_a_repetition_begins_anew(store: ShardStore, redis_client: Redis) -> None:
    await staged(store)
    await staged(store)
    twice = await beyond(store, redis_client)
    longer = arguments_of(chunk_of(), BOUNDS, gaps_close=True, keeps_values=False, partitions=4, epoch=b"eeee")
    await stage(store, "me", -1, ENDED, longer, "two")

    assert (ENDED, ENDED) == (twice, await beyond(store, redis_client))


async def test_leftovers_are_not_sealed_by_a_fold_that_staged_nothing(
    store: ShardStore, redis_client: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    await staged(store)
    monkeypatch.setattr(arguments, "STAGED_RECORDS", 100)
    (chunk,) = chunks_of([FoldEvent(9, 1_000, b"sx", {"u": 1})], 9, Scoring(0, WALL, None, BOUNDS.quiet_ms))

    assert [] == await fold(store, -1, chunk, BOUNDS, sessions=True)
    assert 0 == await redis_client.zcard(store.keys.outbox)


async def test_a_fold_that_misses_what_it_staged_is_refused(store: ShardStore, redis_client: Redis) -> None:
    sessions = await staged(store)
    await redis_client.zremrangebyrank(store.keys.outbox, 0, 0)

    with pytest.raises(RefusedError, match="staged"):
        await store.fold(
            "me", -1, ENDED, 2_000, 2_000, BOUNDS, gaps_close=True, partitions=4, arguments=packed(chunk_of()), staged=len(sessions)
        )
    assert await store.watermark() == 0


async def test_stage_asks_for_owner_and_fence_and_recognises_a_lost_reply(store: ShardStore, redis_client: Redis) -> None:
    for token, fence, cause in (("other", -1, "token"), ("me", 3, "fence")):
        with pytest.raises(RefusedError, match=cause):
            await staged(store, token, fence)
    await fold(store, -1, chunk_of(), BOUNDS, sessions=True)
    again = await stage(store, "me", -1, ENDED, packed(chunk_of()), "two")
    repeated = await store.fold("me", -1, ENDED, 2_000, 2_000, BOUNDS, gaps_close=True, partitions=4, arguments=again[0])
    await redis_client.delete(store.keys.meta)
    with pytest.raises(RefusedError, match="no-state"):
        await staged(store)

    assert ([], [], True) == (again[0].closed, again[1], repeated.repeated)


async def test_a_seal_frees_what_an_attempt_left(store: ShardStore, redis_client: Redis) -> None:
    await staged(store)
    done = await store.seal("me", -1, 9_000, BOUNDS, quiet=True, everything=False, limit=9, partitions=4)

    assert (0, [], 0) == (done.outbox_records, done.sealed, await beyond(store, redis_client))


async def test_portions_of_two_attempts_are_not_mixed(store: ShardStore) -> None:
    sessions = packed(chunk_of()).closed
    await store.stage("me", -1, ENDED, sessions[:2], attempt="one", begin=True)
    await store.stage("me", -1, ENDED, sessions[:2], attempt="two", begin=True)
    with pytest.raises(RefusedError, match="staged"):
        await store.stage("me", -1, ENDED, sessions[2:], attempt="one", begin=False)
    with pytest.raises(RefusedError, match="staged"):
        await store.fold(
            "me",
            -1,
            ENDED,
            2_000,
            2_000,
            BOUNDS,
            gaps_close=True,
            partitions=4,
            arguments=packed(chunk_of()),
            staged=2,
            attempt="one",
        )


async def test_a_copy_of_finish_that_comes_late_removes_nothing(store: ShardStore) -> None:
    await fold(store, -1, chunk_of(), BOUNDS, sessions=True)
    first = await store.finish("me", [(0, 0, 1), (4, 4, 1)])
    late = await store.finish("me", [(0, 4, 3)])

    assert (3, 3) == (first, late)
    assert [1, 2, 3] == [offset for offset, _ in await store.outbox(-1, 9, fence=ENDED)]


async def test_a_session_whose_group_is_open_is_left_for_the_fold(store: ShardStore) -> None:
    await fold(store, -1, chunk_of(), BOUNDS, sessions=True)
    late = [FoldEvent(10 + number, 2_001 + number, b"s%d" % number, {"v": 1}) for number in range(3)]
    late += [FoldEvent(20, 2_004, b"sopen", {"v": 1}), FoldEvent(21, 9_000, b"slast", {})]
    (chunk,) = chunks_of(late, 21, Scoring(2_000, WALL, None, BOUNDS.quiet_ms))
    rest, sessions = await stage(store, "me", ENDED, 21, packed(chunk), "two")
    sealed = await fold(store, ENDED, chunk, BOUNDS, sessions=True)

    assert ([b"sopen"], [b"s0", b"s1", b"s2"]) == (
        [session.sealed.member for session in rest.closed],
        [entry.member for entry in sessions],
    )
    assert [(5, 20, 2, {"u": b"1", "v": b"1"})] == [
        (entry.first_offset, entry.last_offset, entry.events, entry.names) for entry in sealed if entry.member == b"sopen"
    ]


async def test_a_full_outbox_counts_only_what_is_sealed(store: ShardStore) -> None:
    await staged(store)
    bounds = BOUNDS.__class__(BOUNDS.quiet_ms, BOUNDS.hold_ms, 0, BOUNDS.max_changed, 1)

    assert ENDED == len(await fold(store, -1, chunk_of(), bounds, sessions=True))
