"""Which candidate is recommended, and the reason given."""

from __future__ import annotations

from typing import Any

import pytest

from streams_app.tuning.points import Curve, CurveSample, Point
from streams_app.tuning.recommending import recommend

EVENTS = 100_000
RISING = {1: 0.20, 2: 0.50, 4: 0.80, 8: 0.90, 16: 0.93, 32: 0.935, 64: 0.9352}
"""Seconds → folding ratio: the knee is at 16 s."""


def point(seconds: int, ratio: float, events: int = EVENTS) -> Point:
    """Return a point at which 99 of 100 events wait for twice the quiet period."""
    records = round(events * (1 - ratio))
    waits = seconds * 1_000, seconds * 1_500, seconds * 2_000, seconds * 1_100, seconds * 2_500
    return Point(seconds * 1_000, records, ratio, *waits, 10 * seconds, 4_000 * seconds)


def curve(ratios: dict[int, float], events: int = EVENTS, sample: CurveSample | None = None) -> Curve:
    points = tuple(point(seconds, ratio, events) for seconds, ratio in ratios.items())
    return Curve("f", events, 10, 0, 86_400_000, points, sample)


def test_target_gets_the_shortest_candidate_that_reaches_it() -> None:
    found = recommend(curve(RISING), target_ratio=0.9)

    assert 8_000 == found.quiet_ms
    assert (
        "8s is the shortest candidate that folds at least 90%: 90% (100,000 events into 10,000 records); half of the events wait "
        "at most 8.0 s, 99 of 100 at most 16.0 s, and at most 80 groups are open at once, some 32.0 kB of Redis."
    ) == found.why


def test_unreachable_target_gets_the_best_candidate_and_says_so() -> None:
    found = recommend(curve(RISING | {128: 0.9352}), target_ratio=0.99)

    assert 64_000 == found.quiet_ms
    assert found.why.startswith("No candidate folds 99%: 64s is the shortest that folds the maximum, 93.5%")


def test_limit_gets_the_longest_candidate_within_it() -> None:
    found = recommend(curve(RISING), max_latency_ms=20_000)

    assert 8_000 == found.quiet_ms
    assert found.why.startswith("8s is the longest candidate with which 99 of 100 events wait at most 20s, and folds 90%")


def test_unreachable_limit_gets_the_nearest_candidate() -> None:
    found = recommend(curve(RISING), max_latency_ms=1_000)

    assert 1_000 == found.quiet_ms
    assert found.why.startswith("With no candidate, 99 of 100 events wait at most 1s: 1s comes nearest")


@pytest.mark.parametrize("limit_ms", [16_000, 500_000])
def test_target_and_limit_get_the_shortest_candidate_that_satisfies_both(limit_ms: int) -> None:
    assert 8_000 == recommend(curve(RISING), target_ratio=0.9, max_latency_ms=limit_ms).quiet_ms


def test_limit_precedes_an_incompatible_target_and_the_cost_of_each_is_reported() -> None:
    found = recommend(curve(RISING), target_ratio=0.93, max_latency_ms=15_999)

    assert 4_000 == found.quiet_ms
    assert (
        "93% and 15999ms cannot both be reached: to fold 93% takes 16s, which folds 93% and with which half of the events wait at "
        "most 16.0 s, 99 of 100 at most 32.0 s, and at most 160 groups are open at once, some 64.0 kB of Redis; 4s, the longest "
        "within 15999ms, folds 80% (100,000 events into 20,000 records), and half of the events wait at most 4.0 s, 99 of "
        "100 at most 8.0 s, and at most 40 groups are open at once, some 16.0 kB of Redis."
    ) == found.why


@pytest.mark.parametrize(("target", "limit_ms", "quiet_ms"), [(0.99, 20_000, 8_000), (0.99, 1, 1_000), (0.9, 1, 1_000)])
def test_candidate_is_recommended_even_if_neither_target_nor_limit_is_reachable(
    target: float, limit_ms: int, quiet_ms: int
) -> None:
    found = recommend(curve(RISING), target_ratio=target, max_latency_ms=limit_ms)

    assert (quiet_ms, True) == (found.quiet_ms, "cannot both be reached" in found.why)


