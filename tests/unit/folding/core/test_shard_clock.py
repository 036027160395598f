"""The clock of a shard: how its events get their scores, how late its producers are, and what silence means."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streams_app.delivery.clocks import FRESH_MS, SKEW_MS, ReaderView
from streams_app.folding.core.shard_clock import Clocks, RangeTime, ShardClock
from tests.simulation.mutants_closing import BACKLOG_STAYS_LATE

NOW = 1_700_000_000_000
QUIET_MS = 900_000
BOTH = pytest.mark.parametrize("backlog", ["merge", "sessions"])


def clock_of(backlog: str, stored: Clocks = Clocks()) -> ShardClock:  # noqa: B008  # frozen
    clock = ShardClock(backlog=backlog, quiet_ms=QUIET_MS)
    clock.take_over(stored)
    return clock


@BOTH
@pytest.mark.parametrize(
    ("fetched_ms", "now_ms", "caught_up_at_ms", "is_live"),
    [
        pytest.param(FRESH_MS, FRESH_MS, 0, True, id="at the end just before"),
        pytest.param(FRESH_MS, 2 * FRESH_MS, 0, True, id="and fetched not long ago"),
        pytest.param(FRESH_MS + 1, FRESH_MS + 1, 0, False, id="at the end long ago"),
        pytest.param(FRESH_MS, 2 * FRESH_MS + 1, 0, False, id="fetched long ago"),
        pytest.param(0, 0, None, False, id="never at the end"),
        pytest.param(FRESH_MS, FRESH_MS, 2 * FRESH_MS, True, id="at the end, by clocks that differ a little"),
        pytest.param(FRESH_MS, FRESH_MS, 2 * FRESH_MS + 1, False, id="at the end, by a clock that was ahead then"),
        pytest.param(2 * FRESH_MS, FRESH_MS, FRESH_MS, True, id="fetched by a clock that differs a little"),
        pytest.param(2 * FRESH_MS + 1, FRESH_MS, 2 * FRESH_MS, False, id="fetched by a clock that is ahead"),
    ],
)
def test_range_is_live_if_fetched_just_after_the_reader_was_at_the_end(
    fetched_ms: int, now_ms: int, caught_up_at_ms: int | None, is_live: bool, backlog: str
) -> None:
    clock = clock_of(backlog)
    clock.caught_up_at_ms = caught_up_at_ms
    found = clock.range_time(ReaderView(1, fetched_ms), now_ms)

    assert RangeTime(now_ms, min(fetched_ms, now_ms) if is_live else None) == found
    assert clock.is_backlog(found) == (backlog == "sessions" and not is_live)


@pytest.mark.parametrize(
    ("backlog", "behind_ms", "expected"),
    [
        ("merge", 0, True),
        ("merge", 899_999, True),
        ("merge", 900_000, False),
        ("merge", 900_001, False),
        ("merge", -5_000, True),
        ("sessions", 0, True),
        ("sessions", 900_000, True),
        ("sessions", 86_400_000, True),
    ],
)
def test_merge_keeps_quiet_groups_open_while_the_clock_is_a_quiet_period_behind(
    backlog: str, behind_ms: int, expected: bool
) -> None:
    assert expected == clock_of(backlog).quiet_groups_close(NOW - behind_ms, NOW)


@pytest.mark.parametrize(
    ("late_ms", "arrived_ms", "expected"),
    [
        pytest.param(0, NOW, 7_000, id="live events show how late their producers are"),
        pytest.param(9_000, NOW - 2_000, 5_000, id="replaces the former lateness"),
        pytest.param(9_000, NOW - 8_000, 0, id="a clock that is ahead is not late"),
        pytest.param(4_000, None, 4_000, id="a backlog does not show it"),
        pytest.param(9_000, None, 7_000, id="but it has arrived by now"),
    ],
)
def test_producer_lateness_is_bounded_by_the_records_read(late_ms: int, arrived_ms: int | None, expected: int) -> None:
    clock = clock_of("sessions", Clocks(0, 0, late_ms))
    after = clock.after(RangeTime(NOW, arrived_ms), NOW - 7_000, has_events=True)

    assert (NOW - 7_000, expected) == (after.record_clock_ms, after.late_ms)


def test_silence_in_a_backlog_is_independent_of_when_it_is_read() -> None:
    clock = clock_of("sessions", Clocks(0, 0, 4 * QUIET_MS))
    clock.take_over(clock.after(RangeTime(NOW, None), NOW - 100, has_events=True))
    by_when_read = {clock.after(RangeTime(NOW + late_ms, None), NOW + 100, has_events=True) for late_ms in (100, 3 * QUIET_MS)}

    assert {Clocks(NOW + 100, NOW + 100, 0), Clocks(NOW + 100, NOW + 100, 100)} == by_when_read


def test_constant_lateness_of_a_backlog_is_detected() -> None:
    with BACKLOG_STAYS_LATE.applied(), pytest.raises(AssertionError):
        test_silence_in_a_backlog_is_independent_of_when_it_is_read()


@pytest.mark.parametrize(("backlog", "has_events"), [("merge", True), ("sessions", False)])
def test_lateness_is_not_learned_by_arrival_time_or_without_events(backlog: str, has_events: bool) -> None:
    clock = clock_of(backlog, Clocks(0, 0, 4_000))

    assert 4_000 == clock.after(RangeTime(NOW, NOW), NOW - 7_000, has_events=has_events).late_ms


@pytest.mark.parametrize(
    ("backlog", "arrived_ms", "expected"),
    [
        pytest.param("merge", None, 500, id="a backlog begins at the partition clock"),
        pytest.param("merge", 800, 800, id="live events are scored by their arrival"),
        pytest.param("merge", 300, 500, id="never back"),
        pytest.param("sessions", None, 200, id="sessions begin at the record clock"),
        pytest.param("sessions", 800, 200, id="live or not"),
    ],
)
def test_scores_start_at_the_clock_of_the_shard(backlog: str, arrived_ms: int | None, expected: int) -> None:
    assert expected == clock_of(backlog, Clocks(500, 200, 0)).start_ms(RangeTime(NOW, arrived_ms))


@pytest.mark.parametrize(
    ("arrived_ms", "late_ms", "expected"),
    [
        pytest.param(NOW - 10, 0, NOW - 10, id="live: from its arrival"),
        pytest.param(NOW - 90_000, 0, NOW - 50_000, id="not before the former partition clock"),
        pytest.param(None, SKEW_MS + 1, NOW - 40_000 + SKEW_MS + 1, id="a backlog of a late producer: by what is known of it"),
        pytest.param(None, 50_000, NOW, id="never a time to come"),
        pytest.param(None, SKEW_MS, NOW - 50_000, id="clocks that differ a little are not late"),
    ],
)
def test_silence_of_sessions_counts_from_the_observed_arrival(arrived_ms: int | None, late_ms: int, expected: int) -> None:
    clock = clock_of("sessions", Clocks(NOW - 50_000, 0, 0))

    assert expected == clock.silent_from_ms(RangeTime(NOW, arrived_ms), Clocks(NOW - 40_000, NOW - 40_000, late_ms))


def test_silence_of_merged_groups_counts_from_their_scores() -> None:
    assert 0 == clock_of("merge", Clocks(NOW, NOW, 60_000)).silent_from_ms(RangeTime(NOW, NOW), Clocks(NOW, NOW, 60_000))


def test_observed_silence_is_reset_with_the_owner() -> None:
    clock = clock_of("merge", Clocks(100, 0, 0))
    is_at_the_end = clock.observe_fetch(9, ReaderView(10, NOW), NOW)
    folded_until_ms = clock.folded_until_ms, clock.caught_up_at_ms
    clock.take_over(Clocks(200, 0, 0))

    assert (True, (NOW, NOW)) == (is_at_the_end, folded_until_ms)
    assert (None, None, 200) == (clock.folded_until_ms, clock.caught_up_at_ms, clock.due_ms(None))


small = st.integers(0, 20_000)
clocks = st.builds(Clocks, small, small, small)


@BOTH
@given(stored=clocks, cap_ms=small, arrived_ms=st.none() | small, last_ms=small, has_events=st.booleans())
def test_clock_is_never_turned_back_by_a_range(
    backlog: str, stored: Clocks, cap_ms: int, arrived_ms: int | None, last_ms: int, has_events: bool
) -> None:
    clock = clock_of(backlog, stored)
    time = RangeTime(cap_ms, arrived_ms)
    after = clock.after(time, max(last_ms, clock.start_ms(time)), has_events=has_events)

    assert after.clock_ms >= stored.clock_ms
    assert after.record_clock_ms >= stored.record_clock_ms
    assert after.late_ms >= 0
