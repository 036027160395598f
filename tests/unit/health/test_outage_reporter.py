"""Waiting during an outage: for how long, and what is reported."""

from __future__ import annotations

import asyncio

import pytest

from streams_app.errors import ConfigurationError, TryAgainError
from streams_app.health.outage_reporter import OutageReporter
from streams_app.read_store.core.errors import SourceFailedError
from tests.helpers.manual_clock import ManualClock


def test_outage_callback_receives_failure_and_success() -> None:
    changes: list[bool] = []
    outages = OutageReporter("read store sync", changes.append)
    outages.failed(TryAgainError("locked"))
    outages.succeeded()

    assert [False, True] == changes


def test_remark_says_since_when_and_why_without_what_only_the_log_may_have() -> None:
    clock = ManualClock(1_795_000_000_000)
    outages = OutageReporter("read store dash", clock=clock)
    remarks = [outages.remark]
    for error in (
        TryAgainError("read store dash postgresql://shop@db:\n  no answer in time"),
        SourceFailedError("current raised KeyError: 'anna@example.com'", "", is_data_error=True),
        ValueError("anna@example.com"),
        TryAgainError("x" * 10_000),
    ):
        outages.failed(error)
        remarks.append(outages.remark)
        clock.advance_ms(60_000)
    outages.succeeded()
    since = "read store dash does not work since 2026-11-18 11:06:40Z: "
    hidden = "; the log of the worker has its text, which may contain values"

    assert [
        None, f"{since}postgresql://shop@db: no answer in time", f"{since}SourceFailedError{hidden}", f"{since}ValueError{hidden}",
        f"{since}{'x' * 400}…", None,
    ] == [*remarks, outages.remark]  # fmt: skip


def test_operator_is_awaited_while_a_fault_cannot_heal_by_itself() -> None:
    outages = OutageReporter("it")
    changes = []
    for error in (TryAgainError("locked"), ConfigurationError(["no commit"])):
        outages.failed(error)
        changes.append(outages.waits_for_operator)
    outages.succeeded()

    assert [False, True, False] == [*changes, outages.waits_for_operator]


def test_waits_double_up_to_ten_seconds_and_reset_after_success() -> None:
    outages = OutageReporter("it")
    waits = [outages.failed(TryAgainError("locked")) for _ in range(8)]
    outages.succeeded()

    assert [200, 400, 800, 1_600, 3_200, 6_400, 10_000, 10_000] == waits
    assert 200 == outages.failed(TryAgainError("locked"))


def test_fault_is_logged_when_it_changes_and_when_it_ends(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    outages = OutageReporter("it")
    for fault in ("locked", "locked", "gone"):
        outages.failed(TryAgainError(fault))
    outages.succeeded()
    outages.succeeded()
    outages.failed(TryAgainError("gone"))

    assert [
        "it does not work, waiting for it error=locked",
        "it does not work, waiting for it error=gone",
        "it works again",
        "it does not work, waiting for it error=gone",
    ] == [record.getMessage() for record in caplog.records]


def test_lasting_fault_is_logged_every_ten_minutes_with_its_duration(caplog: pytest.LogCaptureFixture) -> None:
    clock = ManualClock()
    outages = OutageReporter("it", clock=clock)
    for _ in range(0, 3_600, 10):  # an hour
        outages.failed(TryAgainError("locked"))
        clock.advance_ms(10_000)
    outages.succeeded()
    outages.failed(TryAgainError("locked"))

    assert [
        "it does not work, waiting for it error=locked",
        *[f"it still does not work lasted_seconds={minutes * 60} error=locked" for minutes in range(10, 60, 10)],
        "it does not work, waiting for it error=locked",
    ] == [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]


def test_outage_ends_once_all_waiting_callers_succeed() -> None:
    changes: list[bool] = []
    outages = OutageReporter("it", changes.append)
    for who in ("a", "b"):
        outages.failed(TryAgainError("locked"), who)
    outages.succeeded("a")
    outages.succeeded("b")

    assert [False, False, True] == changes


async def test_step_is_retried_until_it_succeeds_without_a_wait_once_there_is_room() -> None:
    outages, failures = OutageReporter("it"), [TryAgainError("locked"), TryAgainError("locked")]
    seen: list[str] = []

    async def step() -> None:
        if failures:
            raise failures.pop()

    async def made_room(error: BaseException) -> bool:
        seen.append(f"{error} {outages.fault}")
        return True

    async with asyncio.timeout(60):
        await outages.retry(step, "a", (TryAgainError,), made_room)

    assert (["locked locked"] * 2, None) == (seen, outages.fault)


async def test_error_of_another_kind_ends_the_retries() -> None:
    async def step() -> None:
        raise ConfigurationError(["no commit"])

    with pytest.raises(ConfigurationError):
        await OutageReporter("it").retry(step, "a", (TryAgainError,))
