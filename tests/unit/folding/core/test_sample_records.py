"""The statistics of a sample agree with the records themselves: split folds, and how long events waited."""

from __future__ import annotations

import random
from bisect import bisect_left
from collections.abc import Sequence
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streams_app.folding.core.closing import Bounds
from streams_app.folding.core.event import FoldEvent
from streams_app.folding.core.event import PlainEvent as Event
from streams_app.folding.core.group_sample import GroupSample
from streams_app.folding.core.model import MemoryShard
from streams_app.folding.core.record import SealedGroup
from tests.unit.folding.core.sampled import BOUNDS_MS, DAY, GROUPS, LATE, SECOND, added, bounds, cut, log_of


def closed_ms(record: SealedGroup, of: Bounds) -> int:
    return {"quiet": record.last_event_ms + of.quiet_ms, "max_hold": record.first_event_ms + of.hold_ms}.get(
        record.reason, record.last_event_ms
    )


def split_of(records: Sequence[SealedGroup], of: Bounds) -> int:
    """Count folds that were opened within the quiet period after the previous one was closed, from the records alone."""
    folds: dict[bytes, list[SealedGroup]] = {}
    for record in sorted(records, key=lambda one: one.first_offset):
        folds.setdefault(record.member, []).append(record)
    pairs = (pair for of_group in folds.values() for pair in pairwise(of_group))
    return sum(after.first_event_ms - closed_ms(before, of) <= of.quiet_ms for before, after in pairs)


gaps_near_bounds = st.sampled_from(
    [0, 4 * SECOND, 8 * SECOND, 10 * SECOND, 10 * SECOND + 1, 15 * SECOND, 20 * SECOND, 20 * SECOND + 1]
)

forward = st.lists(st.tuples(gaps_near_bounds, st.sampled_from(GROUPS[:2])), min_size=1, max_size=60).map(log_of)


@given(forward, st.sets(st.integers(0, 59), min_size=3), st.sampled_from([0, 1, 3]), st.randoms(use_true_random=False))
def test_split_folds_match_the_records_for_any_acknowledgement_order(
    events: list[Event], cuts: set[int], max_events: int, chance: random.Random
) -> None:
    of = bounds(max_events=max_events)
    sample, shard = GroupSample(of, BOUNDS_MS), MemoryShard(of)
    ends = sorted({end for end in cuts if end < len(events) - 1} | {len(events) - 1})
    waiting: list[SealedGroup] = []
    records: list[SealedGroup] = []
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


def test_reopened_fold_is_reported_before_it_closes() -> None:
    sample = GroupSample(bounds(), BOUNDS_MS)
    first, second = cut(log_of([(0, b"sa"), (19 * SECOND, b"sa")]), [0, 1], None)
    sample.folded(0, first)
    sample.emitted(0, [SealedGroup(b"sa", 0, 0, 1, DAY, DAY, "quiet", DAY + 10 * SECOND, 1, {})], LATE)

    assert 1 == sample.folded(0, second).split


def test_rewritten_record_is_no_split_fold() -> None:
    sample = GroupSample(bounds(), BOUNDS_MS)
    record = SealedGroup(b"sa", 0, 4, 5, DAY, DAY, "quiet", DAY + 10 * SECOND, 1, {})
    seen = [sample.emitted(0, [one], LATE).split for one in (record, record, record._replace(last_offset=6, events=7))]

    assert [0, 0, 0] == seen


def record_of(events: int, first_ms: int, last_ms: int) -> SealedGroup:
    return SealedGroup(b"sa", 0, events - 1, events, first_ms, last_ms, "quiet", 0, 1, {})


@given(st.integers(1, 500), st.integers(0, 2 * DAY), st.integers(0, 2 * DAY))
def test_first_and_last_event_of_a_record_keep_their_waiting_time(events: int, one_ms: int, other_ms: int) -> None:
    first_ms, last_ms = sorted((one_ms, other_ms if events > 1 else one_ms))
    waits = GroupSample(bounds(), BOUNDS_MS).emitted(0, [record_of(events, first_ms, last_ms)], 2 * DAY).waits
    shortest, longest = (bisect_left(BOUNDS_MS, 2 * DAY - at_ms) for at_ms in (last_ms, first_ms))
    used = [bucket for bucket, count in enumerate(waits.counts) if count]

    assert (events, shortest, longest) == (sum(waits.counts), used[0], used[-1])


def test_events_between_are_evenly_distributed() -> None:
    waits = GroupSample(bounds(), BOUNDS_MS).emitted(0, [record_of(101, 0, 100 * SECOND)], 100 * SECOND).waits
    longer = 101 - sum(waits.counts[: BOUNDS_MS.index(30 * SECOND) + 1])

    assert 70 == pytest.approx(longer, abs=1)
    assert 101 * 50 * SECOND == waits.total_ms


def test_record_with_future_times_did_not_wait() -> None:
    waits = GroupSample(bounds(), BOUNDS_MS).emitted(0, [record_of(5, DAY, 2 * DAY)], 0).waits

    assert (5, 0) == (waits.counts[0], waits.total_ms)