def test_knee_is_recommended_without_target_and_limit() -> None:
    found = recommend(curve(RISING))

    assert 16_000 == found.quiet_ms
    assert "doubling it would save less than one more record per hundred events; half of the events" in found.why


def test_initially_flat_curve_has_no_knee_before_its_rise() -> None:
    assert 30_000 == recommend(curve({1: 0.0, 2: 0.0, 4: 0.001, 10: 0.002, 30: 0.98, 60: 0.985})).quiet_ms


def test_second_rise_far_behind_the_knee_is_reported() -> None:
    found = recommend(curve({1: 0.5, 2: 0.6, 4: 0.6, 8: 0.6, 4_000: 0.99}))

    assert (2_000, True) == (found.quiet_ms, "(the maximum, 99%, takes 4000s)" in found.why)


def test_curve_that_rises_to_its_end_says_so() -> None:
    found = recommend(curve({1: 0.2, 2: 0.4, 4: 0.6}))

    assert (4_000, True) == (found.quiet_ms, found.why.startswith("4s, the longest candidate, is where the curve still rises"))


def test_distant_candidates_are_judged_by_the_curve_between_them() -> None:
    assert 1_000 == recommend(curve({1: 0.9, 1_024: 0.98})).quiet_ms


def test_recommendation_requires_events() -> None:
    found = recommend(curve({5: 0.0, 10: 0.0}, events=0), target_ratio=0.9)

    assert (5_000, True) == (found.quiet_ms, found.why.startswith("There are no events"))


def test_recommendation_requires_candidates() -> None:
    assert "No candidate was tried." == recommend(curve({})).why


@pytest.mark.parametrize(("events", "expected_end"), [(1, "delay the event."), (7_000, "delay the 7,000 events.")])
def test_stream_in_which_nothing_folds_is_reported(events: int, expected_end: str) -> None:
    found = recommend(curve({1: 0.0, 10: 0.0}, events=events), target_ratio=0.5)

    assert (1_000, True) == (found.quiet_ms, "No candidate folds anything" in found.why and found.why.endswith(expected_end))


def test_shortest_candidate_is_recommended_if_everything_folds_with_any() -> None:
    assert 1_000 == recommend(curve({1: 0.99, 10: 0.99, 100: 0.99})).quiet_ms


def test_unknown_values_are_not_invented() -> None:
    live = Curve("f", EVENTS, 10, 0, 1, (Point(1_000, 50_000, 0.5, *[None] * 7),))

    assert (
        "1s is the knee: it folds 50% (100,000 events into 50,000 records), and doubling it would save less than one more "
        "record per hundred events; a record comes 1s after its last event (how long earlier events wait is unknown)."
    ) == recommend(live).why
    assert 1_000 == recommend(live, max_latency_ms=1_000).quiet_ms


def test_sample_is_named_with_its_error() -> None:
    why = recommend(curve(RISING, sample=CurveSample(0.25, 25_000, 1_234, 0.0012))).why

    assert why.endswith(" (estimated from 1,234 groups chosen by hash; standard error of the ratio 0.12 points).")


@pytest.mark.parametrize("asked", [{}, {"target_ratio": 0.99}, {"max_latency_ms": 10**9}])
def test_candidate_longer_than_the_hold_is_not_recommended(asked: dict[str, Any]) -> None:
    found = recommend(curve(RISING), longest_ms=10_000, **asked)

    assert 8_000 == found.quiet_ms
    assert found.why.endswith(" Candidates longer than max_hold, 10s, are not considered.")


def test_hold_shorter_than_every_candidate_is_reported() -> None:
    found = recommend(curve(RISING), longest_ms=500)

    assert 16_000 == found.quiet_ms
    assert found.why.endswith(" But max_hold is 500ms, and the quiet period must not be longer.")
