"""Detailed folds: the scripts agree with the model, however a range is split."""

from __future__ import annotations

from dataclasses import replace
from decimal import Decimal
from typing import Any, Final, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st
from redis.asyncio import Redis

from streams_app.fold import Aggregate
from streams_app.folding.core.aggregates import Aggregates, json_of
from streams_app.folding.core.closing import Bounds
from streams_app.folding.core.detailed_chunks import DetailedChunkCutter
from streams_app.folding.core.event import DetailedEvent
from streams_app.folding.core.kept_chunks import KeptChunkCutter
from streams_app.folding.core.kept_events import events_of
from streams_app.folding.core.model import MemoryShard
from streams_app.folding.core.record import SealedGroup
from streams_app.folding.core.shard_clock import RangeTime
from tests.helpers.folding.scripts import (
    EPOCH,
    PARTITIONS,
    WALL,
    BriefStore,
    emptied,
    fold,
    new_store,
    open_groups,
    outbox_of,
    packed,
    seal,
    send,
)
from tests.helpers.folding.shapes import RUNS

bounds_of_details = st.builds(
    Bounds,
    quiet_ms=st.sampled_from([5, 20]),
    hold_ms=st.sampled_from([20, 50, 1_000]),
    max_events=st.sampled_from([0, 0, 1, 3]),
    max_changed=st.sampled_from([2, 4, 10_000]),
    max_bytes=st.just(0),
    leading=st.sampled_from([False, False, True]),
    is_quiet_by_event=st.booleans(),
    sessions=st.booleans(),
    reads_details=st.just(True),
    dedupes=st.booleans(),
).map(lambda bounds: replace(bounds, leading=bounds.leading and not bounds.dedupes))
bounds_of_events = bounds_of_details.flatmap(
    lambda bounds: st.builds(replace, st.just(bounds), max_bytes=st.sampled_from([12, 40, 500]))
)

pytestmark = pytest.mark.usefixtures("each_form")
AGGREGATES = Aggregates.of({"u": "sum", "v": "max", "w": "min", "x": "count", "y": "mean", "z": "first", "*": "last"})
bounds_of_aggregates = bounds_of_details.map(lambda bounds: replace(bounds, aggregates=AGGREGATES))
long_numbers = st.sampled_from(
    [
        Decimal("12345678901234567.89"),
        Decimal("12345678901234567.90"),
        Decimal("-1." + "0" * 60 + "1"),
        Decimal("-1." + "0" * 60 + "2"),
    ]
)
numbers = st.one_of(
    st.integers(-9, 9), st.integers(-(2**63), 2**63), st.integers(-(10**400), 10**400), long_numbers,
    st.floats(allow_nan=False, allow_infinity=False),
)  # fmt: skip
steps = st.lists(
    st.tuples(
        st.lists(
            st.tuples(
                st.integers(1, 3),
                st.integers(0, 25),
                st.sampled_from([b"sa", b"sb", b"j1"]),
                st.dictionaries(st.sampled_from("tuvwxyz"), numbers, max_size=3),
                st.sampled_from([False, False, True]),
            ),
            max_size=12,
        ),
        st.integers(0, 60),
    ),
    max_size=6,
)


@pytest.fixture
async def redis(redis_client: Redis) -> Redis:
    return redis_client


def comparable(sealed: SealedGroup) -> tuple[Any, ...]:
    """Return the content of a sealed group, regardless of how it was cut into runs."""
    names = sealed.names
    if any(name.isdigit() for name in names):
        return (*sealed[:9], events_of(names))
    return (*sealed[:9], {name: json_of(value) for name, value in names.items()})


