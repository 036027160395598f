"""The partition clock: the wall clock once the backlog is read, and it never goes back."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streams_app.delivery.clocks import FRESH_MS, ReaderView, advanced, is_caught_up

NOW = 1_700_000_000_000
times = st.integers(0, 10_000)


@pytest.mark.parametrize(
    ("fence", "view", "expected"),
    [
        pytest.param(9, ReaderView(10, NOW), True, id="the fence is the last readable offset"),
        pytest.param(8, ReaderView(10, NOW), False, id="one event is left"),
        pytest.param(12, ReaderView(10, NOW), True, id="the fence is beyond the end in the last reply"),
        pytest.param(-1, ReaderView(0, NOW), True, id="an empty partition"),
        pytest.param(-1, ReaderView(1, NOW), False, id="nothing folded, one event there"),
        pytest.param(9, ReaderView(10, NOW - FRESH_MS), True, id="a reply of exactly five seconds ago is fresh"),
        pytest.param(9, ReaderView(10, NOW - FRESH_MS - 1), False, id="an older reply does not show the present end"),
        pytest.param(9, ReaderView(10, NOW + FRESH_MS + 1), False, id="a reply from the future was timed by a wrong clock"),
        pytest.param(9, ReaderView(None, NOW), False, id="the stable offset is unknown"),
        pytest.param(9, ReaderView(10, None), False, id="the time of the reply is unknown"),
        pytest.param(-1, ReaderView(None, None), False, id="before the first reply"),
    ],
)
def test_is_caught_up_needs_the_log_end_and_a_recent_fetch(fence: int, view: ReaderView, expected: bool) -> None:
    assert expected == is_caught_up(fence, view, NOW)


@pytest.mark.parametrize(
    ("clock_ms", "now_ms", "caught_up", "expected"),
    [
        (100, 200, True, 200),
        (100, 200, False, 100),
        (200, 100, True, 200),
        (200, 100, False, 200),
    ],
)
def test_clock_follows_wall_time_only_once_caught_up(clock_ms: int, now_ms: int, caught_up: bool, expected: int) -> None:
    assert expected == advanced(clock_ms, now_ms, caught_up=caught_up)


@given(times, st.lists(st.tuples(times, st.booleans()), max_size=20))
def test_clock_is_monotonic_for_any_wall_clock(clock_ms: int, updates: list[tuple[int, bool]]) -> None:
    seen = [clock_ms]
    for now_ms, caught_up in updates:
        seen.append(advanced(seen[-1], now_ms, caught_up=caught_up))

    assert sorted(seen) == seen
