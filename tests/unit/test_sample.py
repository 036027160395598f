"""A sample of groups against a recomputation of all of them."""

from __future__ import annotations

import math
import random
import tracemalloc
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streams_app.folding.core.chunks import PAUSE_MS, Chunk, Cutter
from streams_app.folding.core.closing import Bounds
from streams_app.folding.core.event import Event, FoldEvent
from streams_app.folding.core.model import MemoryShard
from streams_app.folding.core.record import Sealed
from streams_app.folding.core.sample import MOST_GROUPS, GroupSample, Seen
from streams_app.folding.core.shard_clock import RangeTime
from streams_app.metric_table import GAP_BUCKETS

BOUNDS_MS = [seconds * 1_000 for seconds in GAP_BUCKETS]
LATE = 10**15
SECOND, MINUTE, DAY = 1_000, 60_000, 86_400_000
GROUPS = [b"sa", b"sb", b"sc"]


def bounds(quiet_ms: int = 10 * SECOND, hold_ms: int = 60 * SECOND, max_events: int = 0, *, sessions: bool = True) -> Bounds:
    return Bounds(quiet_ms, hold_ms, max_events, 10_000, sessions)


def cut(events: Sequence[Event], ends: Sequence[int], session_gap_ms: int | None, start_ms: int = 0) -> list[Chunk]:
    """The events as chunks that end at these offsets."""
    chunks: list[Chunk] = []
    above = -1
    for end in ends:
        part = [event for event in events if above < event[0] <= end]
        bounds = Bounds(session_gap_ms or 0, hold_ms=LATE, sessions=session_gap_ms is not None)
        cutter = Cutter(part, above, end, bounds, keeps_values=False)
        chunks.append(cutter.next(RangeTime(LATE, None), chunks[-1].clock_ms if chunks else start_ms))
        above = end
    return chunks


def log_of(steps: Sequence[tuple[int, bytes]], start_ms: int = DAY) -> list[Event]:
    """One event for each step: ms since the one before, and its group."""
    events: list[Event] = []
    at_ms = start_ms
    for offset, (step_ms, group) in enumerate(steps):
        at_ms += step_ms
        events.append((offset, at_ms, group, {"n": 1}))
    return events


def added(seen: Iterator[Seen] | Sequence[Seen]) -> tuple[list[int], int, int, int]:
    """Counts of gaps, their sum, groups begun, split folds."""
    counts, total, begun, split = [0] * (len(BOUNDS_MS) + 1), 0, 0, 0
    for each in seen:
        counts = [a + b for a, b in zip(counts, each.gaps.counts, strict=True)]
        total, begun, split = total + each.gaps.total_ms, begun + each.begun, split + each.split
    return counts, total, begun, split


def recomputed(events: Sequence[Event]) -> tuple[list[int], int, int]:
    """Counts of gaps, their sum, groups; one event at a time."""
    last: dict[bytes, int] = {}
    gaps = []
    clock = 0
    for _, at_ms, group, _ in events:
        clock = max(clock, at_ms)
        if group in last:
            gaps.append(clock - last[group])
        last[group] = clock
    counts = Counter(bisect_left(BOUNDS_MS, gap) for gap in gaps)
    return [counts[bucket] for bucket in range(len(BOUNDS_MS) + 1)], sum(gaps), len(last)


times = st.one_of(st.integers(-20 * SECOND, 40 * SECOND), st.sampled_from([0, 1, 999, 1_000, 1_001, 2_000, 10_000, 10_001, DAY]))
logs = st.lists(st.tuples(times, st.sampled_from(GROUPS)), min_size=1, max_size=60).map(log_of)


@given(logs, st.sets(st.integers(0, 59)), st.sampled_from([None, 300, 10 * SECOND]))
def test_gaps_are_those_of_all_events_however_they_are_cut(events: list[Event], cuts: set[int], session_gap_ms: int | None) -> None:
    sample = GroupSample(bounds(), BOUNDS_MS)
    ends = sorted({end for end in cuts if end < len(events) - 1} | {len(events) - 1})
    *found, split = added([sample.folded(0, chunk) for chunk in cut(events, ends, session_gap_ms)])
    counts, _, groups = expected = recomputed(events)

    assert [*expected, 0] == [*found, split]
    assert groups + sum(counts[BOUNDS_MS.index(10 * SECOND) + 1 :]) == sample._records


