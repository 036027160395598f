"""Entries of the outbox that have several records: how they are read and removed, and which versions may read the shard."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from unittest.mock import patch

import pytest
from redis.asyncio import Redis
from redis.exceptions import ResponseError

from streams_app.delivery.scripts import NewerStateError
from streams_app.errors import RESET_FORMAT
from streams_app.folding.core.event import FoldEvent
from streams_app.folding.core.record import SealedGroup
from streams_app.folding.store.shard_store import ShardStore
from streams_app.kafka.rendered_records import FOLD_ID
from tests.conftest import Names
from tests.helpers.folding.outbox import block_of, put, sealed_group
from tests.helpers.folding.scripts import (
    EPOCH,
    SESSIONS,
    BriefStore,
    chunk_of,
    edited,
    entries_of,
    fold,
    meta_of,
    new_store,
    seal,
    sealed_in,
)
from tests.helpers.folding.shards import Answering, claimed_shard, emitter_of, fold_some
from tests.simulation.mutants import Mutant
from tests.simulation.mutants_blocks import FORMATS_OF_BLOCKS
from tests.simulation.redis import dying

GROUPS = [FoldEvent(at, 1_000, b"s%d" % at, {"u": 1}) for at in range(5)]
ENDED = [FoldEvent(at, 1_000, b"s%d" % at, {"u": 1}) for at in range(3)] + [FoldEvent(3, 9_000, b"sz", {"u": 1})]
"""Sessions of three groups, and the event by which they have ended."""


async def owned(redis: Redis) -> ShardStore:
    store = new_store(redis)
    await store.claim("me", -1, EPOCH, "")
    return store


async def format_of(store: ShardStore) -> str | None:
    return (await meta_of(store)).get("format")


# Formats


async def test_shard_has_format_2_while_its_outbox_may_have_an_entry_of_several_records(redis_client: Redis) -> None:
    store = await owned(redis_client)
    await fold(store, -1, chunk_of(GROUPS))
    found = [await format_of(store)]
    for limit in (1, 2, 2):
        await seal(store, 4, 9_000, limit=limit)
        found.append(await format_of(store))
    entries = await entries_of(store)
    for first in (1, 3, 0):
        await store.finish("me", [(first, first, 1)])
        found.append(await format_of(store))

    assert [(0, [0]), (1, [1, 2]), (3, [3, 4])] == entries
    assert [None, None, "2", "2", "2", "2", None] == found


@pytest.mark.parametrize("script", ["fold", "seal"])
async def test_failed_script_leaves_no_entry_of_several_records_without_its_format(redis_client: Redis, script: str) -> None:
    for writes in range(4):
        store = await owned(redis_client)
        if script == "seal":
            await fold(store, -1, chunk_of(GROUPS))
        failing = edited(store, partial(dying, writes=writes), script)
        with pytest.raises(ResponseError, match="fails here"):
            if script == "seal":
                await seal(failing, 4, 9_000)
            else:
                await fold(failing, -1, chunk_of(ENDED, SESSIONS), SESSIONS, ENDED)

        assert "2" == await format_of(store) or all(len(offsets) == 1 for _, offsets in await entries_of(store))


async def test_shard_with_an_entry_of_several_records_is_left_alone_by_an_older_version(redis_client: Redis) -> None:
    store = await owned(redis_client)
    older = edited(store, lambda text: text.replace("local FORMAT = 3", "local FORMAT = 1"), "claim")
    await fold(store, -1, chunk_of(ENDED, SESSIONS), SESSIONS, ENDED)
    with pytest.raises(NewerStateError, match="format 2"):
        await older.claim("old", None, b"", "")
    await store.finish("me", [(0, 0, 1)])
    claimed = await older.claim("old", None, b"", "")

    assert claimed is not None
    assert (3, 1) == (claimed.fence, claimed.open_groups)


@pytest.mark.parametrize(
    ("mutant", "rule"),
    [
        (
            FORMATS_OF_BLOCKS[0],
            partial(test_failed_script_leaves_no_entry_of_several_records_without_its_format, script="seal"),
        ),
        (
            FORMATS_OF_BLOCKS[0],
            partial(test_failed_script_leaves_no_entry_of_several_records_without_its_format, script="fold"),
        ),
        (FORMATS_OF_BLOCKS[1], test_shard_has_format_2_while_its_outbox_may_have_an_entry_of_several_records),
        (FORMATS_OF_BLOCKS[2], test_shard_has_format_2_while_its_outbox_may_have_an_entry_of_several_records),
    ],
    ids=lambda given: given.name if isinstance(given, Mutant) else "",
)
async def test_broken_format_is_detected(redis_client: Redis, mutant: Mutant, rule: Callable[[Redis], Awaitable[None]]) -> None:
    with mutant.applied(), pytest.raises(AssertionError):
        await rule(redis_client)


async def test_claim_removes_the_format_that_an_emptied_outbox_has_left(redis_client: Redis) -> None:
    store = await owned(redis_client)
    await fold(store, -1, chunk_of(ENDED, SESSIONS), SESSIONS, ENDED)
    await store.claim("me", None, b"", "")
    kept = await format_of(store)
    await redis_client.delete(store.keys.outbox)
    await store.claim("me", None, b"", "")

    assert ("2", None) == (kept, await format_of(store))


async def test_state_that_is_being_reset_stays_closed(redis_client: Redis) -> None:
    store = await owned(redis_client)
    await fold(store, -1, chunk_of(GROUPS))
    await seal(store, 4, 9_000, limit=2)
    await redis_client.hset(store.keys.meta, "format", RESET_FORMAT)
    for attempt in (seal(store, 4, 9_000), store.finish("me", [(0, 0, 1)]), store.claim("me", None, b"", "")):
        with pytest.raises(NewerStateError):
            await attempt

    assert RESET_FORMAT == await format_of(store)


# Reading and removing


async def test_script_that_closes_groups_and_ends_sessions_adds_one_entry(redis_client: Redis) -> None:
    store = await owned(redis_client)
    opened = [FoldEvent(0, 1_000, b"sb", {"u": 1}), FoldEvent(1, 1_000, b"sd", {"u": 1})]
    await fold(store, -1, chunk_of(opened, SESSIONS), SESSIONS, opened)
    late = [FoldEvent(2, 2_000, b"sa", {"u": 1}), FoldEvent(3, 2_000, b"sb", {"u": 1}), FoldEvent(4, 9_000, b"sd", {"u": 1})]
    sealed = await fold(store, 1, chunk_of(late, SESSIONS, start_ms=1_000), SESSIONS, late)

    assert [(0, [2, 3, 0, 1])] == await entries_of(store)
    assert [0, 1, 2, 3] == [record.first_offset for record in sealed]


async def test_outbox_is_read_in_pages_of_limited_size(redis_client: Redis) -> None:
    store = await owned(redis_client)
    large = [SealedGroup(b"s", at, at, 1, 0, 0, "quiet", 0, 1, {"u": b"x" * 600_000}) for at in range(4)]
    await redis_client.zadd(store.keys.outbox, {block_of([one]): one.first_offset for one in large})
    with patch.object(store, "_call", wraps=store._call) as call:
        found = await store.outbox("me", 150)

    assert [([one], one.first_offset) for one in large] == found
    assert 3 == call.call_count


async def test_entries_with_one_first_offset_are_read_on_one_page(redis_client: Redis) -> None:
    store = await owned(redis_client)
    await put(store, [sealed_group("a", 0), sealed_group("b", 1)], [sealed_group("a", 0)], [sealed_group("c", 5)])

    assert [(0, [0]), (0, [0, 1]), (5, [5])] == [
        (first, [record.first_offset for record in records]) for records, first in await store.outbox("me", 1)
    ]


async def test_records_that_a_failed_script_left_in_two_entries_are_sent_with_one_id_until_both_are_removed(
    redis_client: Redis, names: Names
) -> None:
    shard = await claimed_shard(redis_client, names, "sessions")
    whole = shard.store
    shard.store = edited(whole, partial(dying, writes=2))
    with pytest.raises(ResponseError, match="fails here"):
        await fold_some(shard, ENDED)
    shard.store = BriefStore(whole, 1)  # the repetition folds one group after the other
    await fold_some(shard, ENDED)
    entries = await entries_of(whole)
    producer = Answering()
    emitter = emitter_of(shard, producer)
    for _ in range(3):
        await emitter.emit_due_once()
    ids = {dict(record.headers)[FOLD_ID].decode() for sent in producer.sent for record in sent}

    assert [(0, [0]), (0, [0, 1, 2]), (1, [1]), (2, [2])] == sorted(entries)
    assert ([], 0, 4) == (await sealed_in(whole), len(shard.outbox), await whole.watermark())
    assert {f"f:t:0:{at}-{at}" for at in range(4)} == ids
