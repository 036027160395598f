"""The benchmark beside other stream processors: the true sessions of a load, the comparison with them, and the summary of runs."""

from __future__ import annotations

from collections.abc import Iterator

import orjson
import pytest
from click.testing import CliRunner

from benchmarks.__main__ import main
from benchmarks.loads import LOADS, PARTITIONS, QUIET_MS, Event, Expected, counting, small_value
from benchmarks.stream_processors.processors import DEFAULT_LOADS, PROCESSORS
from benchmarks.stream_processors.race import Attempt, reason_in, summary
from benchmarks.stream_processors.sessions import Session, Truth, closing, difference, folded

A = Session("a", 0, 10, 2, frozenset({"likes"}))
B = Session("b", 5, 5, 1, frozenset({"shares"}))


def event(at_ms: int, *names: str) -> Event:
    metrics = orjson.dumps(dict.fromkeys(names, 1))
    return Event(at_ms, 0, b"a", small_value(b"a", 0, metrics))


def truth_of(events: Iterator[Event]) -> Truth:
    truth = Truth()
    for _ in truth.recording(events):
        pass
    return truth


def test_session_has_times_number_and_names_of_its_events() -> None:
    truth = truth_of(iter([event(0, "likes"), event(10, "shares", "likes")]))

    assert [Session("a", 0, 10, 2, frozenset({"likes", "shares"}))] == truth.sessions()


@pytest.mark.parametrize(("gap_ms", "counts"), [(QUIET_MS, [2]), (QUIET_MS + 1, [1, 1])])
def test_session_ends_with_a_gap_above_the_quiet_period(gap_ms: int, counts: list[int]) -> None:
    truth = truth_of(iter([event(0, "likes"), event(gap_ms, "likes")]))

    assert counts == [session.events for session in truth.sessions()]


@pytest.mark.parametrize("load", DEFAULT_LOADS)
def test_truth_has_the_sessions_that_this_project_must_emit(load: str) -> None:
    expected = Expected()
    truth = truth_of(counting(LOADS[load].generate(0.001, PARTITIONS), expected))

    assert (expected.sessions, expected.events) == (len(truth.sessions()), sum(each.events for each in truth.sessions()))


def test_record_is_read_as_the_session_that_it_describes() -> None:
    about = {"id": "f:t:0:1-2", "events": 2, "first_event_ms": 1_000, "last_event_ms": 1_010}
    value = orjson.dumps({"account_id": "a", "metrics": ["likes"], "fold": about})

    assert A == folded(value, begin_ms=1_000)


@pytest.mark.parametrize(
    ("found", "missing", "extra"),
    [
        ([A, B], 0, 0),
        ([B, A], 0, 0),
        ([A], 1, 0),
        ([A, B, B], 0, 1),
        ([A, B._replace(events=2)], 1, 1),
        ([A, B._replace(names=frozenset())], 1, 1),
        ([], 2, 0),
    ],
    ids=["same", "another order", "one missing", "one twice", "too many events", "without its names", "none"],
)
def test_difference_counts_missing_and_extra_sessions(found: list[Session], missing: int, extra: int) -> None:
    assert (missing, extra) == difference([A, B], found)


def test_difference_ignores_sessions_of_closing_events() -> None:
    closings = truth_of(closing()).sessions()

    assert (len(closings), (0, 0), (0, 0)) == (PARTITIONS, difference([A, *closings], [A]), difference([A], [A, *closings]))


def test_summary_relates_the_median_to_bare_reading() -> None:
    base = [Attempt(1_000, seconds=1.0)]
    attempts = [Attempt(1_000, seconds=seconds, cpu_seconds=0.01, peak_mb=99.6, missing=0, extra=0) for seconds in (2.0, 4.0, 8.0)]

    assert {
        "events_per_second": 250, "ratio_to_bare": 0.25, "cpu_us_per_event": 10.0, "peak_mb": 100, "sessions_missing": 0,
        "sessions_extra": 0,
    } == summary("hot: other", attempts, base, 60).figures  # fmt: skip


def test_summary_of_bare_reading_names_no_sessions() -> None:
    base = [Attempt(1_000, seconds=1.0)]

    assert {"events_per_second", "ratio_to_bare", "cpu_us_per_event", "peak_mb"} == summary(
        "hot: bare", base, base, 60
    ).figures.keys()


def test_run_that_does_not_finish_is_a_result_and_not_an_error() -> None:
    attempts = [Attempt(1_000, seconds=2.0), Attempt(1_000, missing=7), Attempt(1_000, missing=9, fault="ended: killed")]
    found = summary("hot: other", attempts, [Attempt(1_000, seconds=1.0)], 60)

    assert [] == found.faults
    assert (9, "1 of 3 runs", "ended: killed; not finished in 60 s") == (
        found.figures["sessions_missing"], found.figures["finished"], found.figures["unfinished"],
    )  # fmt: skip


@pytest.mark.parametrize(
    ("log", "reason"),
    [
        (
            "starting\nException in thread main: no types\n\tat A.b(A.java:1)\n\t... 3 more\n\n",
            "Exception in thread main: no types",
        ),
        ("", "without a word in its log"),
    ],
)
def test_reason_of_an_end_is_the_last_line_of_the_log_before_the_stack(log: str, reason: str) -> None:
    assert reason == reason_in(log)


def test_unknown_processor_is_an_error_that_lists_the_known_ones() -> None:
    result = CliRunner().invoke(main, ["--processors", "flink,spark"])

    assert result.exit_code == 2
    assert "spark: there are " in result.output
    assert all(name in result.output for name in PROCESSORS)
