"""Executor slots that call functions, in virtual time or in threads."""

from __future__ import annotations

import asyncio
import inspect
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any

import pytest

from streams_app.clock import SystemClock
from streams_app.subscribers.execution.async_executor import AsyncExecutor, UserLoop
from streams_app.subscribers.execution.executor import Attempt, AttemptOutcome
from streams_app.subscribers.execution.thread_executor import ThreadExecutor
from tests.helpers.manual_clock import ManualClock
from tests.helpers.virtual_loop import LoopClock, in_no_time
from tests.helpers.waiting import wait_until

LIMIT_SECONDS = 60


@pytest.mark.parametrize("swallows", [False, True])
def test_overdue_call_times_out_and_its_slot_continues_when_the_function_has_ended(swallows: bool) -> None:
    async def schedule() -> None:
        async def ship(event: str) -> None:
            if event == "hangs":
                try:
                    await asyncio.Event().wait()
                except asyncio.CancelledError:
                    if not swallows:
                        raise
                    await asyncio.sleep(3)  # virtual time
            elif event == "cancels itself":
                raise asyncio.CancelledError

        ended: list[Attempt] = []
        executor = AsyncExecutor(asyncio.get_running_loop(), ship, 1, 1_000, LoopClock(), ended.extend)
        executor.put([Attempt(event, None) for event in ("hangs", "cancels itself", "next")])
        await asyncio.sleep(1.5)  # virtual time
        assert [("hangs", AttemptOutcome.TIMEOUT)] == [(call.event, call.outcome) for call in ended][:1]
        assert (1 if swallows else 3) == len(ended)
        await asyncio.sleep(3)  # virtual time

        assert [AttemptOutcome.TIMEOUT, AttemptOutcome.ERROR, AttemptOutcome.DONE] == [call.outcome for call in ended]

    in_no_time(schedule())


def test_slot_with_only_short_calls_yields_to_others() -> None:
    class TickingClock(LoopClock):
        """Advances by a millisecond at each reading."""

        passed_ms = 0

        def monotonic_ms(self) -> int:
            self.passed_ms += 1
            return self.passed_ms

    async def schedule() -> None:
        async def ship(event: int) -> None:
            called.append(event)

        called: list[int] = []
        executor = AsyncExecutor(asyncio.get_running_loop(), ship, 1, 60_000, TickingClock(), lambda calls: None)
        executor.put([Attempt(event, None) for event in range(100)])
        while not called:
            await asyncio.sleep(0)

        assert len(called) < 100

    in_no_time(schedule())


def test_time_blocked_by_another_function_is_not_overdue() -> None:
    class JumpingClock(LoopClock):
        """Also advances while the loop is blocked."""

        passed_ms = 0

        def monotonic_ms(self) -> int:
            return super().monotonic_ms() + self.passed_ms

    async def schedule() -> None:
        clock = JumpingClock()

        async def ship(event: str) -> None:
            await asyncio.sleep({"blocks": 0.05, "ends": 0.5, "hangs": 60}[event])  # virtual time
            if event == "blocks":
                clock.passed_ms += 8_000

        ended: list[Attempt] = []
        executor = AsyncExecutor(asyncio.get_running_loop(), ship, 3, 1_000, clock, ended.extend)
        executor.put([Attempt(event, None) for event in ("blocks", "ends", "hangs")])
        await asyncio.sleep(2)  # virtual time

        expected = [("blocks", AttemptOutcome.DONE), ("ends", AttemptOutcome.DONE), ("hangs", AttemptOutcome.TIMEOUT)]
        assert expected == [(call.event, call.outcome) for call in ended]

    in_no_time(schedule())


def test_cancelled_call_does_not_start_and_a_running_one_is_cancelled() -> None:
    async def schedule() -> None:
        begun: list[str] = []

        async def ship(event: str) -> None:
            begun.append(event)
            await asyncio.Event().wait()

        ended: list[Attempt] = []
        executor = AsyncExecutor(asyncio.get_running_loop(), ship, 1, 60_000, LoopClock(), ended.extend)
        calls = [Attempt("runs", None), Attempt("waits", None)]
        executor.put(calls)
        await asyncio.sleep(0.5)  # virtual time
        executor.cancel(calls)
        await asyncio.sleep(0.5)  # virtual time

        assert ["runs"] == begun
        assert [AttemptOutcome.CANCELLED] * 2 == [call.outcome for call in ended]

    in_no_time(schedule())


