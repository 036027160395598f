"""A quiet period that sets itself: what it learns from events, when it changes, and when it must not."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from random import Random
from zlib import crc32

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streams_app.folding.core.auto_quiet import FACTOR, MAX_GROUPS, AutoQuiet, AutoQuietGoal, LearnedGaps, QuietChange

MINUTE_MS, HOUR_MS, DAY_MS = 60_000, 3_600_000, 86_400_000
NOW_MS = 1_700_000_000_000
KNEE = AutoQuietGoal(10_000, HOUR_MS, 15 * MINUTE_MS)
TARGET = AutoQuietGoal(10_000, HOUR_MS, 15 * MINUTE_MS, target_ratio=0.95)

Logged = tuple[bytes, int]


def bursts(hours: float, gap_ms: int, *, seed: int = 1, from_ms: int = NOW_MS, groups: int = 5_000, size: int = 12) -> list[Logged]:
    """Return events of groups that have several events with this mean gap, and then none for a long time."""
    random = Random(seed)
    events = []
    for _ in range(round(hours * 60)):
        at_ms, member = from_ms + random.uniform(0, hours * HOUR_MS), b"sgroup_%d" % random.randrange(groups)
        for _ in range(size):
            events.append((member, int(at_ms)))
            at_ms += random.expovariate(1 / gap_ms)
    return sorted(events, key=lambda event: event[1])


def observed(auto: AutoQuiet, events: Iterable[Logged]) -> list[QuietChange]:
    return [change for event in events if (change := auto.observe(*event))]


def test_knee_is_found_from_a_default_that_is_too_long() -> None:
    auto = AutoQuiet(KNEE)
    observed(auto, bursts(6, 5_000))

    assert 15_000 <= auto.quiet_ms <= 30_000


def test_knee_is_found_from_a_default_that_is_too_short() -> None:
    auto = AutoQuiet(AutoQuietGoal(1_000, HOUR_MS, 1_000))
    observed(auto, bursts(6, 60_000))

    assert 2 * MINUTE_MS <= auto.quiet_ms <= 6 * MINUTE_MS


def test_knee_follows_gaps_that_grow() -> None:
    auto = AutoQuiet(KNEE)
    observed(auto, bursts(6, 5_000))
    before_ms = auto.quiet_ms
    observed(auto, bursts(8, 60_000, from_ms=NOW_MS + 6 * HOUR_MS + MINUTE_MS))

    assert 4 * before_ms < auto.quiet_ms


def test_target_ratio_is_reached_with_a_short_quiet_period() -> None:
    auto = AutoQuiet(AutoQuietGoal(10_000, HOUR_MS, 15 * MINUTE_MS, target_ratio=0.8))
    observed(auto, bursts(6, 30_000, size=20))
    at = auto.goal.candidates.index(auto.quiet_ms)

    assert 0.79 <= auto.ratios()[at]
    assert auto.quiet_ms <= MINUTE_MS


def test_target_ratio_beyond_reach_takes_what_folds_the_maximum_soonest() -> None:
    auto = AutoQuiet(TARGET)
    observed(auto, bursts(6, 5_000, size=5))

    assert max(auto.ratios()) < 0.85
    assert auto.quiet_ms <= 3 * MINUTE_MS


def test_target_ratio_beyond_reach_is_not_pursued_for_a_record_in_a_thousand() -> None:
    counts = [9_000.0] + [0.0] * len(TARGET.candidates)
    counts[-2:] = 5.0, 995.0
    auto = AutoQuiet(TARGET, LearnedGaps(TARGET.candidates, TARGET.default_ms, counts, events=10_000, steps=100))
    changes = observed(auto, [(b"sgroup_1", NOW_MS), (b"sgroup_2", NOW_MS + MINUTE_MS)])

    assert [TARGET.default_ms // FACTOR] == [
        before_ms // FACTOR for _, before_ms, after_ms, _, _ in changes if after_ms < before_ms
    ]


def test_stream_that_does_not_change_changes_nothing_after_two_hours() -> None:
    auto = AutoQuiet(KNEE)
    changes = observed(auto, bursts(24, 20_000))

    assert [] == [change for change in changes if change.at_ms > NOW_MS + 2 * HOUR_MS]


def test_events_without_a_group_in_common_take_the_shortest_quiet_period() -> None:
    auto = AutoQuiet(KNEE)
    observed(auto, ((b"sgroup_%d" % number, NOW_MS + 500 * number) for number in range(10_000)))

    assert KNEE.at_least_ms == auto.quiet_ms


def test_change_applies_to_the_event_with_which_it_is_returned_and_has_both_ratios() -> None:
    auto = AutoQuiet(KNEE)
    for event in bursts(2, 5_000):
        before_ms = auto.quiet_ms
        if change := auto.observe(*event):
            break

    assert change is not None
    assert (event[1], before_ms, auto.quiet_ms) == change[:3]
    assert 0 <= change.ratio_after <= change.ratio_before <= 1


def test_few_events_change_nothing() -> None:
    auto = AutoQuiet(KNEE)

    assert [] == observed(auto, bursts(6, 1_000)[:90])


@pytest.mark.parametrize("week_ms", [HOUR_MS, 7 * DAY_MS])
def test_no_events_for_long_change_nothing(week_ms: int) -> None:
    auto = AutoQuiet(KNEE)
    observed(auto, bursts(6, 20_000))
    before_ms = auto.quiet_ms
    changes = observed(auto, bursts(6, 20_000, seed=2, from_ms=NOW_MS + 6 * HOUR_MS + week_ms))

    assert ([], before_ms) == (changes, auto.quiet_ms)


@pytest.mark.parametrize("jump_ms", [-HOUR_MS, -10 * MINUTE_MS, 10 * MINUTE_MS, 2 * DAY_MS])
@pytest.mark.parametrize("goal", [KNEE, AutoQuietGoal(10_000, HOUR_MS, 15 * MINUTE_MS, target_ratio=0.7)])
def test_clock_that_jumps_and_goes_back_changes_nothing(goal: AutoQuietGoal, jump_ms: int) -> None:
    auto = AutoQuiet(goal)
    events = bursts(8, 20_000)
    ahead = [at_ms + jump_ms if 5 * HOUR_MS < at_ms - NOW_MS < 5.5 * HOUR_MS else at_ms for _, at_ms in events]
    changes = observed(auto, [(member, at_ms) for (member, _), at_ms in zip(events, ahead, strict=True)])

    assert [] == [change for change in changes if change.at_ms > NOW_MS + 3 * HOUR_MS]


def test_silence_of_all_groups_that_occurs_once_counts_for_none() -> None:
    auto = AutoQuiet(AutoQuietGoal(10_000, HOUR_MS, 15 * MINUTE_MS, target_ratio=0.99))
    observed(auto, [(b"sgroup_%d" % (number % 200), NOW_MS + 600 * number) for number in range(40_000)])
    before_ms, outage_ms = auto.quiet_ms, 10 * MINUTE_MS
    observed(auto, [(b"sgroup_%d" % (number % 200), NOW_MS + 600 * number + outage_ms) for number in range(40_000, 50_000)])

    assert before_ms == auto.quiet_ms <= 3 * MINUTE_MS


def test_late_events_count_for_nothing() -> None:
    auto = AutoQuiet(AutoQuietGoal(10_000, HOUR_MS, 15 * MINUTE_MS, target_ratio=0.2))
    observed(auto, [(b"sgroup_%d" % (number % 200), NOW_MS + 600 * number) for number in range(40_000)])
    before_ms, counts = auto.quiet_ms, list(auto.learned.counts)
    observed(auto, [(b"sgroup_%d" % (number % 200), NOW_MS + 600 * number - 2 * HOUR_MS) for number in range(40_000, 50_000)])

    assert (before_ms, counts) == (auto.quiet_ms, auto.learned.counts)


def test_one_event_from_the_future_changes_nothing() -> None:
    auto = AutoQuiet(KNEE)
    events = bursts(8, 20_000)
    events.insert(len(events) // 2, (b"sgroup_1", events[len(events) // 2][1] + 20 * MINUTE_MS))
    changes = observed(auto, events)

    assert [] == [change for change in changes if change.at_ms > NOW_MS + 3 * HOUR_MS]


def test_pauses_that_recur_count_as_gaps() -> None:
    auto = AutoQuiet(AutoQuietGoal(10_000, HOUR_MS, MINUTE_MS))
    observed(auto, [(b"sgroup_%d" % group, NOW_MS + run * 15 * MINUTE_MS) for run in range(96) for group in range(50)])

    assert 15 * MINUTE_MS == auto.quiet_ms


def test_memory_is_bounded_and_watches_more_groups_after_a_flood() -> None:
    auto = AutoQuiet(KNEE)
    flood = [(b"sgroup_%d" % number, NOW_MS + number * 20) for number in range(60_000)]
    most = 0
    for event in flood:
        auto.observe(*event)
        most = max(most, len(auto.learned.groups))
    weight = auto.learned.weight
    observed(auto, bursts(12, 20_000, from_ms=flood[-1][1] + MINUTE_MS))

    assert most <= MAX_GROUPS + 1
    assert 64 <= weight
    assert auto.learned.weight < weight
    assert len(msgspec.msgpack.encode(auto.learned)) < 20_000


def test_group_is_not_new_only_because_more_groups_are_watched() -> None:
    members = [b"sgroup_%d" % number for number in range(100)]
    low = sum(crc32(member) < 2**31 for member in members)
    auto = AutoQuiet(KNEE, LearnedGaps(KNEE.candidates, KNEE.default_ms, [0.0] * (len(KNEE.candidates) + 1), weight=2))
    observed(auto, [(member, NOW_MS + half_minute * 30_000) for half_minute in range(40) for member in members])

    assert (1, 100) == (auto.learned.weight, len(auto.learned.groups))
    assert auto.learned.counts[-1] < 2 * low


def test_sample_of_groups_leads_to_the_same_knee() -> None:
    many = AutoQuiet(KNEE)
    events = [(b"%b_%d" % (member, copy), at_ms) for member, at_ms in bursts(6, 10_000) for copy in range(40)]
    observed(many, events)
    few = AutoQuiet(KNEE)
    observed(few, bursts(6, 10_000))

    assert 1 < many.learned.weight
    assert few.ratios() == pytest.approx(many.ratios(), abs=0.02)
    assert few.quiet_ms / 1.5 <= many.quiet_ms <= few.quiet_ms * 1.5


def test_state_of_a_former_owner_is_continued() -> None:
    events = bursts(6, 20_000)
    whole, first = AutoQuiet(KNEE), AutoQuiet(KNEE)
    changes = observed(whole, events)
    early = observed(first, events[:1_500])
    stored = msgspec.msgpack.decode(msgspec.msgpack.encode(first.learned), type=LearnedGaps)
    second = AutoQuiet(KNEE, stored)

    assert changes == early + observed(second, events[1_500:])
    assert whole.learned == second.learned


def test_state_for_other_limits_begins_with_the_default() -> None:
    auto = AutoQuiet(KNEE)
    observed(auto, bursts(6, 20_000))
    longer = AutoQuietGoal(10_000, 2 * HOUR_MS, 15 * MINUTE_MS)

    assert 15 * MINUTE_MS == AutoQuiet(longer, auto.learned).quiet_ms
    assert auto.quiet_ms == AutoQuiet(AutoQuietGoal(10_000, HOUR_MS, 15 * MINUTE_MS, 0.9), auto.learned).quiet_ms


@pytest.mark.parametrize("limits", [(20, 10, 15), (10, 20, 5), (10, 20, 25), (0, 20, 10)])
def test_limits_in_another_order_are_rejected(limits: tuple[int, int, int]) -> None:
    with pytest.raises(ValueError, match="at_least"):
        AutoQuietGoal(*limits)


@pytest.mark.parametrize("ratio", [0.0, 1.0, -1.0, float("nan")])
def test_target_ratio_that_is_no_ratio_is_rejected(ratio: float) -> None:
    with pytest.raises(ValueError, match="target_ratio"):
        AutoQuietGoal(10, 20, 15, ratio)


def test_equal_limits_fix_the_quiet_period() -> None:
    auto = AutoQuiet(AutoQuietGoal(7_777, 7_777, 7_777))

    assert [] == observed(auto, bursts(6, 60_000))


STEPS = st.one_of(st.integers(0, 2_000), st.integers(0, 10 * MINUTE_MS), st.integers(-2 * DAY_MS, 2 * DAY_MS))
LOGS = st.lists(st.tuples(st.integers(0, 30), STEPS), max_size=40)
GOALS = st.tuples(st.integers(1, DAY_MS), st.integers(0, DAY_MS), st.integers(0, DAY_MS), st.none() | st.floats(0.01, 0.99)).map(
    lambda drawn: AutoQuietGoal(drawn[0], drawn[0] + drawn[1] + drawn[2], drawn[0] + drawn[1], drawn[3])
)


def repeated(steps: Sequence[tuple[int, int]]) -> list[Logged]:
    """Return events with these groups and times between events, over and over, so that enough is learned for changes."""
    at_ms, events = NOW_MS, []
    for _ in range(400 // (len(steps) or 400)):
        for group, step_ms in steps:
            at_ms = max(0, at_ms + step_ms)
            events.append((b"sgroup_%d" % group, at_ms))
    return events


@given(goal=GOALS, steps=LOGS)
def test_quiet_period_stays_within_its_limits_and_changes_by_at_most_the_factor_or_one_candidate(
    goal: AutoQuietGoal, steps: list[tuple[int, int]]
) -> None:
    auto = AutoQuiet(goal)
    for event in repeated(steps):
        before_ms = auto.quiet_ms
        change = auto.observe(*event)

        assert goal.at_least_ms <= auto.quiet_ms <= goal.at_most_ms
        assert (change is None) == (before_ms == auto.quiet_ms)
        factor = max(auto.quiet_ms / before_ms, before_ms / auto.quiet_ms)
        apart = abs(goal.candidates.index(auto.quiet_ms) - goal.candidates.index(before_ms))
        assert factor <= FACTOR or apart == 1


@given(goal=GOALS, steps=LOGS, cuts=st.lists(st.integers(0, 400), max_size=5))
def test_result_depends_on_the_events_and_not_on_how_they_are_divided(
    goal: AutoQuietGoal, steps: list[tuple[int, int]], cuts: list[int]
) -> None:
    events, whole = repeated(steps), AutoQuiet(goal)
    changes = observed(whole, events)
    learned, divided = LearnedGaps.nothing(goal), []
    for begin, end in zip([0, *sorted(cuts)], [*sorted(cuts), len(events)], strict=True):
        owner = AutoQuiet(goal, learned)
        divided += observed(owner, events[begin:end])
        learned = msgspec.msgpack.decode(msgspec.msgpack.encode(owner.learned), type=LearnedGaps)

    assert (changes, whole.learned) == (divided, learned)


@given(steps=st.lists(st.tuples(st.integers(0, 5), st.integers(0, 60_000)), min_size=1, max_size=200))
def test_ratios_are_those_of_a_count_event_by_event(steps: list[tuple[int, int]]) -> None:
    auto, at_ms, last_ms = AutoQuiet(KNEE), NOW_MS - NOW_MS % MINUTE_MS, dict[int, int]()
    records = [0] * len(KNEE.candidates)
    for group, step_ms in steps:
        at_ms += step_ms % 200  # within a minute, so that nothing fades
        gap_ms = at_ms - last_ms[group] if group in last_ms else None
        records = [count + (gap_ms is None or gap_ms > quiet_ms) for count, quiet_ms in zip(records, KNEE.candidates, strict=True)]
        last_ms[group] = at_ms
        auto.observe(b"sgroup_%d" % group, at_ms)

    assert [1 - count / len(steps) for count in records] == pytest.approx(auto.ratios())