def by_offset(entries: list[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    return sorted(entries, key=lambda entry: entry[1])


def contents_of(bounds: Bounds, names: dict[str, Any], offset: int) -> tuple[dict[str, Any], bytes]:
    """Return what is kept of an event."""
    if bounds.max_bytes:
        return {}, b"x" * (1 + offset % 11)
    return names, b""


@RUNS
@given(
    steps=steps, bounds=st.one_of(bounds_of_details, bounds_of_events, bounds_of_aggregates), most=st.sampled_from([1, 2, 100]),
    work=st.sampled_from([1, 40, 5_000]),
)  # fmt: skip
async def test_scripts_agree_with_the_model(redis: Redis, steps: Any, bounds: Bounds, most: int, work: int) -> None:
    store = BriefStore(new_store(redis), work)
    model = MemoryShard(bounds, PARTITIONS)
    expected: list[tuple[Any, ...]] = []
    found: list[tuple[Any, ...]] = []
    await store.claim("me", -1, EPOCH, "")
    fence, clock, stamp = -1, 0, 1_000
    for events, pause in steps:
        batch: list[DetailedEvent] = []
        at = fence
        for gap, later, group, names, closes in events:
            at, stamp = at + gap, stamp + later
            kept, json = contents_of(bounds, names, at)
            shorter_ms = at * 7 % bounds.quiet_ms if bounds.is_quiet_by_event else 0
            event_id = b"%016d" % (at * 7 % 5) if bounds.dedupes else b""
            batch.append(DetailedEvent(at, stamp, group, kept, closes, json, shorter_ms, event_id))
            expected += map(comparable, model.fold(batch[-1], stamp))
        cutter_of = KeptChunkCutter if bounds.max_bytes else DetailedChunkCutter
        cutter = cutter_of(batch, fence, at, bounds, keeps_values=True)
        while cutter.above < at:
            chunk = cutter.next(RangeTime(WALL, None), clock)
            found += map(comparable, await fold(store, fence, chunk, bounds, batch, most=most))
            fence, clock = chunk.to, chunk.clock_ms
        stamp += pause
        clock = stamp
        expected += map(comparable, model.seal(stamp))
        found += map(comparable, (await seal(store, fence, clock, bounds, limit=1_000)).sealed)

        stored = await open_groups(store)

        assert set(model.open) == set(stored)
        assert {group: one.duplicates for group, one in model.open.items()} == {
            group: content.numbers.duplicates for group, content in stored.items()
        }
        for group, one in model.open.items():
            ids: Any = await redis.hgetall(store.keys.ids_prefix + group.decode())
            assert {key: int(offset) for key, offset in ids.items()} == one.ids
    assert by_offset(expected) == by_offset(found) == by_offset(list(map(comparable, await outbox_of(store))))
    await emptied(store)


EVERY_KIND: Final[dict[str, Aggregate]] = {kind: kind for kind in get_args(Aggregate)}


@pytest.mark.parametrize(
    "values",
    [[1, 2, 3], [3, 1, 1], [0.1, 0.2, 0.3], [2**70, -1, 0.5], [Decimal("12345678901234567.89"), 0.1, 1e300]],
    ids=["rising", "falling", "floats", "long", "decimal"],
)
async def test_every_aggregate_is_combined_in_redis_as_by_the_model(redis: Redis, values: list[Any]) -> None:
    bounds = Bounds(10, 100_000, reads_details=True, aggregates=Aggregates.of(EVERY_KIND))
    store, model = new_store(redis), MemoryShard(bounds, PARTITIONS)
    await store.claim("me", -1, EPOCH, "")
    for offset, value in enumerate(values):  # a script for each event, so that stored values are combined
        event = DetailedEvent(offset, 1_000, b"sa", dict.fromkeys(EVERY_KIND, value), False)
        model.fold(event, 1_000)
        chunk = DetailedChunkCutter([event], offset - 1, offset, bounds, keeps_values=True).next(RangeTime(WALL, None), 1_000)
        await fold(store, offset - 1, chunk, bounds, [event], most=100)
    (sealed,) = (await seal(store, len(values) - 1, 5_000, bounds, limit=10)).sealed

    assert list(map(comparable, model.seal(5_000))) == [comparable(sealed)]
    assert EVERY_KIND.keys() == sealed.names.keys()
    await emptied(store)


async def test_closing_event_folded_by_a_dead_script_closes_nothing_twice(redis: Redis) -> None:
    store, bounds = new_store(redis), Bounds(10, 1_000, reads_details=True)
    await store.claim("me", -1, EPOCH, "")
    events = [DetailedEvent(0, 1_000, b"sa", {"u": 1}, True), DetailedEvent(1, 1_001, b"sa", {"v": 2}, False)]
    chunk = DetailedChunkCutter(events, -1, 1, bounds, keeps_values=True).next(RangeTime(WALL, None), 0)
    first = await send(store, -1, chunk, packed(chunk, bounds), bounds)
    await redis.hset(store.keys.meta, "fence", "-1")
    repeated = await send(store, -1, chunk, packed(chunk, bounds), bounds)

    assert [("closed", 0, 0)] == [(one.reason, one.first_offset, one.last_offset) for one in first.sealed]
    assert [] == repeated.sealed
    assert {b"sa": 1} == {group: content.numbers.first_offset for group, content in (await open_groups(store)).items()}
