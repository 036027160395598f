"""Packed groups in rare cases: timers that become earlier, and what failed scripts or an older state have left."""

from __future__ import annotations

from typing import Any

import pytest

from streams_app.folding.core.closing import Bounds
from streams_app.folding.core.detailed_chunks import DetailedChunkCutter
from streams_app.folding.core.event import DetailedEvent, FoldEvent
from streams_app.folding.core.shard_clock import RangeTime
from streams_app.folding.store.shard_store import ShardStore
from tests.helpers.folding.scripts import (
    SESSIONS,
    WALL,
    FormPacker,
    chunk_of,
    fold,
    open_groups,
    packed_in,
    seal,
)

BY_EVENT = Bounds(quiet_ms=100, hold_ms=10_000, reads_details=True, is_quiet_by_event=True)
LONG = {"x" * 450: 1}
"""Names that are too long for a packed group."""


pytestmark = pytest.mark.usefixtures("stores_packed")


@pytest.fixture
def store(packed_store: ShardStore) -> ShardStore:
    return packed_store


async def fold_by_event(store: ShardStore, events: list[tuple[int, int, bytes, int]]) -> None:
    """Fold events, each of them offset, time, group, and by how much its quiet period is shorter, by one script."""
    details = [DetailedEvent(offset, at_ms, group, {"u": 1}, shorter_ms=shorter) for offset, at_ms, group, shorter in events]
    above, to = events[0][0] - 1, events[-1][0]
    chunk = DetailedChunkCutter(details, above, to, BY_EVENT, keeps_values=True).next(RangeTime(WALL, None), 0)
    assert chunk.to == to
    await fold(store, above, chunk, BY_EVENT)


async def test_timer_that_has_become_earlier_is_not_replaced_by_the_former_one(store: ShardStore) -> None:
    await fold_by_event(store, [(0, 1_000, b"sa", 0), (1, 1_020, b"sb", 0)])
    await fold_by_event(store, [(2, 1_021, b"sb", 15)])
    found = [[entry.member for entry in (await seal(store, 2, clock_ms, BY_EVENT)).sealed] for clock_ms in (1_103, 1_107)]

    assert [[b"sa"], [b"sb"]] == found


async def test_forgotten_group_does_not_bring_back_the_former_timer_of_another_group(store: ShardStore) -> None:
    await fold_by_event(store, [(0, 1_000, b"sa", 0), (1, 1_020, b"sb", 0)])
    await fold_by_event(store, [(2, 1_021, b"sb", 15)])
    await store.forget("me", [b"sa"], 100, [])

    assert [b"sb"] == [entry.member for entry in (await seal(store, 2, 1_107, BY_EVENT)).sealed]


async def test_group_that_opens_again_as_a_hash_has_nothing_of_a_hash_that_a_failed_script_has_left(store: ShardStore) -> None:
    await fold(store, -1, chunk_of([FoldEvent(0, 1_000, b"sa", {"u": 1})]), SESSIONS)
    await store.redis.hset(store.keys.group_prefix + "sa", "former", b"1")
    events = [FoldEvent(1, 2_000, b"sa", LONG), FoldEvent(2, 2_001, b"sb", {"u": 1})]
    await fold(store, 0, chunk_of(events), SESSIONS)

    assert {*LONG} == {name.decode() for name in (await open_groups(store))[b"sa"].names}


async def left_by_an_older_state(store: ShardStore) -> None:
    """Store packed groups of a former state, and a hash of the present one, as an older version has written it."""
    await fold(store, -1, chunk_of([FoldEvent(0, 1_000, b"sa", {"old": 1})]))
    remains: Any = await store.redis.dump(store.keys.open)
    await store.unpack("me")
    events = [FoldEvent(1, 1_001, b"sa", {"new": 1})]
    FormPacker.stores_packed = False
    await fold(store, 0, chunk_of(events))
    FormPacker.stores_packed = True
    await store.redis.restore(store.keys.open, 0, remains)
    assert await store.redis.hget(store.keys.meta, "format") is None


async def test_unpacking_does_not_replace_a_group_by_one_of_an_older_state(store: ShardStore) -> None:
    await left_by_an_older_state(store)
    await store.unpack("me")

    assert set() == await packed_in(store)
    assert {b"old", b"new"} == set((await open_groups(store))[b"sa"].names)


async def test_forget_counts_no_packed_group_of_an_older_state(store: ShardStore) -> None:
    await left_by_an_older_state(store)

    assert (1, 2) == (await store.forget("me", [b"sa"], 100, []))[:2]


async def test_rewind_leaves_no_format_of_packed_groups(store: ShardStore) -> None:
    await fold(store, -1, chunk_of([FoldEvent(0, 1_000, b"sa", {"u": 1})]))
    await store.redis.delete(store.keys.first)  # as if a script that seals the group had failed
    await store.rewind("me", 0, -1, [], 1)
    await fold(store, -1, chunk_of([FoldEvent(0, 1_000, b"sb", {"u": 1})]))
    text: Any = await store.redis.hget(store.keys.meta, "lost")

    assert {b"sb"} == await packed_in(store)
    assert text.startswith(b"1 (")
