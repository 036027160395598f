"""However a range is split, and wherever a script dies: the same groups are open, and the same records are emitted."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import timedelta
from itertools import cycle
from typing import Any, NamedTuple
from unittest.mock import patch

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st
from redis.asyncio import Redis

from streams_app.delivery.batch import TP
from streams_app.delivery.clocks import ReaderView
from streams_app.fold import Fold
from streams_app.folding.core import chunks as chunks_module
from streams_app.folding.core.closing import Bounds
from streams_app.folding.core.event import FoldEvent
from streams_app.folding.core.model import MemoryShard, OpenGroup
from streams_app.folding.core.record import SealedGroup
from streams_app.folding.shard import range_progress
from streams_app.folding.shard.range_progress import ChunkProgress
from streams_app.folding.shard.shard import Shard
from streams_app.folding.store.arguments import GroupPacker
from streams_app.folding.store.codec import StoredGroup
from streams_app.folding.store.replies import FoldOutcome
from streams_app.folding.store.shard_store import ShardStore
from tests.helpers.folding.scripts import (
    EPOCH,
    PARTITIONS,
    BriefStore,
    FormPacker,
    StoredContent,
    chunk_of,
    emptied,
    fold,
    meta_of,
    new_store,
    open_groups,
    outbox_of,
    seal,
    send,
)
from tests.helpers.folding.shapes import RUNS, bounds_of_a_fold, events_after, shapes, widened, widths

works = st.lists(st.sampled_from([1, 12, 40, 5_000]), min_size=1, max_size=4)


@pytest.fixture
async def redis(redis_client: Redis) -> Redis:
    """Rename the fixture: hypothesis runs many examples in one test."""
    return redis_client


def comparable(sealed: SealedGroup, *, keeps_values: bool = True) -> tuple[Any, ...]:
    names = {name: orjson.loads(value) if keeps_values else None for name, value in sealed.names.items()}
    return (*sealed[:9], names)


def group_of(group: OpenGroup, *, keeps_values: bool = True) -> StoredContent:
    names = {name.encode(): value if keeps_values else b"" for name, value in group.names.items()}
    return StoredContent(
        StoredGroup(
            b"", group.first_offset, group.last_offset, group.opened_ms, group.score_ms, group.events, group.low_ms, group.high_ms,
            len(names), group.silent_from_ms,
        ),
        names,
    )  # fmt: skip


# Several scripts


@RUNS
@given(
    before=shapes, drawn=shapes, bounds=bounds_of_a_fold, keeps_values=st.booleans(), works=works,
    mosts=st.lists(st.sampled_from([1, 2, 5, 100]), min_size=1, max_size=3), width=widths,
)  # fmt: skip
@pytest.mark.usefixtures("each_form")
async def test_range_in_several_scripts_has_the_same_result_as_event_by_event(
    redis: Redis, before: Any, drawn: Any, bounds: Bounds, keeps_values: bool, works: list[int], mosts: list[int], width: int
) -> None:
    store = new_store(redis)
    await store.claim("me", -1, EPOCH, "")
    model, expected = MemoryShard(bounds, PARTITIONS), []
    packing = FormPacker(bounds, EPOCH, PARTITIONS, keeps_values=keeps_values)
    small, much = cycle([BriefStore(store, work) for work in works]), cycle(mosts)
    clock, fence, found = 0, -1, []
    for shape in (before, drawn):
        events = widened(events_after(shape, fence, max(clock, 1_000)), width)
        end = events[-1].offset + 1 if events else fence + 1
        chunk = chunk_of(events, bounds, end=end, start_ms=clock, keeps_values=keeps_values) if events else None
        for event in events:
            clock = max(clock, event.timestamp_ms)
            expected += model.fold(event, clock)
        if chunk is None:
            continue
        found += await fold_in_parts(chunk, fence, events, packing, small, much)
        fence = end
    if bounds.sessions:
        # A session that ends before the end of its range leaves at once, with its range or at the next seal.
        expected += model.seal(clock)
        found += (await seal(store, fence, clock, bounds, limit=1_000)).sealed
    opened, left, meta = await open_groups(store), await outbox_of(store), await meta_of(store)
    in_order = sorted((comparable(entry, keeps_values=keeps_values) for entry in expected), key=lambda entry: entry[1])

    assert {group: group_of(open_group, keeps_values=keeps_values) for group, open_group in model.open.items()} == opened
    assert in_order == [comparable(entry, keeps_values=keeps_values) for entry in left]
    assert in_order == sorted((comparable(entry, keeps_values=keeps_values) for entry in found), key=lambda entry: entry[1])
    assert (str(fence), str(clock), False) == (meta["fence"], meta["clock"], "to" in meta)
    await emptied(store)


async def fold_in_parts(
    chunk: chunks_module.Chunk, fence: int, events: list[FoldEvent], packing: GroupPacker, stores: Iterator[ShardStore],
    mosts: Iterator[int],
) -> list[SealedGroup]:  # fmt: skip
    """Fold by scripts of different sizes, and return what they sealed."""
    progress, found = ChunkProgress(chunk, b"", lambda: events), []
    outcome = FoldOutcome.MORE
    while outcome is not FoldOutcome.DONE:
        groups, is_last = progress.next_groups(next(mosts), packing, 0)
        reply = await send(next(stores), fence, chunk, groups, packing.bounds, cursor=progress.cursor, is_last=is_last)
        outcome = reply.outcome
        found += reply.sealed
        if outcome is FoldOutcome.DETAIL:
            progress.detail(reply.detail, packing.bounds)
        elif outcome is FoldOutcome.MORE:
            assert reply.cursor > progress.cursor
            progress.advance_to(reply.cursor)
    return found


# Two owners in turn


class Range(NamedTuple):
    """A fetched range and its time."""

    events: list[FoldEvent]
    end: int
    now_ms: int
    is_live: bool


async def owner(store: ShardStore, fold: Fold) -> Shard:
    shard = Shard(fold, TP("t", 0), store)
    await shard.claim(0, PARTITIONS)
    return shard


async def fold_range(shard: Shard, given: Range, *, max_steps: int = 10**6) -> None:
    """Fold a range, or its first steps."""
    if given.is_live:
        shard.clock.caught_up_at_ms = given.now_ms
    events = [event for event in given.events if event.offset > shard.fence]
    for chunk in shard.chunks(events, given.end, ReaderView(None, given.now_ms), given.now_ms):
        progress = shard.begin(chunk, lambda: events)
        outcome = FoldOutcome.MORE
        while outcome is not FoldOutcome.DONE:
            if max_steps == 0:
                return
            max_steps -= 1
            outcome = (await shard.fold_once(progress)).outcome


@RUNS
@given(
    before=shapes, drawn=shapes, after=shapes, backlog=st.sampled_from(["merge", "sessions"]), is_live=st.booleans(),
    max_events=st.sampled_from([0, 3]), max_changed=st.sampled_from([3, 10_000]), ahead_ms=st.integers(-200, 300), width=widths,
    later_ms=st.integers(0, 500), steps=st.integers(1, 8), work=st.sampled_from([1, 30]), keep=st.sampled_from(["names", "last"]),
)  # fmt: skip
async def test_two_alternating_owners_have_the_same_result_as_one_at_any_takeover(
    redis: Redis, before: Any, drawn: Any, after: Any, backlog: Any, is_live: bool, max_events: int, max_changed: int,
    ahead_ms: int, later_ms: int, steps: int, work: int, keep: Any, width: int,
) -> None:  # fmt: skip
    declared = Fold(
        name="f", source="t", group_key="a", changed="m", backlog=backlog, keep=keep, max_events=max_events,
        max_changed=max_changed, quiet_period=timedelta(milliseconds=20), max_hold=timedelta(milliseconds=100),
    )  # fmt: skip
    history = widened(events_after(before), width)
    events = widened(
        events_after(drawn, history[-1].offset if history else -1, history[-1].timestamp_ms if history else 1_000), width
    )
    more = widened(
        events_after(after, events[-1].offset + 1 if events else 100, events[-1].timestamp_ms if events else 1_000), width
    )
    now_ms = 1_200 + ahead_ms
    ends = [found[-1].offset if found else -1 for found in (history, events, more)]
    first = Range(history, ends[0], 1_000, is_live=False)
    second = Range(events, max(ends[:2]), now_ms, is_live)
    # The next owner starts further back, or nearer, and its fetch returns more.
    third = Range([*events, *more], max(ends), now_ms + later_ms, is_live=False)
    found = []
    with patch.multiple(range_progress, FIRST_GROUPS=2, MAX_GROUPS=3):
        for max_steps in (10**6, steps):
            store = new_store(redis)
            shard = await owner(BriefStore(store, work), declared)
            await fold_range(shard, first)
            await fold_range(shard, second, max_steps=max_steps)
            heir = await owner(BriefStore(store, work), declared)
            await fold_range(heir, third)
            assert sorted(entry.first_offset for entry in heir.outbox) == [entry.first_offset for entry in await outbox_of(store)]
            meta = await meta_of(store)
            for its_own in ("token", "reads_blocks", "reads_packed", "epoch", "owner"):
                del meta[its_own]
            found.append((await open_groups(store), await outbox_of(store), meta, heir.clock.stored))
            await emptied(store)
    whole, in_turn = found

    assert whole == in_turn


# Bounds inside a run


@pytest.mark.usefixtures("each_form")
@pytest.mark.parametrize("is_open", [False, True], ids=["a new group", "a group that was open"])
@pytest.mark.parametrize(
    "bounds",
    [
        pytest.param(Bounds(1_000, 10_000, max_events=3), id="max events"),
        pytest.param(Bounds(1_000, 10_000, max_changed=3), id="max changed"),
        pytest.param(Bounds(1_000, 40), id="max hold"),
        pytest.param(Bounds(1_000, 40, sessions=True), id="max hold of sessions"),
        pytest.param(Bounds(1_000, 40, max_events=2, max_changed=2), id="all of them"),
    ],
)
async def test_bound_inside_a_run_splits_it(redis: Redis, bounds: Bounds, is_open: bool) -> None:
    store = new_store(redis)
    await store.claim("me", -1, EPOCH, "")
    model, expected, fence, asked = MemoryShard(bounds, PARTITIONS), [], -1, []
    history = [FoldEvent(0, 1_000, b"sa", {"n0": 0})] if is_open else []
    late = [FoldEvent(at, 1_000 + 11 * at, b"sb" if at % 4 == 3 else b"sa", {f"n{at % 5}": at}) for at in range(1, 12)]
    original = ChunkProgress.detail

    def recorded(self: ChunkProgress, groups: Mapping[bytes, OpenGroup | None], bounds: Bounds) -> None:
        asked.append({group: open_group is not None for group, open_group in groups.items()})
        original(self, groups, bounds)

    with patch.object(ChunkProgress, "detail", recorded):
        for events in filter(None, (history, late)):
            await fold(store, fence, chunk_of(events, bounds, start_ms=1_000), bounds, events)
            fence = events[-1].offset
            for event in events:
                expected += model.fold(event, event.timestamp_ms)
    left = [comparable(entry) for entry in await outbox_of(store)]

    assert is_open in [groups[b"sa"] for groups in asked if b"sa" in groups]
    assert sorted(map(comparable, expected), key=lambda entry: entry[1]) == left
    assert {group: group_of(open_group) for group, open_group in model.open.items()} == await open_groups(store)
    await emptied(store)
