"""Packed groups: the format that they give a shard, and how they become hashes, which older versions read."""

from __future__ import annotations

from functools import partial
from typing import Any

import msgpack
import pytest
from redis.asyncio import Redis
from redis.exceptions import ResponseError

from streams_app.delivery.fingerprints import Fingerprint
from streams_app.delivery.scripts import FencedError, NewerStateError
from streams_app.folding.core.event import FoldEvent
from streams_app.folding.store import shard_store
from streams_app.folding.store.shard_store import ShardStore
from tests.helpers.folding.scripts import (
    EPOCH,
    SESSIONS,
    chunk_of,
    edited,
    emptied,
    entries_of,
    fold,
    meta_of,
    new_store,
    open_groups,
    outbox_of,
    packed_in,
    seal,
    state_of,
)
from tests.simulation.redis import dying

EVENTS = [FoldEvent(at, 1_000 + at, b"s%d" % (at % 7), {f"n{at}": at, "u": 1}) for at in range(20)]
LONG = [FoldEvent(20 + at, 1_030, b"slong", {f"{at}".ljust(190, "_"): at}) for at in range(3)]
"""Events whose names are too long for a packed group: the third one makes it a hash."""

FIRST_VERSION = """#!lua flags=allow-oom
local meta, arg = KEYS[1], cmsgpack.unpack(ARGV[1])
redis.call('HSET', meta, 'token', arg.token, 'owner', '', 'topics', '')
return redis.call('HMGET', meta, 'fence', 'epoch', 'log', 'lost')
"""
"""What a claim does and reads in the versions up to cfaf9732, which have no format numbers."""


pytestmark = pytest.mark.usefixtures("stores_packed")


async def folded(redis: Redis, events: list[FoldEvent] = EVENTS) -> ShardStore:
    """Return a shard that has folded each event by a script of its own."""
    store = new_store(redis)
    await store.claim("me", -1, EPOCH, "")
    for event in events:
        await fold(store, event.offset - 1, chunk_of([event]))
    return store


async def hashes_of(store: ShardStore) -> set[bytes]:
    prefix = store.keys.group_prefix
    return {key[len(prefix) :] async for key in store.redis.scan_iter(match=prefix + "*")}


async def first_offsets(store: ShardStore) -> Any:
    return await store.redis.zrange(store.keys.first, 0, -1, withscores=True)


async def claim_by_first_version(store: ShardStore) -> int:
    """Claim as the versions up to cfaf9732; return the number of lost offsets as they read it."""
    arguments = msgpack.packb({"token": "first version"}, use_bin_type=False)
    reply: Any = await store.redis.eval(FIRST_VERSION, 1, store.keys.meta, arguments)
    fence, epoch, _, offsets = reply
    assert (True, EPOCH) == (int(fence) >= 0, epoch)
    return int(offsets or b"0")


# The two forms


async def test_small_groups_are_packed_and_a_group_that_grows_too_large_becomes_a_hash(redis_client: Redis) -> None:
    store = await folded(redis_client, EVENTS + LONG[:2])
    found = [(b"slong" in await packed_in(store), await hashes_of(store))]
    await fold(store, 21, chunk_of(LONG[2:]))
    found.append((b"slong" in await packed_in(store), await hashes_of(store)))
    content = (await open_groups(store))[b"slong"]

    assert [(True, set()), (False, {b"slong"})] == found
    assert {b"s%d" % number for number in range(7)} == await packed_in(store)
    assert (20, 22, 3, 3) == (content.numbers.first_offset, content.numbers.last_offset, content.numbers.events, len(content.names))


# Unpacking