@pytest.mark.parametrize("error", [None, ValueError("too late")])
async def test_overdue_thread_reports_a_late_success_to_on_late_only(
    error: Exception | None,
) -> None:
    may_end = threading.Event()
    ended: list[Attempt] = []
    clock = ManualClock()
    late: list[str] = []

    def hangs(event: str) -> None:
        may_end.wait(60)
        if error is not None and event == "hangs":
            raise error

    executor = ThreadExecutor(hangs, 1, 100, clock, ended.extend)
    calls = [Attempt("hangs", None), Attempt("next", None)]
    for call in calls:
        call.on_late = partial(late.append, call.event)
    try:
        executor.put(calls)
        await wait_until(lambda: executor.running, LIMIT_SECONDS, "it has begun")
        clock.advance_ms(100)
        await wait_until(lambda: len(ended) == 1, LIMIT_SECONDS, "it is overdue")
        may_end.set()
        await wait_until(lambda: len(ended) == 2, LIMIT_SECONDS, "its slot continues")
    finally:
        may_end.set()
        await executor.stop()

    assert [("hangs", AttemptOutcome.TIMEOUT), ("next", AttemptOutcome.DONE)] == [(call.event, call.outcome) for call in ended]
    assert ["hangs"] * (error is None) == late


async def test_thread_suspended_with_its_process_is_not_overdue() -> None:
    may_end = threading.Event()
    ended: list[Attempt] = []
    clock = ManualClock()
    executor = ThreadExecutor(lambda event: may_end.wait(60) and None, 1, 400, clock, ended.extend)
    try:
        executor.put([Attempt("o1", None)])
        await wait_until(lambda: executor.running, LIMIT_SECONDS, "it has begun")
        (call,) = executor.running
        clock.advance_ms(300_000)
        await wait_until(lambda: call.excused_ms or ended, LIMIT_SECONDS, "a sweep has come late")
        overdue = [*ended]
        clock.advance_ms(400)
        await wait_until(lambda: ended, LIMIT_SECONDS, "it is overdue by the time in which it could go on")
    finally:
        may_end.set()
        await executor.stop()

    assert ([], [AttemptOutcome.TIMEOUT]) == (overdue, [call.outcome for call in ended])


def test_thread_that_outlives_the_loop_of_its_worker_ends_silently() -> None:
    may_end = threading.Event()
    clock = ManualClock()
    runners: list[ThreadExecutor] = []

    async def schedule() -> None:
        ended: list[Attempt] = []
        runners.append(ThreadExecutor(lambda event: may_end.wait(60) and None, 1, 100, clock, ended.extend))
        runners[0].put([Attempt("hangs", None)])
        await wait_until(lambda: runners[0].running, LIMIT_SECONDS, "it has begun")
        clock.advance_ms(100)
        await wait_until(lambda: ended, LIMIT_SECONDS, "it is overdue")
        await runners[0].stop()

    asyncio.run(schedule())
    may_end.set()
    runners[0]._threads[0].join(LIMIT_SECONDS)

    # An error in a thread fails a test.
    assert not runners[0]._threads[0].is_alive()


async def test_sync_function_that_returns_an_awaitable_has_failed() -> None:
    async def nothing() -> None:
        raise AssertionError("it never runs")

    ended: list[Attempt] = []
    executor = ThreadExecutor(lambda event: nothing(), 1, 10_000, SystemClock(), ended.extend)
    executor.put([Attempt("o1", None)])
    await wait_until(lambda: len(ended) == 1, LIMIT_SECONDS, "it has ended")
    await executor.stop()

    assert isinstance(ended[0].error, TypeError)


@pytest.mark.parametrize("is_struck", [True, False])
def test_slot_cancelled_by_its_function_starts_the_next_event(is_struck: bool) -> None:
    async def schedule() -> None:
        async def ship(event: str) -> None:
            if event == "cancels":
                task = asyncio.current_task()
                assert task is not None
                task.cancel()
                if is_struck:
                    await asyncio.sleep(1)  # virtual time
            else:
                await asyncio.sleep(1)  # virtual time

        ended: list[Attempt] = []
        executor = AsyncExecutor(asyncio.get_running_loop(), ship, 1, 10_000, LoopClock(), ended.extend)
        executor.put([Attempt(event, None) for event in ("cancels", "next")])
        await asyncio.sleep(2)  # virtual time
        executor.put([Attempt("later", None)])
        await asyncio.sleep(2)  # virtual time
        await executor.stop()

        outcomes = [(call.event, call.outcome) for call in ended]

        assert [
            ("cancels", AttemptOutcome.ERROR if is_struck else AttemptOutcome.DONE),
            ("next", AttemptOutcome.DONE),
            ("later", AttemptOutcome.DONE),
        ] == outcomes

    in_no_time(schedule())


