"""Waiting during an outage: for how long, and what is reported."""

from __future__ import annotations

import pytest

from streams_app.errors import ConfigurationError, TryAgainError
from streams_app.health.outage_reporter import OutageReporter
from tests.manual_clock import ManualClock


def test_outage_callback_receives_failure_and_success() -> None:
    told: list[bool] = []
    patience = OutageReporter("read store sync", told.append)
    patience.failed(TryAgainError("locked"))
    patience.succeeded()

    assert [False, True] == told


def test_operator_is_awaited_while_a_fault_cannot_heal_by_itself() -> None:
    patience = OutageReporter("it")
    told = []
    for error in (TryAgainError("locked"), ConfigurationError(["no commit"])):
        patience.failed(error)
        told.append(patience.waits_for_operator)
    patience.succeeded()

    assert [False, True, False] == [*told, patience.waits_for_operator]


def test_waits_double_up_to_ten_seconds_and_reset_after_success() -> None:
    patience = OutageReporter("it")
    waits = [patience.failed(TryAgainError("locked")) for _ in range(8)]
    patience.succeeded()

    assert [200, 400, 800, 1_600, 3_200, 6_400, 10_000, 10_000] == waits
    assert 200 == patience.failed(TryAgainError("locked"))


def test_fault_is_logged_when_it_changes_and_when_it_ends(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    patience = OutageReporter("it")
    for fault in ("locked", "locked", "gone"):
        patience.failed(TryAgainError(fault))
    patience.succeeded()
    patience.succeeded()
    patience.failed(TryAgainError("gone"))

    assert [
        "it does not work, waiting for it error=locked",
        "it does not work, waiting for it error=gone",
        "it works again",
        "it does not work, waiting for it error=gone",
    ] == [record.getMessage() for record in caplog.records]


def test_lasting_fault_is_logged_every_ten_minutes_with_its_duration(caplog: pytest.LogCaptureFixture) -> None:
    clock = ManualClock()
    patience = OutageReporter("it", clock=clock)
    for _ in range(0, 3_600, 10):  # an hour
        patience.failed(TryAgainError("locked"))
        clock.advance_ms(10_000)
    patience.succeeded()
    patience.failed(TryAgainError("locked"))

    assert [
        "it does not work, waiting for it error=locked",
        *[f"it still does not work lasted_seconds={minutes * 60} error=locked" for minutes in range(10, 60, 10)],
        "it does not work, waiting for it error=locked",
    ] == [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]


def test_outage_ends_once_all_waiting_callers_succeed() -> None:
    told: list[bool] = []
    patience = OutageReporter("it", told.append)
    for who in ("a", "b"):
        patience.failed(TryAgainError("locked"), who)
    patience.succeeded("a")
    patience.succeeded("b")

    assert [False, False, True] == told
