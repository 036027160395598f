"""Which failures of an outage are logged."""

from __future__ import annotations

from itertools import pairwise

from streams_app.reported_backoff import ReportedBackoff
from tests.helpers.manual_clock import ManualClock


def test_failures_in_a_row_are_reported_at_first_and_every_ten_minutes_however_long_attempts_take() -> None:
    clock = ManualClock()
    backoff, reported_ms = ReportedBackoff(1.0, 60.0, clock=clock), list[int]()
    for _ in range(60):
        clock.advance_ms(25_000)
        if backoff.should_report:
            reported_ms.append(clock.monotonic_ms())
        clock.advance_ms(round(1000 * backoff.failed()))

    pauses_ms = [after - before for before, after in pairwise(reported_ms)]
    assert pauses_ms
    assert all(600_000 <= pause_ms < 600_000 + 60_000 + 25_000 for pause_ms in pauses_ms)


def test_first_failure_after_a_success_is_reported() -> None:
    backoff = ReportedBackoff(1.0, 60.0)
    backoff.failed()
    is_second_reported = backoff.should_report
    backoff.succeeded()

    assert (False, True) == (is_second_reported, backoff.should_report)