def closed_ms(record: Sealed, of: Bounds) -> int:
    return {"quiet": record.last_event_ms + of.quiet_ms, "max_hold": record.first_event_ms + of.hold_ms}.get(
        record.reason, record.last_event_ms
    )


def split_of(records: Sequence[Sealed], of: Bounds) -> int:
    """Folds that were opened within the quiet period after the one before them was closed, by the records alone."""
    folds: dict[bytes, list[Sealed]] = {}
    for record in sorted(records, key=lambda one: one.first_offset):
        folds.setdefault(record.member, []).append(record)
    pairs = (pair for held in folds.values() for pair in pairwise(held))
    return sum(after.first_event_ms - closed_ms(before, of) <= of.quiet_ms for before, after in pairs)


around = st.sampled_from([0, 4 * SECOND, 8 * SECOND, 10 * SECOND, 10 * SECOND + 1, 15 * SECOND, 20 * SECOND, 20 * SECOND + 1])
forward = st.lists(st.tuples(around, st.sampled_from(GROUPS[:2])), min_size=1, max_size=60).map(log_of)


@given(forward, st.sets(st.integers(0, 59), min_size=3), st.sampled_from([0, 1, 3]), st.randoms(use_true_random=False))
def test_split_folds_are_those_of_the_records_whenever_they_are_acknowledged(
    events: list[Event], cuts: set[int], max_events: int, chance: random.Random
) -> None:
    of = bounds(max_events=max_events)
    sample, shard = GroupSample(of, BOUNDS_MS), MemoryShard(of)
    ends = sorted({end for end in cuts if end < len(events) - 1} | {len(events) - 1})
    waiting: list[Sealed] = []
    records: list[Sealed] = []
    seen = []

    def acknowledge(most: int) -> None:
        seen.append(sample.emitted(0, waiting[:most], LATE))
        del waiting[:most]

    for chunk in cut(events, ends, of.session_gap_ms):
        for event in events:
            if chunk.above < event[0] <= chunk.to:
                new = shard.fold(FoldEvent(*event), event[1])
                waiting += new
                records += new
        acknowledge(chance.randint(0, len(waiting)))  # some before the last script of the chunk
        seen.append(sample.folded(0, chunk))
        acknowledge(chance.randint(0, len(waiting)))
    rest = shard.seal(LATE)
    waiting += rest
    records += rest
    acknowledge(len(waiting))

    assert split_of(records, of) == added(seen)[3]


def test_a_fold_that_opens_again_is_told_before_it_is_closed_again() -> None:
    sample = GroupSample(bounds(), BOUNDS_MS)
    first, second = cut(log_of([(0, b"sa"), (19 * SECOND, b"sa")]), [0, 1], None)
    sample.folded(0, first)
    sample.emitted(0, [Sealed(b"sa", 0, 0, 1, DAY, DAY, "quiet", DAY + 10 * SECOND, 1, {})], LATE)

    assert 1 == sample.folded(0, second).split


def test_a_record_that_is_made_again_is_no_split_fold() -> None:
    sample = GroupSample(bounds(), BOUNDS_MS)
    record = Sealed(b"sa", 0, 4, 5, DAY, DAY, "quiet", DAY + 10 * SECOND, 1, {})
    seen = [sample.emitted(0, [one], LATE).split for one in (record, record, record._replace(last_offset=6, events=7))]

    assert [0, 0, 0] == seen


def test_many_records_of_few_groups_leave_none_of_them_out() -> None:
    sample = GroupSample(bounds(), BOUNDS_MS, most_groups=4)
    records = [Sealed(GROUPS[at % 3], at, at, 1, DAY, DAY, "max_events", DAY, 1, {}) for at in range(30)]
    sample.emitted(0, records, LATE)

    assert (1, 3) == (sample.share, len(sample))


def record_of(events: int, first_ms: int, last_ms: int) -> Sealed:
    return Sealed(b"sa", 0, events - 1, events, first_ms, last_ms, "quiet", 0, 1, {})