@pytest.mark.parametrize("limit", [1, 3, 500])
async def test_packed_groups_become_hashes_with_the_same_content(
    redis_client: Redis, monkeypatch: pytest.MonkeyPatch, limit: int
) -> None:
    monkeypatch.setattr(shard_store, "UNPACKED_GROUPS", limit)
    store = await folded(redis_client, EVENTS + LONG)
    before = await open_groups(store), await first_offsets(store), await store.watermark()
    found = [len(await packed_in(store))]
    await store.unpack("me")
    found.append(len(await packed_in(store)))
    after = await state_of(store)
    await store.unpack("me")

    assert ([7, 0], after) == (found, await state_of(store))
    assert before == (await open_groups(store), await first_offsets(store), await store.watermark())
    timers: Any = await redis_client.zrange(store.keys.due, 0, -1, withscores=True)
    assert {member: content.numbers.silent_from_ms for member, content in before[0].items()} == dict(timers)
    assert 0 == await redis_client.exists(store.keys.timers)
    assert set(before[0]) == await hashes_of(store)
    assert ("0", False) == ((meta := await meta_of(store))["lost"], "format" in meta)


async def test_unpacked_groups_are_folded_and_sealed_as_any_other(redis_client: Redis) -> None:
    store, packed = [await folded(redis_client) for _ in range(2)]
    await store.unpack("me")
    more = [event._replace(offset=20 + event.offset) for event in EVENTS]
    for one in (store, packed):
        await fold(one, 19, chunk_of(more))
        await seal(one, 39, 90_000, limit=100)

    assert 7 == len(await outbox_of(store))
    assert await outbox_of(packed) == await outbox_of(store)


async def test_only_the_owner_unpacks(redis_client: Redis) -> None:
    store = await folded(redis_client)
    before = await state_of(store)
    with pytest.raises(FencedError, match="token"):
        await store.unpack("other")

    assert before == await state_of(store)


async def test_packed_remains_are_only_removed(redis_client: Redis) -> None:
    """They belong to a group that was not opened, because the script failed half-way."""
    store = await folded(redis_client, EVENTS[:2])
    remains = msgpack.packb([5, 0, 1_000, 0, 1, 0, 0, 0]) + b"\x80"
    await redis_client.hset(store.keys.open, mapping={"sunopened": remains, "sother": remains})
    await redis_client.zadd(store.keys.first, {"sother": 4})
    await store.unpack("me")

    assert ({b"s0", b"s1"}, set()) == (await hashes_of(store), await packed_in(store))


async def test_fields_of_an_older_state_do_not_become_names_of_an_unpacked_group(redis_client: Redis) -> None:
    store = await folded(redis_client, EVENTS[:1])
    await redis_client.hset(store.keys.group_prefix + "s0", mapping={"old": "1"})
    await store.unpack("me")

    assert {b"n0", b"u"} == set((await open_groups(store))[b"s0"].names)


async def test_unpack_that_dies_half_way_is_completed_by_the_next(redis_client: Redis) -> None:
    expected, failures = None, 0
    for writes in range(40):
        store = await folded(redis_client)
        before = await open_groups(store)
        try:
            await edited(store, partial(dying, writes=writes), "unpack").unpack("me")
        except ResponseError as error:
            assert "the script fails here" in str(error)
            failures += 1
            assert before == await open_groups(store, has_remains=True)
            meta = await meta_of(store)
            assert not await packed_in(store) or ("3", True) == (meta["format"], "(the shard has packed groups" in meta["lost"])
        await store.unpack("me")
        expected = expected or before
        assert expected == await open_groups(store)
        assert ("0", False) == ((meta := await meta_of(store)).get("lost"), "format" in meta)
        await emptied(store)

    assert 7 * 3 + 4 == failures  # three writes for each group, and four to remove them, their timers and the format


# Formats


async def test_shard_has_format_3_from_before_its_first_packed_group_until_none_is_left(redis_client: Redis) -> None:
    store = await folded(redis_client, EVENTS)
    found = [(await meta_of(store)).get("format")]
    await seal(store, 19, 1_026, limit=100)
    found.append((await meta_of(store)).get("format"))
    await seal(store, 19, 90_000, limit=100)
    found.append((await meta_of(store)).get("format"))
    for first, _ in await entries_of(store):
        await store.finish("me", [(first, first, 1)])
        found.append((await meta_of(store)).get("format"))

    assert ["3", "3", "2", "2", None] == found


