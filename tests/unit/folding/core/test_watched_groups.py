"""Which groups a sample watches: estimates compared with a recomputation of all groups, their number, and evictions."""

from __future__ import annotations

import math
import random
import tracemalloc

import pytest

from streams_app.folding.core.event import PlainEvent as Event
from streams_app.folding.core.group_sample import MAX_GROUPS, GroupSample, ObservedGroups
from streams_app.folding.core.record import SealedGroup
from tests.unit.folding.core.sampled import BOUNDS_MS, DAY, GROUPS, LATE, MINUTE, SECOND, added, bounds, cut, log_of, recomputed


def many(seed: int, groups: int, sample: GroupSample) -> tuple[list[Event], list[ObservedGroups]]:
    """Return six hours of groups, some with one event and some with two hundred, and what a sample observed of them."""
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
def test_sampled_estimates_are_within_three_standard_errors(seed: int, window: int) -> None:
    sample = GroupSample(bounds(window * SECOND), BOUNDS_MS, max_groups=256)
    events, seen = many(seed, 3_000, sample)
    above = BOUNDS_MS.index(window * SECOND) + 1
    (true, _, groups), (found, _, begun, _) = recomputed(events), added(seen)
    records, estimated = groups + sum(true[above:]), begun + sum(found[above:])

    assert 1 / 32 <= sample.share <= 1 / 8
    assert 0 < sample.error < 0.4
    assert abs(estimated - records) <= 3 * sample.error * records


def test_actual_error_matches_the_reported_error() -> None:
    """Compares the root mean square over many loads."""
    made = []
    for seed in range(20):
        sample = GroupSample(bounds(60 * SECOND), BOUNDS_MS, max_groups=128)
        events, seen = many(seed, 1_500, sample)
        above = BOUNDS_MS.index(60 * SECOND) + 1
        (true, _, groups), (found, _, begun, _) = recomputed(events), added(seen)
        records = groups + sum(true[above:])
        made.append((begun + sum(found[above:]) - records) / records / sample.error)
    typical = math.sqrt(sum(error * error for error in made) / len(made))

    assert 0.5 < typical < 1.5


def test_watched_groups_never_exceed_their_limit() -> None:
    sample = GroupSample(bounds(), BOUNDS_MS, max_groups=100)
    sizes = []
    for number in range(50):
        chunk = cut(log_of([(1, b"s%d-%d" % (number, at)) for at in range(100)]), [99], None)[0]
        sample.folded(number, chunk)
        sizes.append(len(sample))

    assert max(sizes) <= 100
    assert min(sizes) >= 20


def test_many_records_of_few_groups_are_all_watched() -> None:
    sample = GroupSample(bounds(), BOUNDS_MS, max_groups=4)
    records = [SealedGroup(GROUPS[at % 3], at, at, 1, DAY, DAY, "max_events", DAY, 1, {}) for at in range(30)]
    sample.emitted(0, records, LATE)

    assert (1, 3) == (sample.share, len(sample))


def test_groups_silent_for_longer_than_any_window_are_evicted_first() -> None:
    sample = GroupSample(bounds(), BOUNDS_MS, max_groups=100)
    steps = [(1, b"sold%d" % at) for at in range(90)] + [(2 * DAY, b"snew0")] + [(1, b"snew%d" % at) for at in range(1, 60)]
    for chunk in cut(log_of(steps), [89, 90, 149], None):
        sample.folded(0, chunk)

    assert (1, 60) == (sample.share, len(sample))


def test_group_that_returns_after_a_day_restarts_if_there_is_no_room() -> None:
    sample = GroupSample(bounds(), BOUNDS_MS, max_groups=100)
    steps = [(1, b"sold%d" % at) for at in range(90)] + [(2 * DAY, b"sold0")] + [(1, b"snew%d" % at) for at in range(60)]
    *_, last = [sample.folded(0, chunk) for chunk in cut(log_of(steps), [89, 150], None)]

    assert (0, 61) == (sum(last.gaps.counts), last.begun)


def test_groups_of_released_partitions_make_room() -> None:
    sample = GroupSample(bounds(), BOUNDS_MS, max_groups=10)
    for partition in range(9):
        sample.folded(partition, cut(log_of([(1, b"s%d" % at) for at in range(4)]), [3], None)[0])
        sample.keep([partition])

    assert (1, 4) == (sample.share, len(sample))


def test_full_sample_stays_within_the_documented_memory() -> None:
    sample = GroupSample(bounds(), BOUNDS_MS)
    tracemalloc.start()
    for first in range(0, 10 * MAX_GROUPS, 4_000):
        # The chunk's own copies of the keys are freed again; those of the sample stay.
        steps = [(1, b"saccount_%09d" % (first + at)) for at in range(4_000)]
        sample.folded(first, cut(log_of(steps), [3_999], None)[0])
        sample.emitted(first, [SealedGroup(group, 0, 0, 1, DAY, DAY, "quiet", DAY, 1, {}) for _, group in steps], LATE)
    del steps
    taken, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()

    assert len(sample) > MAX_GROUPS // 3
    assert taken / len(sample) * MAX_GROUPS < 700_000
