"""The candidates that are tried by default."""

from __future__ import annotations

from itertools import pairwise

import pytest

from streams_app.formatting import ROUND_MS
from streams_app.tuning.recommending import default_windows

SECOND, MINUTE, HOUR, DAY = 1_000, 60_000, 3_600_000, 86_400_000


def test_day_yields_thirty_candidates_from_a_second_to_a_day() -> None:
    found = default_windows(DAY, (5 * SECOND, 23 * HOUR))

    assert (30, SECOND, DAY) == (len(found), found[0], found[-1])
    assert set(found) <= set(ROUND_MS)


def test_candidates_rise_by_similar_factors() -> None:
    found = default_windows(30 * DAY, (5 * SECOND, 29 * DAY))

    assert max(later / earlier for earlier, later in pairwise(found)) <= 2.5


def test_faster_groups_get_candidates_below_a_second() -> None:
    assert 20 == default_windows(DAY, (24, 23 * HOUR))[0]


@pytest.mark.parametrize("gaps", [(0, 0), (0, 1), (1, 1), (5 * SECOND, 5 * SECOND)])
def test_first_candidate_is_at_least_a_millisecond(gaps: tuple[int, int]) -> None:
    assert default_windows(5 * SECOND, gaps)[0] >= 1


def test_last_candidate_is_the_first_that_no_gap_exceeds() -> None:
    assert (90 * SECOND, True) == ((found := default_windows(DAY, (SECOND, 61 * SECOND)))[-1], MINUTE in found)


def test_candidates_do_not_greatly_exceed_the_range() -> None:
    assert 10 * MINUTE == default_windows(10 * MINUTE, (SECOND, HOUR))[-1]


@pytest.mark.parametrize(("span_ms", "gaps"), [(0, None), (DAY, None), (0, (0, 0)), (400 * DAY, (1, 400 * DAY))])
def test_number_of_candidates_is_positive_and_bounded(span_ms: int, gaps: tuple[int, int] | None) -> None:
    assert 4 <= len(default_windows(span_ms, gaps)) <= 30


def test_configured_quiet_period_is_a_candidate() -> None:
    assert 77_777 in default_windows(DAY, (SECOND, HOUR), also_ms=77_777)


def test_round_durations_rise() -> None:
    assert sorted(set(ROUND_MS)) == list(ROUND_MS)
