"""The curve compared with a replay of every event by :class:`MemoryShard`: every number of every point."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from streams_app.folding.core.chunks import ChunkCutter
from streams_app.folding.core.closing import Bounds
from streams_app.folding.core.event import FoldEvent
from streams_app.folding.core.model import MemoryShard
from streams_app.folding.core.shard_clock import RangeTime
from streams_app.tuning.columns import Columns
from streams_app.tuning.replay import curve_of

NOW_MS = 100_000
FAR = 2**61
Raw = tuple[int, int, bytes, Any]
"""Partition, timestamp, group, names."""

GROUPS = st.sampled_from([b"sa", b"sb", b"sc", b"n1"])
NAMES = st.lists(st.sampled_from("uvwxyz"), max_size=3, unique=True).map(dict.fromkeys)
STEPS = st.sampled_from([0, 0, 1, 1, 2, 3, 5, 8, 20, -1, -7])
BOUNDS = st.builds(
    Bounds,
    quiet_ms=st.just(1),
    hold_ms=st.sampled_from([1, 2, 3, 5, 9, 20, 10**9]),
    max_events=st.sampled_from([0, 0, 1, 2, 3]),
    max_changed=st.sampled_from([1, 2, 3, 10_000]),
    sessions=st.just(True),
)
WINDOWS = st.lists(st.sampled_from([1, 2, 3, 4, 5, 8, 13, 30, 10**8]), min_size=1, max_size=4, unique=True)


@st.composite
def event_lists(draw: st.DrawFn) -> list[Raw]:
    at_ms, events = 1_000, []
    for step, partition, group, names in draw(st.lists(st.tuples(STEPS, st.integers(0, 2), GROUPS, NAMES), max_size=40)):
        at_ms += step
        stamp = {0: -1, 1: NOW_MS + 5, 2: NOW_MS + 50}.get(at_ms % 13, at_ms)
        events.append((partition, stamp, group, names))
    return events


@dataclass(frozen=True)
class ReplayedRecord:
    """One record, by the scores of its events."""

    group: tuple[int, bytes]
    scores: tuple[int, ...]
    closed_ms: int


def records_by_shards(events: list[Raw], bounds: Bounds) -> list[ReplayedRecord]:
    """Replay event by event with the classes of folding, and return the records."""
    replayed_records: list[ReplayedRecord] = []
    for partition in {event[0] for event in events}:
        rows = [FoldEvent(at, stamp, group, names) for at, (of, stamp, group, names) in enumerate(events) if of == partition]
        shard, scores, clock = MemoryShard(bounds), {}, 0
        groups: dict[int, bytes] = {}
        sealed = []
        for row in rows:
            cutter = ChunkCutter([row], row.offset - 1, row.offset, bounds, keeps_values=True)
            clock = cutter.next(RangeTime(NOW_MS, None), clock).clock_ms
            scores[row.offset], groups[row.offset] = clock, row.group
            sealed += shard.seal(clock)
            sealed += shard.fold(row, clock)
        sealed += shard.seal(FAR)
        for one in sealed:
            own = (at for at in scores if one.first_offset <= at <= one.last_offset and groups[at] == one.member)
            replayed_records.append(ReplayedRecord((partition, one.member), tuple(scores[at] for at in own), one.due_ms))
    return replayed_records


def percentile(values: list[int], percent: int) -> int | None:
    """Return the nearest-rank percentile: the smallest value that at least `percent` of the values do not exceed."""
    return min((value for value in values if sum(other <= value for other in values) * 100 >= percent * len(values)), default=None)


def peak(replayed_records: list[ReplayedRecord]) -> int:
    instants = {one.scores[0] for one in replayed_records}
    return max((len({one.group for one in replayed_records if one.scores[0] <= at <= one.closed_ms}) for at in instants), default=0)


def statistics(events: list[Raw], bounds: Bounds, quiet_ms: int) -> tuple[Any, ...]:
    replayed_records = records_by_shards(
        events, Bounds(quiet_ms, bounds.hold_ms, bounds.max_events, bounds.max_changed, sessions=True)
    )
    waits = [one.closed_ms - score for one in replayed_records for score in one.scores]
    assert len(waits) == len(events)
    ratio = 1 - len(replayed_records) / len(events) if events else 0.0
    mean = round(sum(waits) / len(waits)) if waits else None
    of_waits = (*(percentile(waits, percent) for percent in (50, 95, 99)), mean, max(waits, default=None))
    return quiet_ms, len(replayed_records), ratio, *of_waits, peak(replayed_records)


def columns_of(events: list[Raw], **options: Any) -> Columns:
    columns = Columns(now_ms=NOW_MS, capacity=1_000, **options)
    for half in (events[: len(events) // 2], events[len(events) // 2 :]):
        for partition in range(3):
            columns.add(partition, [(at, *event[1:]) for at, event in enumerate(half) if event[0] == partition])
    return columns


BLOCKED = [
    f"streams_app.tuning.{name}"
    for name in ("columns._BLOCK", "columns._SORT_BLOCK", "name_sets._BLOCK", "memory._BLOCK", "replay._BLOCK", "splitting._BLOCK")
]


@given(event_lists(), BOUNDS, WINDOWS, st.sampled_from([2, 3, 7, 1 << 19]))
@example([(0, 1_000, b"sa", {})] * 3, Bounds(1, 1, 1, 1, sessions=True), [1], 2)
@example([(0, NOW_MS + 5, b"sa", {}), (0, NOW_MS + 50, b"sa", {})], Bounds(1, 10**9, sessions=True), [1], 1 << 19)
def test_curve_matches_an_event_by_event_replay(events: list[Raw], bounds: Bounds, windows: list[int], block: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        for name in BLOCKED:
            patch.setattr(name, block)
        curve = curve_of("f", columns_of(events, max_changed=bounds.max_changed), bounds, windows)
    found = [(one.quiet_ms, one.records, one.ratio, one.latency_p50_ms, one.latency_p95_ms, one.latency_p99_ms,
              one.latency_mean_ms, one.latency_max_ms, one.peak_open_groups) for one in curve.points]  # fmt: skip

    assert [statistics(events, bounds, quiet_ms) for quiet_ms in sorted(windows)] == found
    assert (len(events), len({(event[0], event[2]) for event in events})) == (curve.events, curve.groups)
    scores = [score for one in records_by_shards(events, bounds) for score in one.scores]
    assert (min(scores, default=0), max(scores, default=0)) == (curve.from_ms, curve.to_ms)


DAY_MS = 86_400_000


def test_range_of_years_is_replayed_as_exactly_as_one_of_days() -> None:
    days = {b"sa": (400, 401, 470), b"sb": (900, 2_000), b"sc": (399,)}
    columns = Columns(now_ms=3_000 * DAY_MS)
    for partition, (member, of) in enumerate(days.items()):
        columns.add(partition, [(at, day * DAY_MS, member, {}) for at, day in enumerate(of)])
    bounds = Bounds(1, 5_000 * DAY_MS, sessions=True)
    points = curve_of("f", columns, bounds, [DAY_MS - 1, DAY_MS, 100 * DAY_MS, 1_100 * DAY_MS]).points

    assert (399 * DAY_MS, 2_000 * DAY_MS) == (columns.from_ms, columns.to_ms)
    assert [6, 5, 4, 3] == [point.records for point in points]
    assert [DAY_MS - 1, DAY_MS, 100 * DAY_MS, 1_100 * DAY_MS] == [point.latency_p50_ms for point in points]