@given(st.integers(1, 500), st.integers(0, 2 * DAY), st.integers(0, 2 * DAY))
def test_the_first_and_the_last_event_of_a_record_wait_as_long_as_they_did(events: int, one_ms: int, other_ms: int) -> None:
    first_ms, last_ms = sorted((one_ms, other_ms if events > 1 else one_ms))
    waits = GroupSample(bounds(), BOUNDS_MS).emitted(0, [record_of(events, first_ms, last_ms)], 2 * DAY).waits
    shortest, longest = (bisect_left(BOUNDS_MS, 2 * DAY - at_ms) for at_ms in (last_ms, first_ms))
    used = [bucket for bucket, count in enumerate(waits.counts) if count]

    assert (events, shortest, longest) == (sum(waits.counts), used[0], used[-1])


def test_the_events_between_are_evenly_spread() -> None:
    waits = GroupSample(bounds(), BOUNDS_MS).emitted(0, [record_of(101, 0, 100 * SECOND)], 100 * SECOND).waits
    longer = 101 - sum(waits.counts[: BOUNDS_MS.index(30 * SECOND) + 1])

    assert 70 == pytest.approx(longer, abs=1)
    assert 101 * 50 * SECOND == waits.total_ms


def test_a_record_of_times_to_come_did_not_wait() -> None:
    waits = GroupSample(bounds(), BOUNDS_MS).emitted(0, [record_of(5, DAY, 2 * DAY)], 0).waits

    assert (5, 0) == (waits.counts[0], waits.total_ms)


def many(seed: int, groups: int, sample: GroupSample) -> tuple[list[Event], list[Seen]]:
    """Six hours of groups some of which have one event and some two hundred, and what a sample saw of them."""
    chance = random.Random(seed)
    drawn: list[tuple[int, bytes]] = []
    for number in range(groups):
        member = b"saccount_%d" % (100_003 * seed + number)
        drawn += [(DAY + chance.randrange(360 * MINUTE), member) for _ in range(min(200, int(chance.paretovariate(0.9))))]
    events: list[Event] = [(offset, at_ms, group, {"n": 1}) for offset, (at_ms, group) in enumerate(sorted(drawn))]
    ends = [*range(4_999, len(events) - 1, 5_000), len(events) - 1]
    return events, [sample.folded(0, chunk) for chunk in cut(events, ends, None)]


@pytest.mark.parametrize("seed", [1, 2, 3])
@pytest.mark.parametrize("window", [10, 60, 900])
def test_what_a_sample_estimates_is_within_three_standard_errors(seed: int, window: int) -> None:
    sample = GroupSample(bounds(window * SECOND), BOUNDS_MS, most_groups=256)
    events, seen = many(seed, 3_000, sample)
    above = BOUNDS_MS.index(window * SECOND) + 1
    (true, _, groups), (found, _, begun, _) = recomputed(events), added(seen)
    records, estimated = groups + sum(true[above:]), begun + sum(found[above:])

    assert 1 / 32 <= sample.share <= 1 / 8
    assert 0 < sample.error < 0.4
    assert abs(estimated - records) <= 3 * sample.error * records


def test_the_error_that_is_made_is_as_large_as_the_one_that_is_told() -> None:
    """By its root mean square over many loads."""
    made = []
    for seed in range(20):
        sample = GroupSample(bounds(60 * SECOND), BOUNDS_MS, most_groups=128)
        events, seen = many(seed, 1_500, sample)
        above = BOUNDS_MS.index(60 * SECOND) + 1
        (true, _, groups), (found, _, begun, _) = recomputed(events), added(seen)
        records = groups + sum(true[above:])
        made.append((begun + sum(found[above:]) - records) / records / sample.error)
    typical = math.sqrt(sum(error * error for error in made) / len(made))

    assert 0.5 < typical < 1.5


def test_no_more_groups_are_remembered_than_were_allowed() -> None:
    sample = GroupSample(bounds(), BOUNDS_MS, most_groups=100)
    sizes = []
    for number in range(50):
        chunk = cut(log_of([(1, b"s%d-%d" % (number, at)) for at in range(100)]), [99], None)[0]
        sample.folded(number, chunk)
        sizes.append(len(sample))

    assert max(sizes) <= 100
    assert min(sizes) >= 20


def test_groups_that_were_silent_for_longer_than_any_window_make_room_first() -> None:
    sample = GroupSample(bounds(), BOUNDS_MS, most_groups=100)
    steps = [(1, b"sold%d" % at) for at in range(90)] + [(2 * DAY, b"snew0")] + [(1, b"snew%d" % at) for at in range(1, 60)]
    for chunk in cut(log_of(steps), [89, 90, 149], None):
        sample.folded(0, chunk)

    assert (1, 60) == (sample.share, len(sample))


