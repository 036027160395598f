"""A script that dies half-way leaves its writes: after it is repeated, no event is lost or counted twice."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from redis.asyncio import Redis
from redis.exceptions import ResponseError

from streams_app.folding.core.chunks import Chunk
from streams_app.folding.core.closing import Bounds
from streams_app.folding.core.event import FoldEvent
from streams_app.folding.core.record import SealedGroup
from streams_app.folding.store.shard_store import ShardStore
from tests.helpers.folding.scripts import (
    EPOCH,
    BriefStore,
    StoredContent,
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
)
from tests.helpers.folding.shapes import RUNS, bounds_of_a_fold, events_after, shapes, widened, widths
from tests.simulation.redis import dying

pytestmark = pytest.mark.usefixtures("each_form")

MAX_WRITES = 25
"""An upper bound of the writes in the script of :data:`LATE`."""

BEFORE = [FoldEvent(at, 1_000, group, {}) for at, group in enumerate([b"sa", b"sb", b"sc"])]
LATE = [
    FoldEvent(3 + at, stamp, group, {})
    for at, (stamp, group) in enumerate(
        [
            (1_001, b"sa"), (1_001, b"sb"), (1_001, b"snew"), (1_002, b"sa"), (1_020, b"sa"), (1_020, b"sd"), (1_021, b"sb"),
            (1_040, b"sa"), (1_041, b"sa"), (1_042, b"snew"),
        ]
    )
]  # fmt: skip


def named(events: list[FoldEvent]) -> list[FoldEvent]:
    """Give each event a name of its own, so that the names of a record identify its events."""
    return [event._replace(names={f"n{event.offset}": 1}) for event in events]


async def begun(redis: Redis, events: list[FoldEvent], bounds: Bounds) -> ShardStore:
    """Return a shard that has folded these events."""
    store = new_store(redis)
    await store.claim("me", -1, EPOCH, "")
    if events:
        await fold(store, -1, chunk_of(events, bounds), bounds, events)
    return store


async def die(store: ShardStore, fence: int, chunk: Chunk, bounds: Bounds, events: list[FoldEvent], writes: int) -> bool:
    """Fold a chunk by a script that dies after this number of writes; return whether it died.

    If it has written an entry of several records, or a packed group, older versions must not read the shard.
    """
    meta = await meta_of(store)
    try:
        await fold(edited(store, partial(dying, writes=writes)), fence, chunk, bounds, events)
    except ResponseError as error:
        assert "the script fails here" in str(error)
        left = await meta_of(store)
        assert left.get("format") in {"2", "3"} or all(len(offsets) == 1 for _, offsets in await entries_of(store))
        assert ("3" == left.get("format") and " " in left["lost"]) or not await packed_in(store)
        unchanged = {"format": "", "lost": ""}
        assert meta | unchanged == left | unchanged
        return True
    return False


async def state_of(store: ShardStore) -> tuple[dict[bytes, StoredContent], list[SealedGroup]]:
    """Return open groups and outbox, and check that no group counts an event twice."""
    opened, sealed = await open_groups(store, has_remains=True), await outbox_of(store)
    assert all(content.numbers.events == len(content.names) for content in opened.values())
    assert all(entry.events == len(entry.names) for entry in sealed)
    return opened, sealed


def names_of(opened: dict[bytes, StoredContent], sealed: list[SealedGroup]) -> set[str]:
    return {name.decode() for content in opened.values() for name in content.names} | {
        name for entry in sealed for name in entry.names
    }


@pytest.mark.parametrize(
    "bounds",
    [
        pytest.param(Bounds(10, 1_000), id="merge"),
        pytest.param(Bounds(10, 1_000, sessions=True), id="sessions"),
        pytest.param(Bounds(10, 30, max_changed=3, sessions=True), id="all bounds"),
    ],
)
@pytest.mark.parametrize("width", [1, 150], ids=["short names", "long names"])
async def test_repeated_script_completes_its_work_after_dying_at_any_write(
    redis_client: Redis, bounds: Bounds, width: int, *, each_form: bool
) -> None:
    """Groups sealed before the script died may be sealed a second time, with events that are already in a record."""
    before, late = widened(named(BEFORE), width), widened(named(LATE), width)
    chunk = chunk_of(late, bounds, start_ms=1_000)
    whole = await begun(redis_client, before, bounds)
    await fold(whole, 2, chunk, bounds, late)
    expected, expected_records = await state_of(whole)
    deaths = 0
    for writes in range(MAX_WRITES):
        store = await begun(redis_client, before, bounds)
        if not await die(store, 2, chunk, bounds, late, writes):
            break
        deaths += 1
        await fold(store, 2, chunk, bounds, late)
        opened, records = await state_of(store)

        assert expected == opened
        assert set() == names_of(opened, []) & names_of({}, records)
        assert [] == [entry for entry in expected_records if entry not in records]
        await emptied(store)
    await emptied(whole)
    assert (4 if each_form else 5) <= deaths < MAX_WRITES - 1


@RUNS
@given(
    before=shapes, drawn=shapes, bounds=bounds_of_a_fold, writes=st.integers(0, 15), work=st.sampled_from([1, 30, 5_000]),
    deaths=st.integers(1, 3), flushes=st.booleans(), width=widths,
)  # fmt: skip
async def test_events_are_neither_missing_nor_counted_twice_after_scripts_die(
    redis_client: Redis, before: Any, drawn: Any, bounds: Bounds, writes: int, work: int, deaths: int, flushes: bool, width: int
) -> None:
    events = widened(named(events_after(before)), width)
    fence, clock = (events[-1].offset, max(event.timestamp_ms for event in events)) if events else (-1, 0)
    late = widened(named(events_after(drawn, fence, max(clock, 1_000))), width)
    if not late:
        return
    store = await begun(redis_client, events, bounds)
    chunk = chunk_of(late, bounds, start_ms=clock)
    for death in range(deaths):
        if not await die(store, fence, chunk, bounds, late, max(0, writes - death)):
            break
        if flushes:  # a flush of all groups is requested in the meantime
            await store.redis.sadd(store.keys.flush, "*")
            await seal(store, fence, 0, bounds, limit=1_000)
    if (await meta_of(store))["fence"] == str(fence):
        await fold(BriefStore(store, work), fence, chunk, bounds, late, most=3)
    opened, records = await state_of(store)
    lows = [content.numbers.first_offset for content in opened.values()] + [entry.first_offset for entry in records]

    assert {name for event in [*events, *late] for name in event.changed} == names_of(opened, records)
    assert (str(late[-1].offset), min([late[-1].offset + 1, *lows])) == ((await meta_of(store))["fence"], await store.watermark())
    await emptied(store)
