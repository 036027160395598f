"""What the scripts reject, keep and carry over in rare cases."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from redis.asyncio import Redis

from streams_app.delivery.fingerprints import Fingerprint
from streams_app.delivery.scripts import FencedError
from streams_app.folding.core.closing import Bounds
from streams_app.folding.core.event import FoldEvent
from streams_app.folding.core.record import SealedGroup
from streams_app.folding.shard import shard as sharding
from streams_app.folding.store import shard_store as storing
from streams_app.folding.store.keys import EVERYTHING, shard_keys
from streams_app.folding.store.scripts import FoldScripts
from streams_app.folding.store.shard_store import ShardStore
from tests.conftest import Names
from tests.helpers.folding.scripts import chunk_of, chunks_of, fold, one, outbox_of, packed, seal, sealed_in, send
from tests.helpers.folding.shards import claimed_shard, fold_some
from tests.simulation.mutants import Mutant
from tests.simulation.mutants_protocol import REWINDS

pytestmark = pytest.mark.usefixtures("each_form")

MANY = 4_500
"""More arguments than one Redis call in a script accepts."""


@pytest.fixture
async def store(redis_client: Redis, names: Names) -> ShardStore:
    made = ShardStore(FoldScripts(redis_client), shard_keys(names.app_id, "f", "t", 0))
    await made.claim("me", -1, b"eeee", "")
    return made


# Clock and positions


async def test_script_never_turns_the_clock_back(store: ShardStore) -> None:
    await fold(store, -1, one(0, stamp=5_000))
    sealed = await seal(store, 0, 3_000)
    folded = await send(store, 0, one(1, stamp=2_000), packed(one(1, stamp=2_000)))
    claimed = await store.claim("me", None, b"", "")

    assert [5_000] * 3 == [sealed.clock_ms, folded.clock_ms, claimed.clocks.clock_ms if claimed else None]


async def test_skip_seal_and_fold_require_the_same_fence(store: ShardStore) -> None:
    await store.skip("me", -1, 9)
    await store.skip("me", -1, 9)  # a reply was lost

    for attempt in (store.skip("me", 3, 20), seal(store, 3, 1_000), fold(store, 3, one(4))):
        with pytest.raises(FencedError, match="fence"):
            await attempt
    assert await store.watermark() == 10


async def test_rewind_moves_the_fence_back_only_for_its_owner_and_from_the_current_fence(store: ShardStore) -> None:
    await store.skip("me", -1, 9)
    read = (Fingerprint(4, 7),)

    for token, fence, cause in (("other", 9, "token"), ("me", 8, "fence"), ("me", 3, "fence")):
        with pytest.raises(FencedError, match=cause):
            await store.rewind(token, fence, 4, read, 5)
    assert 10 == await store.watermark()
    await store.rewind("me", 9, 4, read, 5)
    await store.rewind("me", 9, 4, read, 5)  # a reply was lost
    with pytest.raises(FencedError, match="fence"):
        await store.rewind("me", 9, 4, read, 6)
    claimed = await store.claim("me", None, b"", "")

    assert claimed is not None
    assert (4, read, 5) == (claimed.fence, claimed.log, claimed.lost)


async def test_rewind_waits_for_open_groups_and_for_the_outbox(store: ShardStore) -> None:
    await fold(store, -1, one(0))
    with pytest.raises(FencedError, match="open-groups"):
        await store.rewind("me", 0, -1, (), 1)
    await seal(store, 0, 0, everything=True)
    with pytest.raises(FencedError, match="open-groups"):
        await store.rewind("me", 0, -1, (), 1)
    await store.finish("me", [(0, 0, 1)])
    await store.rewind("me", 0, -1, (), 1)

    assert 0 == await store.watermark()


@pytest.mark.parametrize(
    ("mutant", "rule"),
    [
        (REWINDS[0], test_rewind_moves_the_fence_back_only_for_its_owner_and_from_the_current_fence),
        (REWINDS[1], test_rewind_waits_for_open_groups_and_for_the_outbox),
    ],
    ids=lambda given: given.name if isinstance(given, Mutant) else "",
)
async def test_broken_rewind_is_detected(
    redis_client: Redis, names: Names, mutant: Mutant, rule: Callable[[ShardStore], Awaitable[None]]
) -> None:
    with mutant.applied():
        broken = ShardStore(FoldScripts(redis_client), shard_keys(names.app_id, "f", "t", 0))
        await broken.claim("me", -1, b"eeee", "")
        with pytest.raises(pytest.fail.Exception, match="DID NOT RAISE"):
            await rule(broken)


async def test_changed_definition_waits_for_open_groups_and_for_the_outbox(store: ShardStore) -> None:
    await fold(store, -1, one(0))
    with pytest.raises(FencedError, match="not-drained"):
        await store.define("me", "new")
    await seal(store, 0, 0, everything=True)
    with pytest.raises(FencedError, match="not-drained"):
        await store.define("me", "new")
    await store.finish("me", [(0, 0, 1)])
    await store.define("me", "new")
    claimed = await store.claim("me", None, b"", "")

    assert claimed is not None
    assert claimed.definition == "new"


async def test_claim_stores_the_topic_id_and_keeps_it_if_none_is_given(store: ShardStore) -> None:
    found = [await store.topic_id()]
    for owner, topic_id in (("me", "first"), ("other", ""), ("me", "second")):
        await store.claim(owner, None, b"", "", topic_id=topic_id)
        found.append(await store.topic_id())

    assert ["", "first", "first", "second"] == found


async def test_state_without_its_metadata_starts_without_remains(store: ShardStore, redis_client: Redis) -> None:
    await fold(store, -1, one(0, b"sa"))
    await seal(store, 0, 0, everything=True)
    await fold(store, 0, one(1, b"sb"))
    await redis_client.delete(store.keys.meta)
    claimed = await store.claim("other", 6, b"ffff", "")

    assert claimed is not None
    assert (claimed.created, claimed.open_groups, await sealed_in(store)) == (True, 0, [])
    assert await store.watermark() == 7


async def test_remains_of_an_older_state_are_never_sealed(store: ShardStore, redis_client: Redis) -> None:
    await fold(store, -1, one(0))
    await redis_client.hset(store.keys.meta, mapping={"epoch": b"ffff", "fence": 5})
    await redis_client.hdel(store.keys.meta, "format")
    done = await seal(store, 5, 9_000)

    assert ([], 0, 0) == (done.sealed, done.open_groups, done.outbox_entries)
    assert await store.watermark() == 6


# Bounds


async def test_event_exactly_at_the_quiet_period_belongs_to_the_session_and_one_at_the_hold_does_not(store: ShardStore) -> None:
    bounds = Bounds(quiet_ms=10, hold_ms=25, sessions=True)
    sealed: list[SealedGroup] = []
    for number, stamp in enumerate([1_000, 1_010, 1_020, 1_025, 1_035, 1_046]):
        sealed += await fold(store, number - 1, one(number, stamp=stamp, bounds=bounds), bounds)

    assert [(0, 2, "max_hold"), (3, 4, "quiet")] == [(entry.first_offset, entry.last_offset, entry.reason) for entry in sealed]


async def test_max_hold_is_reached_at_its_exact_millisecond(store: ShardStore) -> None:
    bounds = Bounds(quiet_ms=1_000, hold_ms=40)
    await fold(store, -1, one(0, stamp=1_000), bounds)

    assert [] == (await seal(store, 0, 1_039, bounds=bounds)).sealed
    assert len((await seal(store, 0, 1_040, bounds=bounds)).sealed) == 1


# Many at once


async def test_fold_that_closes_thousands_keeps_every_record(store: ShardStore) -> None:
    bounds = Bounds(quiet_ms=10, hold_ms=40, max_events=1)
    events = [FoldEvent(n, 1_000, b"s%d" % (n % 1_900), {"u": n}) for n in range(MANY)]
    fence = -1
    sealed: list[SealedGroup] = []
    for chunk in chunks_of(events, events[-1].offset):
        sealed += await fold(store, fence, chunk, bounds, events, outbox_limit=100_000)
        fence = chunk.to
    found = await outbox_of(store)

    assert list(range(MANY)) == [entry.first_offset for entry in found] == sorted(entry.first_offset for entry in sealed)


async def test_seal_of_thousands_keeps_every_group_and_name(store: ShardStore) -> None:
    for begin in range(0, MANY, 500):
        events = [FoldEvent(n, 1_000, b"s%d" % n, {"u": n}) for n in range(begin, begin + 500)]
        await fold(store, begin - 1, chunk_of(events))
    wide = FoldEvent(MANY, 1_000, b"swide", {f"n{number}": number for number in range(MANY)})
    await fold(store, MANY - 1, chunk_of([wide]))
    done = await seal(store, MANY, 9_000, limit=MANY + 1)
    found = await outbox_of(store)

    assert (0, 1, MANY + 1) == (done.open_groups, done.outbox_entries, len(found))
    assert set(wide.changed) == set(found[-1].names)


async def test_flush_of_everything_continues_until_everything_is_sealed(store: ShardStore, redis_client: Redis) -> None:
    for number in range(5):
        await fold(store, number - 1, one(number, b"s%d" % number))
    await redis_client.sadd(store.keys.flush, EVERYTHING)
    counts = [len((await seal(store, 4, 0, limit=2)).sealed) for _ in range(4)]

    assert [2, 2, 1, 0] == counts
    assert 0 == await redis_client.exists(store.keys.flush)


async def test_outbox_never_exceeds_its_bound(redis_client: Redis, names: Names, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sharding, "OUTBOX_LIMIT", 3)
    shard = await claimed_shard(redis_client, names)
    await fold_some(shard, [FoldEvent(number, 1_000, b"s%d" % number, {"u": 1}) for number in range(5)])
    first, second = [await shard.seal(50_000, folded_until_ms=50_000) for _ in range(2)]
    await shard.finish(shard.outbox.first(1))
    third = await shard.seal(50_000, folded_until_ms=50_000)

    assert [3, None, 1] == [done and len(done.sealed) for done in (first, second, third)]


async def test_records_of_a_missing_reply_are_read_from_the_outbox(
    redis_client: Redis, names: Names, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = ShardStore.fold

    async def sent_twice(self: ShardStore, *args: Any, **kwargs: Any) -> Any:
        await original(self, *args, **kwargs)
        return await original(self, *args, **kwargs)

    monkeypatch.setattr(ShardStore, "fold", sent_twice)
    shard = await claimed_shard(redis_client, names, "sessions")
    await fold_some(shard, [FoldEvent(at, 1_000, b"s%d" % at, {"u": 1}) for at in range(6)])
    late = 1_001 + shard.bounds.quiet_ms
    await fold_some(shard, [FoldEvent(6 + at, late, b"s%d" % at, {"u": 1}) for at in range(6)])

    assert [0, 1, 2, 3, 4, 5] == [entry.first_offset for entry in shard.outbox]


async def test_claim_loads_the_whole_outbox(redis_client: Redis, names: Names, monkeypatch: pytest.MonkeyPatch) -> None:
    shard = await claimed_shard(redis_client, names)
    await fold_some(shard, [FoldEvent(number, 1_000, b"s%d" % number, {"u": 1}) for number in range(5)])
    await shard.seal(50_000, folded_until_ms=50_000)
    monkeypatch.setattr(sharding, "SEAL_LIMIT", 2)
    heir = await claimed_shard(redis_client, names)

    assert [0, 1, 2, 3, 4] == [entry.first_offset for entry in heir.outbox]


async def test_very_many_ranges_are_finished_by_several_scripts(store: ShardStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(storing, "FINISHED_RANGES", 3)
    await fold(store, -1, chunk_of([FoldEvent(n, 1_000, b"s%d" % n, {}) for n in range(20)]))
    for _ in range(20):
        await seal(store, 19, 9_000, limit=1)
    left = await store.finish("me", [(at, at, 1) for at in range(0, 20, 2)])

    assert (10, list(range(1, 20, 2))) == (left, [first for first, _ in await sealed_in(store)])