def test_what_somebody_else_folded_between_is_no_gap() -> None:
    sample = GroupSample(bounds(), BOUNDS_MS)
    events = log_of([(0, b"sa"), (5 * SECOND, b"sa"), (5 * SECOND, b"sa"), (5 * SECOND, b"sa")])
    chunks = cut(events, [0, 1, 2, 3], None)
    found = added([sample.folded(0, chunks[at]) for at in (0, 2, 3)])

    assert (1, 5 * SECOND, 3 - 1) == (sum(found[0]), found[1], found[2])


def test_events_that_are_folded_again_are_not_counted_again() -> None:
    sample = GroupSample(bounds(), BOUNDS_MS)
    events = log_of([(1_500, GROUPS[at % 3]) for at in range(40)])
    first = [sample.folded(0, chunk) for chunk in cut(events, [9, 29], None)]
    again = [sample.folded(0, chunk) for chunk in cut(events, [9, 19, 29, 39], None)]

    assert list(recomputed(events)) == list(added([*first, *again])[:3])


def test_nothing_is_counted_of_a_chunk_that_was_counted_in_part() -> None:
    sample = GroupSample(bounds(), BOUNDS_MS)
    chunks = cut(log_of([(1_500, b"sa")] * 40), [9], None) + cut(log_of([(1_500, b"sa")] * 40), [19, 39], None)
    seen = [sample.folded(0, chunk) for chunk in chunks]

    # 9 gaps, and 19 of the last chunk, which the group begins anew: what lies between is unknown.
    assert (9 + 19, 28 * 1_500, 2) == (sum(added(seen)[0]), *added(seen)[1:3])


def test_a_group_that_comes_back_after_a_day_when_there_is_no_room_begins_anew() -> None:
    sample = GroupSample(bounds(), BOUNDS_MS, most_groups=100)
    steps = [(1, b"sold%d" % at) for at in range(90)] + [(2 * DAY, b"sold0")] + [(1, b"snew%d" % at) for at in range(60)]
    *_, last = [sample.folded(0, chunk) for chunk in cut(log_of(steps), [89, 150], None)]

    assert (0, 61) == (sum(last.gaps.counts), last.begun)


def test_partitions_are_apart() -> None:
    sample = GroupSample(bounds(), BOUNDS_MS)
    chunk = cut(log_of([(0, b"sa"), (5 * SECOND, b"sa")]), [1], None)[0]

    assert [1, 1] == [sample.folded(partition, chunk).begun for partition in (0, 1)]


def test_what_others_fold_now_makes_room() -> None:
    sample = GroupSample(bounds(), BOUNDS_MS, most_groups=10)
    for partition in range(9):
        sample.folded(partition, cut(log_of([(1, b"s%d" % at) for at in range(4)]), [3], None)[0])
        sample.keep([partition])

    assert (1, 4) == (sample.share, len(sample))


def test_what_is_folded_again_is_not_counted_again_in_a_partition_that_came_back_either() -> None:
    sample = GroupSample(bounds(), BOUNDS_MS)
    chunk = cut(log_of([(1_500, b"sa")] * 4), [3], None)[0]
    seen = sample.folded(0, chunk)
    sample.keep([])

    assert [1, 0] == [seen.begun, sample.folded(0, chunk).begun]


def test_a_sample_that_is_full_takes_no_more_memory_than_is_said() -> None:
    sample = GroupSample(bounds(), BOUNDS_MS)
    tracemalloc.start()
    for first in range(0, 10 * MOST_GROUPS, 4_000):
        # The chunk's own copies of the keys are freed again; those of the sample stay.
        steps = [(1, b"saccount_%09d" % (first + at)) for at in range(4_000)]
        sample.folded(first, cut(log_of(steps), [3_999], None)[0])
        sample.emitted(first, [Sealed(group, 0, 0, 1, DAY, DAY, "quiet", DAY, 1, {}) for _, group in steps], LATE)
    del steps
    taken, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()

    assert len(sample) > MOST_GROUPS // 3
    assert taken / len(sample) * MOST_GROUPS < 700_000


def test_gaps_that_are_not_told_apart_are_those_of_the_first_bucket() -> None:
    assert PAUSE_MS == BOUNDS_MS[0]
