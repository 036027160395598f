"""The delay before the next retry."""

from __future__ import annotations

from streams_app.backoff import Backoff


def test_waits_double_up_to_the_longest() -> None:
    backoff = Backoff(0.1, 1.0)

    assert [0.1, 0.2, 0.4, 0.8, 1.0, 1.0] == [backoff.failed() for _ in range(6)]


def test_success_resets_the_backoff_and_reports_whether_any_attempt_had_failed() -> None:
    backoff = Backoff(0.1, 1.0)
    results = [backoff.succeeded(), backoff.failed(), backoff.failed(), backoff.succeeded(), backoff.succeeded(), backoff.failed()]

    assert [False, 0.1, 0.2, True, False, 0.1] == results


def test_long_outage_ends_in_the_longest_wait_without_an_error() -> None:
    assert 2.0 == Backoff(0.05, 2.0, failures=100_000).failed()