async def test_outbox_entry_of_several_records_leaves_the_format_of_packed_groups(redis_client: Redis) -> None:
    store = await folded(redis_client)
    await seal(store, 19, 90_000, limit=3)
    after_seal = (await meta_of(store))["format"]
    late = [FoldEvent(20 + at, 90_000 + at * 100, b"sx", {"u": 1}) for at in range(3)]
    await fold(store, 19, chunk_of(late, SESSIONS, start_ms=90_000), SESSIONS, late)

    assert ("3", "3") == (after_seal, (await meta_of(store))["format"])
    assert [3, 2] == [len(offsets) for _, offsets in await entries_of(store)]


async def test_group_that_is_dropped_as_the_last_packed_one_leaves_no_format(redis_client: Redis) -> None:
    store = await folded(redis_client, EVENTS[:1])
    await redis_client.hset(store.keys.drop, "s0", '0 0 ["me","why"]')
    done = await seal(store, 0, 1_000)

    assert (1, {}) == (len(done.dropped), await open_groups(store))
    assert ("0", False) == ((meta := await meta_of(store))["lost"], "format" in meta)


@pytest.mark.parametrize("form", [1, 2])
async def test_version_with_an_earlier_format_leaves_packed_groups_alone(redis_client: Redis, form: int) -> None:
    store = await folded(redis_client)
    older = edited(store, lambda text: text.replace("local FORMAT = 3", f"local FORMAT = {form}"), "claim")
    before = await state_of(store)
    with pytest.raises(NewerStateError, match="format 3"):
        await older.claim("old", None, b"", "")
    assert before == await state_of(store)
    await store.unpack("me")
    claimed = await older.claim("old", None, b"", "")

    assert claimed is not None
    assert (19, 7) == (claimed.fence, claimed.open_groups)


async def test_failed_script_leaves_no_packed_group_that_an_older_version_would_take_for_remains(redis_client: Redis) -> None:
    for writes in range(5):
        store = new_store(redis_client)
        await store.claim("me", -1, EPOCH, "")
        with pytest.raises(ResponseError, match="fails here"):
            await fold(edited(store, partial(dying, writes=writes)), -1, chunk_of(EVENTS))
        meta = await meta_of(store)
        assert not await packed_in(store) or ("3", "0 (the") == (meta.get("format"), meta["lost"][:6])
        await emptied(store)


# The first versions, without format numbers


async def test_first_versions_cannot_claim_a_shard_while_a_group_is_packed(redis_client: Redis) -> None:
    store = await folded(redis_client)
    with pytest.raises(ValueError, match=r"the shard has packed groups, which this version of streams_app cannot read"):
        await claim_by_first_version(store)
    await store.claim("me", None, b"", "")  # by a worker of this version
    await store.unpack("me")
    assert 0 == await claim_by_first_version(store)
    assert 7 == len(await hashes_of(store))


async def test_first_versions_can_claim_a_shard_whose_groups_were_all_sealed_and_acknowledged(redis_client: Redis) -> None:
    store = await folded(redis_client)
    await seal(store, 19, 90_000, limit=100)
    for first, _ in await entries_of(store):
        await store.finish("me", [(first, first, 1)])

    assert 0 == await claim_by_first_version(store)


async def test_number_of_lost_offsets_survives_packed_groups_and_a_rewind(redis_client: Redis) -> None:
    store = await folded(redis_client, EVENTS[:1])
    read = (Fingerprint(4, 7),)
    for removed in (5, 12):
        fence = int((await meta_of(store))["fence"])
        await seal(store, fence, 0, everything=True)
        first = (await entries_of(store))[0][0]
        await store.finish("me", [(first, first, 1)])
        await store.skip("me", fence, fence + 9)
        await store.rewind("me", fence + 9, fence, read, removed)
        assert str(removed) == (await meta_of(store))["lost"]
        await fold(store, fence, chunk_of([FoldEvent(fence + 1, 1_000, b"sa", {})]))
        assert f"{removed} (the shard" == (await meta_of(store))["lost"][: len(str(removed)) + 11]
        claimed = await store.claim("me", None, b"", "")
        assert claimed is not None
        assert removed == claimed.lost
    await store.unpack("me")

    assert 12 == await claim_by_first_version(store)
