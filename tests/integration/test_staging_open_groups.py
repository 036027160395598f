"""Open groups that go on, or end, ahead of the fence: as before for whoever begins anew."""

from __future__ import annotations

from dataclasses import astuple, replace
from typing import Any

import pytest
from redis.asyncio import Redis

from streams_app.folding.core.chunks import FoldEvent, Scoring, chunks_of
from streams_app.folding.core.record import Sealed
from streams_app.folding.shard.staging import stage
from streams_app.folding.store import portions
from streams_app.folding.store.arguments import Bounds
from streams_app.folding.store.portions import Portion, Portioned, portions_of
from streams_app.folding.store.replies import RefusedError
from streams_app.folding.store.scripts import AGAIN, ScriptSet
from streams_app.folding.store.shard_store import ShardStore
from tests.conftest import Names
from tests.integration.ahead import (
    ENDED,
    GOES_ON,
    LAST,
    OPENED,
    begun,
    chunk_of,
    one_chunk,
    packed,
    small_store,
    stage_all,
    state_of,
)
from tests.integration.test_scripts import BOUNDS, WALL, fold, sealed_in


@pytest.fixture
async def store(redis_client: Redis, names: Names, monkeypatch: pytest.MonkeyPatch) -> ShardStore:
    return await small_store(redis_client, names, monkeypatch)


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


async def test_a_session_ends_an_open_group_ahead_of_the_fold(store: ShardStore, redis_client: Redis) -> None:
    await fold(store, -1, chunk_of(), BOUNDS, sessions=True)
    late = [FoldEvent(10 + number, 2_001 + number, b"s%d" % number, {"v": 1}) for number in range(3)]
    late += [FoldEvent(20, 2_004, b"sopen", {"v": 1}), FoldEvent(21, 9_000, b"slast", {})]
    (chunk,) = chunks_of(late, 21, Scoring(2_000, WALL, None, BOUNDS.quiet_ms))
    before = await state_of(redis_client, store)
    done = await stage(store, ("me", LAST, 21), packed(chunk), BOUNDS, 4)
    low = await store.watermark()
    seen = await store.outbox("me", LAST, 2)
    after = await state_of(redis_client, store)
    sealed = await fold(store, LAST, chunk, BOUNDS, sessions=True)

    assert ([], [b"s1", b"s2"], []) == (done.rest.closed, [entry.member for entry in done.sessions], done.ended)
    assert [
        (b"s0", LAST, 10, 2, {"v": b"1", "w": b"1"}, "quiet"),
        (b"sopen", ENDED, 20, 2, {"u": b"1", "v": b"1"}, "quiet"),
    ] == sorted(
        (entry.member, entry.first_offset, entry.last_offset, entry.events, entry.names, entry.reason) for entry in done.joint
    )
    assert (0, list(range(ENDED))) == (low, [entry.first_offset for entry in seen])
    assert before == after
    assert done.joint == [entry for entry in sealed if entry.first_offset <= LAST]
    told = sorted(sealed, key=lambda entry: entry.first_offset)
    assert told == [Sealed.unpack(entry) for offset, entry in await sealed_in(store, 21) if offset >= ENDED]


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
        ahead=done.ahead,
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
    listed = [entry for _, entry in await sealed_in(store, 1)]
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
    bounds = replace(BOUNDS, max_changed=1)
    events = [FoldEvent(2 + number, 1_001 + 2 * quiet * number, b"sa", {"v": number}) for number in range(6)]
    done = await begun(store, events, bounds)
    sealed = await fold(store, 1, one_chunk(events), bounds, events, sessions=True)

    assert [2, 3, 4, 5, 6] == [session.sealed.first_offset for session in done.rest.closed]
    assert [7] == [first_offset for _, first_offset, *_ in done.rest.plain]
    assert ([], [], []) == (done.ended, done.sessions, done.joint)
    assert [(at, at, 1) for at in (0, 2, 3, 4, 5, 6)] == [(entry.first_offset, entry.last_offset, entry.events) for entry in sealed]


