"""Sessions and groups ahead of the fence: nobody sees them before it moves over them, whatever happens in between."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest
from redis.asyncio import Redis

from streams_app.folding import portions
from streams_app.folding.arguments import Arguments, Bounds, arguments_of
from streams_app.folding.batch import Chunk, FoldEvent, Scoring, chunks_of
from streams_app.folding.definition import Fold
from streams_app.folding.keys import shard_keys
from streams_app.folding.portions import Portion, Portioned, portions_of
from streams_app.folding.record import Sealed
from streams_app.folding.scripts import ScriptSet
from streams_app.folding.staging import Staged, stage
from streams_app.folding.store import RefusedError, ShardStore
from streams_app.operating.groups import Place, collect
from tests.conftest import Names
from tests.integration.test_scripts import BOUNDS, WALL, fold

ENDED = 5
LAST = ENDED + 1
FOLD = Fold(name="f", source="t", group_key="a", changed="m", quiet_period=timedelta(milliseconds=BOUNDS.quiet_ms))


def stage_all(monkeypatch: pytest.MonkeyPatch, *, records: int, groups: int) -> None:
    """Whatever is more than one portion of so much is staged."""
    monkeypatch.setattr(portions, "STAGED_RECORDS", records)
    monkeypatch.setattr(portions, "STAGED_GROUPS", groups)
    monkeypatch.setattr(portions, "SINGLE_GROUPS", groups)


@pytest.fixture
async def store(redis_client: Redis, names: Names, monkeypatch: pytest.MonkeyPatch) -> ShardStore:
    stage_all(monkeypatch, records=2, groups=1)
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


def packed(chunk: Chunk, bounds: Bounds = BOUNDS, *, sessions: bool = True) -> Arguments:
    return arguments_of(chunk, bounds, gaps_close=sessions, keeps_values=True, partitions=4, epoch=b"eeee")


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
    done = await stage(store, ("me", -1, LAST), packed(chunk), BOUNDS, 4, 5_000)
    await store.fold(
        "me", -1, LAST, 2_000, 2_000, BOUNDS, gaps_close=True, partitions=4, arguments=done.rest, staged=ENDED, opened=2,
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
                expected = Portioned(Portion([], []), len(portion.plain), [], repeated)
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
            staged=len(sessions), opened=2, attempt=await attempt_of(redis_client, store),
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
                staged=len(first.sessions), opened=len(first.plain), attempt=attempt,
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
    assert [1, 2, 3] == [offset for offset, _ in await store.outbox(-1, 9, fence=LAST)]


async def test_a_session_whose_group_is_open_is_left_for_the_fold(store: ShardStore) -> None:
    await fold(store, -1, chunk_of(), BOUNDS, sessions=True)
    late = [FoldEvent(10 + number, 2_001 + number, b"s%d" % number, {"v": 1}) for number in range(3)]
    late += [FoldEvent(20, 2_004, b"sopen", {"v": 1}), FoldEvent(21, 9_000, b"slast", {})]
    (chunk,) = chunks_of(late, 21, Scoring(2_000, WALL, None, BOUNDS.quiet_ms))
    done = await stage(store, ("me", LAST, 21), packed(chunk), BOUNDS, 4)
    sealed = await fold(store, LAST, chunk, BOUNDS, sessions=True)

    assert ([b"s0", b"sopen"], [b"s1", b"s2"], []) == (
        sorted(session.sealed.member for session in done.rest.closed),
        [entry.member for entry in done.sessions],
        done.ended,
    )
    assert [(5, 20, 2, {"u": b"1", "v": b"1"})] == [
        (entry.first_offset, entry.last_offset, entry.events, entry.names) for entry in sealed if entry.member == b"sopen"
    ]


async def test_a_full_outbox_counts_only_what_is_sealed(store: ShardStore) -> None:
    await staged(store)
    bounds = BOUNDS.__class__(BOUNDS.quiet_ms, BOUNDS.hold_ms, 0, BOUNDS.max_changed, 1)

    assert ENDED == len(await fold(store, -1, chunk_of(), bounds, sessions=True))


async def test_a_group_that_goes_on_does_so_ahead_of_the_fold(store: ShardStore) -> None:
    await fold(store, -1, chunk_of(), BOUNDS, sessions=True)
    events = [FoldEvent(10, 2_001, b"sopen", {"v": 1}), FoldEvent(11, 2_001, b"snew", {})]
    (chunk,) = chunks_of(events, 11, Scoring(2_000, WALL, None, BOUNDS.quiet_ms))
    done = await stage(store, ("me", LAST, 11), packed(chunk), BOUNDS, 4)
    assert [] == await fold(store, LAST, chunk, BOUNDS, sessions=True)
    sealed = await store.seal("me", 11, 9_000, BOUNDS, quiet=True, everything=False, limit=9, partitions=4)

    assert ([], 1) == (done.rest.plain, done.opened)
    assert [(b"s0", 1, 1), (b"snew", 1, 0), (b"sopen", 2, 2)] == sorted(
        (entry.member, entry.events, len(entry.names)) for entry in sealed.sealed
    )


OPENED = [FoldEvent(0, 1_000, b"sa", {"u": 1}), FoldEvent(1, 1_000, b"sb", {"u": 1})]
GOES_ON = [
    FoldEvent(2, 1_001, b"sa", {"u": 2, "v": 2}), FoldEvent(3, 1_001, b"sb", {"w": 3}), FoldEvent(4, 1_001, b"snew", {"u": 4})
]  # fmt: skip


async def begun(store: ShardStore, events: list[FoldEvent], bounds: Bounds = BOUNDS, *, sessions: bool = True) -> Staged:
    """Two groups are open, and what follows is staged."""
    await fold(store, -1, one_chunk(OPENED, sessions), bounds, sessions=sessions)
    arguments = packed(one_chunk(events, sessions), bounds, sessions=sessions)
    return await stage(store, ("me", 1, events[-1].offset), arguments, bounds, 4)


def one_chunk(events: list[FoldEvent], sessions: bool = True) -> Chunk:
    (chunk,) = chunks_of(events, events[-1].offset, Scoring(0, WALL, None, BOUNDS.quiet_ms if sessions else None))
    return chunk


async def state_of(redis: Redis, store: ShardStore) -> dict[bytes | str, object]:
    """Everything of the shard but its marks."""
    found: dict[bytes | str, object] = {}
    for key in await redis.keys(f"{store.keys.group_prefix}*"):
        found[key] = await redis.hgetall(key)
    for key in (store.keys.first, store.keys.due, store.keys.outbox):
        found[key] = await redis.zrange(key, 0, -1, withscores=True)
    return found


@pytest.mark.parametrize("sessions", [True, False])
@pytest.mark.parametrize("how", ["claim", "seal", "another attempt"])
async def test_what_went_on_is_as_before_for_whoever_begins_anew(
    store: ShardStore, redis_client: Redis, how: str, sessions: bool
) -> None:
    await fold(store, -1, one_chunk(OPENED, sessions), BOUNDS, sessions=sessions)
    before = await state_of(redis_client, store)
    done = await stage(store, ("me", 1, 4), packed(one_chunk(GOES_ON, sessions), sessions=sessions), BOUNDS, 4)
    during = await state_of(redis_client, store)
    if how == "claim":
        await store.claim("other", None, b"", "")
    elif how == "seal":
        await store.seal("me", 1, 1_000, BOUNDS, quiet=True, everything=False, limit=9, partitions=4)
    else:
        await store.stage("me", 1, 4, Portion([], []), BOUNDS, attempt="two", number=1, gaps_close=sessions, partitions=4)

    assert ([], [], 1) == (done.rest.closed, done.rest.plain, done.opened)
    assert len(during) > len(before)
    assert before == await state_of(redis_client, store)


async def test_a_fold_of_what_went_on_keeps_it(store: ShardStore, redis_client: Redis) -> None:
    done = await begun(store, GOES_ON)
    await store.fold(
        "me",
        1,
        4,
        1_001,
        1_001,
        BOUNDS,
        gaps_close=True,
        partitions=4,
        arguments=done.rest,
        staged=0,
        opened=1,
        attempt=done.attempt,
    )
    await store.claim("me", None, b"", "")
    sealed = await store.seal("me", 4, 9_000, BOUNDS, quiet=True, everything=False, limit=9, partitions=4)

    assert [
        (b"sa", 0, 2, 2, {"u": b"2", "v": b"2"}),
        (b"sb", 1, 3, 2, {"u": b"1", "w": b"3"}),
        (b"snew", 4, 4, 1, {"u": b"4"}),
    ] == [(entry.member, entry.first_offset, entry.last_offset, entry.events, entry.names) for entry in sealed.sealed]
    assert [] == await redis_client.keys(f"{store.keys.group_prefix}*")


async def test_a_late_fold_of_an_attempt_that_was_undone_is_refused(store: ShardStore) -> None:
    only = GOES_ON[:2]
    done = await begun(store, only)
    await store.seal("me", 1, 1_000, BOUNDS, quiet=True, everything=False, limit=9, partitions=4)

    assert 0 == done.opened == len(done.sessions)
    with pytest.raises(RefusedError, match="staged"):
        await store.fold("me", 1, 3, 1_001, 1_001, BOUNDS, gaps_close=True, partitions=4, arguments=done.rest, attempt=done.attempt)


async def test_a_portion_sent_twice_leaves_what_can_be_undone(store: ShardStore, redis_client: Redis) -> None:
    await fold(store, -1, one_chunk(OPENED), BOUNDS, sessions=True)
    before = await state_of(redis_client, store)
    for number, portion in enumerate(portions_of(packed(one_chunk(GOES_ON))), 1):
        for _ in range(2):
            done = await store.stage("me", 1, 4, portion, BOUNDS, attempt="one", number=number, gaps_close=True, partitions=4)
            assert done is not None
            assert Portion([], []) == done.held
    await store.claim("other", None, b"", "")

    assert before == await state_of(redis_client, store)


async def test_a_fold_that_staged_nothing_undoes_what_went_on(store: ShardStore, monkeypatch: pytest.MonkeyPatch) -> None:
    await begun(store, GOES_ON[:2])
    stage_all(monkeypatch, records=100, groups=100)
    assert [] == await fold(store, 1, one_chunk(GOES_ON[:1]), BOUNDS, sessions=True)
    sealed = await store.seal("me", 2, 9_000, BOUNDS, quiet=True, everything=False, limit=9, partitions=4)

    assert [(b"sa", 2), (b"sb", 1)] == [(entry.member, entry.events) for entry in sealed.sealed]


@pytest.mark.parametrize(
    ("bounds", "sessions"),
    [
        pytest.param(replace(BOUNDS, hold_ms=2), True, id="max hold"),
        pytest.param(replace(BOUNDS, max_events=3), False, id="max events"),
        pytest.param(replace(BOUNDS, max_changed=2), False, id="max changed"),
    ],
)
async def test_a_group_that_a_bound_may_close_is_left_for_the_fold(store: ShardStore, bounds: Bounds, sessions: bool) -> None:
    events = [FoldEvent(2 + at, 1_000 + at, b"sb" if at else b"snew", {"x": 1, "y": 2}) for at in range(3)]
    done = await begun(store, events, bounds, sessions=sessions)

    assert ([b"sb"], []) == ([group for group, *_ in done.rest.plain], done.ended)


async def test_groups_that_had_ended_are_sealed_ahead_and_open_anew(store: ShardStore, redis_client: Redis) -> None:
    late = 1_001 + BOUNDS.quiet_ms
    events = [FoldEvent(2, late, b"sa", {"v": 2}), FoldEvent(3, late, b"sb", {"w": 3})]
    done = await begun(store, events)
    listed = [entry for _, entry in await store.outbox(-1, 9, fence=1)]
    await store.claim("other", None, b"", "")
    kept = await state_of(redis_client, store)

    assert ([], [], 2) == (done.rest.closed, done.rest.plain, done.opened)
    assert [(b"sa", 0, 0, "quiet"), (b"sb", 1, 1, "quiet")] == [
        (entry.member, entry.first_offset, entry.last_offset, entry.reason) for entry in done.ended
    ]
    assert done.ended == [Sealed.unpack(entry) for entry in listed]
    assert {key: [] for key in kept} | {store.keys.outbox: [(listed[0], 0), (listed[1], 1)]} == kept


async def test_nothing_is_left_of_a_group_that_had_ended(store: ShardStore, redis_client: Redis) -> None:
    late = 1_001 + BOUNDS.quiet_ms
    events = [FoldEvent(2, late, b"sa", {"v": 2}), FoldEvent(3, 2 * late, b"snew", {"u": 4}), FoldEvent(4, 2 * late, b"sother", {})]
    done = await begun(store, events)
    left = await state_of(redis_client, store)

    assert ([b"sa"], [b"sa"]) == ([entry.member for entry in done.ended], [entry.member for entry in done.sessions])
    for key in (store.keys.first, store.keys.due):
        assert [b"sb", b"snew", b"sother"] == sorted(await redis_client.zrange(key, 0, -1))
    assert 3 == sum(key not in (store.keys.first, store.keys.due, store.keys.outbox) for key in left)


async def test_what_follows_a_session_that_is_left_is_left_too(store: ShardStore) -> None:
    quiet = BOUNDS.quiet_ms
    events = [FoldEvent(2 + number, 1_001 + 2 * quiet * number, b"sa", {"v": number}) for number in range(6)]
    done = await begun(store, events)
    sealed = await fold(store, 1, one_chunk(events), BOUNDS, sessions=True)

    assert [0, 1, 2, 3, 4] == [session.names["v"][0] - 48 for session in (closed.sealed for closed in done.rest.closed)]
    assert [5] == [first_offset - 2 for _, first_offset, *_ in done.rest.plain]
    assert ([], []) == (done.ended, done.sessions)
    assert [(0, 2, 2), (3, 3, 1), (4, 4, 1), (5, 5, 1), (6, 6, 1)] == [
        (entry.first_offset, entry.last_offset, entry.events) for entry in sealed
    ]