def test_slot_cancelled_by_a_function_after_its_end_recovers_soon() -> None:
    async def schedule() -> None:
        async def ship(event: str) -> None:
            task = asyncio.current_task()
            assert task is not None
            if event == "cancels":
                asyncio.get_running_loop().call_later(1, task.cancel)

        ended: list[Attempt] = []
        executor = AsyncExecutor(asyncio.get_running_loop(), ship, 1, 10_000, LoopClock(), ended.extend)
        for event in ("cancels", "next"):
            executor.put([Attempt(event, None)])
            await asyncio.sleep(2)  # virtual time

        assert ["cancels", "next"] == [call.event for call in ended]

    in_no_time(schedule())


def test_slots_whose_functions_ignore_cancellation_hang_and_are_reported_once_with_their_position() -> None:
    async def schedule() -> None:
        async def ship(event: str) -> None:
            while not may_end:
                with suppress(asyncio.CancelledError):
                    await asyncio.Event().wait()

        reported: list[str] = []
        may_end: list[bool] = []
        executor = AsyncExecutor(
            asyncio.get_running_loop(), ship, 2, 1_000, LoopClock(), lambda calls: None, on_hung=reported.append
        )
        executor.put([Attempt("one", None)])
        await asyncio.sleep(100)  # virtual time
        assert (1, []) == (executor.hanging, reported)
        executor.put([Attempt("two", None)])
        await asyncio.sleep(100)  # virtual time
        hanging = executor.hanging
        may_end.append(True)
        await executor.stop()

        assert 2 == hanging
        assert [True] == ["2 slots:" in one and "await asyncio.Event().wait()" in one for one in reported]

    in_no_time(schedule())


def test_slots_suspended_with_their_process_do_not_hang_when_they_time_out() -> None:
    class JumpingClock(LoopClock):
        """Also advances while the process is stopped."""

        passed_ms = 0

        def monotonic_ms(self) -> int:
            return super().monotonic_ms() + self.passed_ms

    async def schedule() -> None:
        async def ship(event: str) -> None:
            await asyncio.Event().wait()

        reported: list[str] = []
        ended: list[Attempt] = []
        clock = JumpingClock()
        executor = AsyncExecutor(asyncio.get_running_loop(), ship, 1, 1_000, clock, ended.extend, on_hung=reported.append)
        executor.put([Attempt("one", None)])
        await asyncio.sleep(0.5)  # virtual time
        clock.passed_ms = 300_000
        await asyncio.sleep(5)  # virtual time
        await executor.stop()

        assert ([AttemptOutcome.TIMEOUT], [], 0) == ([call.outcome for call in ended], reported, executor.hanging)

    in_no_time(schedule())


@pytest.mark.parametrize("ends", [sys.exit, lambda: asyncio.get_running_loop().stop()], ids=["exit", "stop"])
async def test_user_loop_survives_a_function_that_would_stop_it(ends: Callable[[], None], caplog: pytest.LogCaptureFixture) -> None:
    async def ship(event: str) -> None:
        if event == "ends":

            async def end() -> None:
                ends()

            await asyncio.create_task(end())

    ended: list[Attempt] = []
    users = UserLoop()
    executor = AsyncExecutor(users.loop, ship, 1, 60_000, SystemClock(), ended.extend)
    try:
        executor.put([Attempt(event, None) for event in ("ends", "next")])
        await wait_until(lambda: len(ended) == 2, LIMIT_SECONDS, "both have ended")
    finally:
        await executor.stop()
        users.stop(2.0)

    assert AttemptOutcome.DONE == ended[1].outcome


def test_slot_discarded_with_its_loop_ends_inside_its_function() -> None:
    loop = asyncio.new_event_loop()

    async def hang(event: str) -> None:
        await asyncio.Event().wait()

    async def begin() -> Any:
        executor = AsyncExecutor(loop, hang, 1, 60_000, SystemClock(), lambda ended: None)
        executor.put([Attempt("hangs", None)])
        await wait_until(lambda: executor.running, 60, "the function is called")
        (slot,) = executor._tasks
        return slot.get_coro()

    slot = loop.run_until_complete(begin())
    loop.close()
    slot.close()

    assert inspect.CORO_CLOSED == inspect.getcoroutinestate(slot)