ENDS = [
    FoldEvent(2, 1_001, b"sa", {"u": 2, "v": 2}),
    FoldEvent(3, 1_001, b"sb", {"w": 3}),
    *[FoldEvent(4 + number, 1_001 + 2 * BOUNDS.quiet_ms * (number // 2 + 1), b"sb" if number % 2 else b"sa", {"x": number})
      for number in range(6)],
]  # fmt: skip


@pytest.mark.parametrize("most", [1, 2, 500])
@pytest.mark.parametrize("how", ["claim", "seal", "another attempt", "outbox"])
async def test_groups_that_ended_with_a_session_are_as_before_for_whoever_begins_anew(
    store: ShardStore, redis_client: Redis, monkeypatch: pytest.MonkeyPatch, how: str, most: int
) -> None:
    stage_all(monkeypatch, records=most, groups=1)
    await fold(store, -1, one_chunk(OPENED), BOUNDS, sessions=True)
    before = await state_of(redis_client, store)
    done = await stage(store, ("me", 1, 9), packed(one_chunk(ENDS)), BOUNDS, 4)
    if how == "claim":
        await store.claim("other", None, b"", "")
    elif how == "seal":
        await store.seal("me", 1, 1_000, BOUNDS, quiet=True, everything=False, limit=9, partitions=4)
    elif how == "outbox":
        assert [] == await store.outbox("me", 1, 9)
    else:
        await store.stage("me", 1, 9, Portion([], []), BOUNDS, attempt="two", number=1, gaps_close=True, partitions=4)

    assert ([(0, 2), (1, 3)], 4, 2) == ([(e.first_offset, e.last_offset) for e in done.joint], len(done.sessions), done.opened)
    assert before == await state_of(redis_client, store)


async def test_a_portion_sent_twice_knows_the_sessions_that_ended_with_their_group(store: ShardStore, redis_client: Redis) -> None:
    await fold(store, -1, one_chunk(OPENED), BOUNDS, sessions=True)
    joint: list[int] = []
    first, *others = portions_of(packed(one_chunk(ENDS)))
    # The first one again as if a late copy of it had done more than the reply told; the others as copies.
    for number, portion in [(1, first), (2, first), *[(at // 2 + 3, others[at // 2]) for at in range(2 * len(others))]]:
        done = await store.stage("me", 1, 9, portion, BOUNDS, attempt="one", number=number, gaps_close=True, partitions=4)
        assert done is not None
        assert (Portion([], []), Portion([], [])) == (done.held, done.rest)
        joint += [entry.first_offset for entry in done.joint]
    records = await sealed_in(store, 9)
    await store.claim("other", None, b"", "")

    assert [0, 1] == joint
    assert [0, 1, 4, 5, 6, 7] == [offset for offset, _ in records]
    assert [] == await sealed_in(store)


async def test_what_is_too_much_for_one_script_is_for_the_next(store: ShardStore, monkeypatch: pytest.MonkeyPatch) -> None:
    stage_all(monkeypatch, records=500, groups=500)
    many, names = 30, 300
    events = [FoldEvent(at, 1_000, b"s%d" % at, {f"n{name}": 1 for name in range(names)}) for at in range(many)]
    await fold(store, -1, one_chunk(events), BOUNDS, sessions=True)
    late = [FoldEvent(many + at, 1_001, b"s%d" % at, {"u": 1}) for at in range(many)]
    late.append(FoldEvent(2 * many, 1_002 + BOUNDS.quiet_ms, b"snew", {}))
    monkeypatch.setattr(portions, "STAGED_RECORDS", many - 1)
    asked: list[int] = []
    original = store.stage

    async def counted(*args: Any, **kwargs: Any) -> Portioned | None:
        done = await original(*args, **kwargs)
        assert done is not None
        asked.append(len(done.joint))
        return done

    monkeypatch.setattr(store, "stage", counted)
    done = await stage(store, ("me", many - 1, 2 * many), packed(one_chunk(late)), BOUNDS, 4)

    assert (list(range(many)), 1) == (sorted(entry.first_offset for entry in done.joint), done.opened)
    assert {names + 1} == {len(entry.names) for entry in done.joint}
    assert max(asked) * names <= 2_500 + names


NEVER_OPEN = 4_100
"""Records, and twice as many groups as one script drops: more than that."""


async def test_much_is_undone_in_several_scripts(store: ShardStore, redis_client: Redis, monkeypatch: pytest.MonkeyPatch) -> None:
    many = 700
    stage_all(monkeypatch, records=300, groups=300)
    await fold(store, -1, one_chunk([FoldEvent(at, 1_000, b"s%d" % at, {"u": 1}) for at in range(many)]), BOUNDS, sessions=True)
    before = await state_of(redis_client, store)
    later = 1_001 + 2 * BOUNDS.quiet_ms
    groups = [b"s%d" % at for at in range(many)] + [b"snew%d" % at for at in range(NEVER_OPEN)]
    again = groups[: many // 2] + groups[many : many + NEVER_OPEN // 2]
    stamped = [(1_001, group) for group in groups] + [(later, group) for group in again]
    late = [FoldEvent(many + at, stamp, group, {"w": 1}) for at, (stamp, group) in enumerate(stamped)]
    staged = await stage(store, ("me", many - 1, late[-1].offset), packed(one_chunk(late)), BOUNDS, 4)
    calls: list[Any] = []
    once = ScriptSet(redis_client).by_name["claim"].script
    meta, due, first, outbox, prefix, _ = astuple(store.keys)
    while not calls or calls[-1] == AGAIN:
        calls.append(await once(keys=[meta, due, first, outbox, prefix], args=["other", "", "eeee", "", "", "", ""]))

    assert (many, NEVER_OPEN, len(again)) == (len(staged.joint), len(staged.sessions), staged.opened)
    assert len(calls) > 3
    assert (b"ok", before) == (calls[-1][0], await state_of(redis_client, store))


async def test_a_group_of_very_many_names_ends_with_the_fold(store: ShardStore) -> None:
    names = {f"n{name}": 1 for name in range(2_100)}
    bounds = replace(BOUNDS, max_changed=10_000)
    await fold(store, -1, one_chunk([FoldEvent(0, 1_000, b"sa", names)]), bounds, sessions=True)
    late = [FoldEvent(1, 1_001, b"sa", {"u": 1}), FoldEvent(2, 1_001, b"sb", {}), FoldEvent(3, 1_001, b"sc", {})]
    late.append(FoldEvent(4, 1_002 + BOUNDS.quiet_ms, b"sd", {}))
    chunk = one_chunk(late)
    done = await stage(store, ("me", 0, 4), packed(chunk, bounds), bounds, 4)
    sealed = await fold(store, 0, chunk, bounds, sessions=True)

    assert ([b"sa"], []) == ([session.sealed.member for session in done.rest.closed], done.joint)
    assert [(b"sa", 0, 1, 2_101), (b"sb", 2, 2, 0), (b"sc", 3, 3, 0)] == sorted(
        (entry.member, entry.first_offset, entry.last_offset, len(entry.names)) for entry in sealed
    )


async def test_a_full_outbox_does_not_count_what_ended_ahead(store: ShardStore) -> None:
    bounds = replace(BOUNDS, outbox_limit=1)
    await fold(store, -1, one_chunk(OPENED), bounds, sessions=True)
    sealed = await fold(store, 1, one_chunk(ENDS), bounds, sessions=True)

    assert 6 == len(sealed)
