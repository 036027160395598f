"""Functions that block the shared loop, or hang in every slot, are named."""

from __future__ import annotations

import asyncio
import logging
import sys
import threading
from collections.abc import Iterator

import pytest

from streams_app.clock import SystemClock
from streams_app.subscribers.execution.async_executor import AsyncExecutor, UserLoop
from streams_app.subscribers.execution.executor import Attempt, AttemptOutcome
from streams_app.subscribers.execution.loop_monitor import LoopMonitor
from streams_app.subscribers.execution.thread_executor import ThreadExecutor
from tests.helpers.waiting import wait_until

LIMIT_SECONDS = 60

ENDS_WHILE_BLOCKED = """
import asyncio, sys, threading, time
from streams_app.process_exit import exit_now
from streams_app.subscribers.execution.async_executor import UserLoop

async def blocks():
    is_blocked.set()
    {blocked_by}

is_blocked = threading.Event()
users = UserLoop()
asyncio.run_coroutine_threadsafe(blocks(), users.loop)
is_blocked.wait()
users.stop(0.1)
{ends_by}
"""


async def stop_and_join(runner: ThreadExecutor) -> None:
    """Stop the slots of a test and wait for their threads: later callbacks would find no loop."""
    await runner.stop()
    for thread in runner._threads:
        await asyncio.to_thread(thread.join, LIMIT_SECONDS)


@pytest.fixture
def users() -> Iterator[UserLoop]:
    made = UserLoop()
    yield made
    made.stop(2.0)


@pytest.fixture
def watch(users: UserLoop) -> Iterator[LoopMonitor]:
    made = LoopMonitor(users, SystemClock(), blocked_ms=100)
    yield made
    made.stop()


async def test_function_that_blocks_the_loop_is_reported_once_with_its_stack(
    users: UserLoop, watch: LoopMonitor, caplog: pytest.LogCaptureFixture
) -> None:
    may_end = threading.Event()

    async def blocks(event: str) -> None:
        may_end.wait(LIMIT_SECONDS)

    async def awaits(event: str) -> None:
        await asyncio.sleep(0)

    def messages(what: str) -> list[str]:
        return [record.getMessage() for record in caplog.records if what in record.getMessage()]

    ended: list[Attempt] = []
    runners = {one.__name__: AsyncExecutor(users.loop, one, 2, 60_000, SystemClock(), ended.extend) for one in (blocks, awaits)}
    for name, runner in runners.items():
        watch.add(name, runner)
        runner.put([Attempt("o1", None)])
    with caplog.at_level(logging.WARNING):
        await wait_until(lambda: messages("is blocked subscriber=blocks seconds="), LIMIT_SECONDS, "the block is logged")
        # If the machine itself is late, the lag of every function grows, before or after the block.
        for_all = watch.lag_ms("awaits")
        await wait_until(lambda: watch.lag_ms("blocks") > for_all + 300, LIMIT_SECONDS, "the lag grows while it lasts")
        assert for_all == watch.lag_ms("awaits")
        may_end.set()
        await wait_until(lambda: messages("continues after"), LIMIT_SECONDS, "the end of the block is logged")
    for runner in runners.values():
        await runner.stop()
    (line,) = messages("is blocked subscriber=blocks seconds=")

    assert "in blocks\n    may_end.wait(LIMIT_SECONDS)" in line
    assert watch.lag_ms("blocks") >= 300


async def test_task_created_by_a_function_is_attributed_to_all_subscribers(users: UserLoop, watch: LoopMonitor) -> None:
    may_end = threading.Event()
    runners = {
        name: AsyncExecutor(users.loop, asyncio.sleep, 1, 60_000, SystemClock(), lambda calls: None) for name in ("one", "two")
    }
    for name, runner in runners.items():
        watch.add(name, runner)

    async def blocks() -> None:
        may_end.wait(LIMIT_SECONDS)

    blocking = asyncio.run_coroutine_threadsafe(blocks(), users.loop)
    await wait_until(lambda: all(watch.lag_ms(name) > 100 for name in runners), LIMIT_SECONDS, "both lag")
    may_end.set()
    await asyncio.wrap_future(blocking)
    for runner in runners.values():
        await runner.stop()


@pytest.mark.parametrize("blocked_by", ["time.sleep(60)", "while True: pass"])
@pytest.mark.parametrize("ends_by", ["exit_now(75)", "sys.exit(75)"])
async def test_process_whose_function_blocks_the_loop_exits_with_a_dedicated_code(blocked_by: str, ends_by: str) -> None:
    ending = await asyncio.create_subprocess_exec(
        sys.executable, "-c", ENDS_WHILE_BLOCKED.format(blocked_by=blocked_by, ends_by=ends_by), stderr=asyncio.subprocess.PIPE
    )
    async with asyncio.timeout(LIMIT_SECONDS):
        _, messages = await ending.communicate()

    assert (75, b"") == (ending.returncode, messages)


async def test_function_may_start_a_process_and_wait_for_it(users: UserLoop) -> None:
    async def starts(event: str) -> None:
        started = await asyncio.create_subprocess_exec(sys.executable, "-c", f"print({event!r})", stdout=asyncio.subprocess.PIPE)
        outputs.append(await started.communicate())

    outputs: list[tuple[bytes, bytes | None]] = []
    ended: list[Attempt] = []
    runner = AsyncExecutor(users.loop, starts, 2, 60_000, SystemClock(), ended.extend)
    runner.put([Attempt("o1", None)])
    await wait_until(lambda: ended, LIMIT_SECONDS, "the call has ended")
    await runner.stop()

    assert [(AttemptOutcome.DONE, None)] == [(call.outcome, call.error) for call in ended]
    assert [(b"o1\n", None)] == outputs


@pytest.mark.parametrize("hanging", [2, 1], ids=["all", "all but one"])
async def test_hanging_slots_are_reported_once_with_their_stacks_only_if_all_are_overdue(
    hanging: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("streams_app.subscribers.execution.executor.HUNG_MS", 100)
    may_end = threading.Event()
    messages: list[str] = []
    ended: list[Attempt] = []

    def hangs(event: str) -> None:
        may_end.wait(LIMIT_SECONDS)

    clock = SystemClock()
    runner = ThreadExecutor(hangs, 2, 100, clock, ended.extend, on_hung=messages.append)
    begun_ms = clock.monotonic_ms()
    try:
        runner.put([Attempt(f"o{number}", None) for number in range(hanging)])
        await wait_until(lambda: len(ended) == hanging, LIMIT_SECONDS, "the calls are overdue")
        await wait_until(lambda: clock.monotonic_ms() > begun_ms + 600, LIMIT_SECONDS, "they are overdue for some sweeps")
    finally:
        may_end.set()
        await stop_and_join(runner)

    assert (1 if hanging == 2 else 0) == len(messages)
    assert all("2 slots:" in one and "in hangs\n    may_end.wait(LIMIT_SECONDS)" in one for one in messages)


async def test_overdue_function_occupies_its_slot_until_it_returns() -> None:
    may_end = threading.Event()
    ended: list[Attempt] = []

    def hangs(event: str) -> None:
        may_end.wait(LIMIT_SECONDS)

    runner = ThreadExecutor(hangs, 2, 100, SystemClock(), ended.extend)
    try:
        runner.put([Attempt(f"o{number}", None) for number in range(2)])
        await wait_until(lambda: len(ended) == 2, LIMIT_SECONDS, "the calls are overdue")
        hanging = runner.hanging
        may_end.set()
        await wait_until(lambda: not runner.hanging, LIMIT_SECONDS, "the slots are free")
    finally:
        may_end.set()
        await stop_and_join(runner)

    assert 2 == hanging


@pytest.mark.parametrize("how", ["recall", "cancel"])
async def test_call_waiting_behind_hanging_slots_is_cancelled_at_once(how: str) -> None:
    may_end = threading.Event()
    ended: list[Attempt] = []
    called: list[str] = []

    def hangs(event: str) -> None:
        called.append(event)
        may_end.wait(LIMIT_SECONDS)

    runner = ThreadExecutor(hangs, 1, LIMIT_SECONDS * 1000, SystemClock(), ended.extend)
    try:
        runner.put([Attempt("o1", None)])
        await wait_until(lambda: called, LIMIT_SECONDS, "the slot hangs")
        waiting = Attempt("o2", None)
        runner.put([waiting])
        getattr(runner, how)([waiting])
        await wait_until(lambda: ended, LIMIT_SECONDS / 10, "the waiting one is cancelled")
    finally:
        may_end.set()
        await stop_and_join(runner)

    assert ("o2", AttemptOutcome.CANCELLED) == (ended[0].event, ended[0].outcome)
    assert ["o1"] == called


@pytest.mark.parametrize("how", ["recall", "cancel"])
async def test_call_cancelled_before_it_had_a_slot_is_not_made(how: str) -> None:
    ended: list[Attempt] = []
    called: list[str] = []
    runner = ThreadExecutor(called.append, 1, LIMIT_SECONDS * 1000, SystemClock(), ended.extend)
    try:
        early = Attempt("o1", None)
        getattr(runner, how)([early])
        runner.put([early, Attempt("o2", None)])
        await wait_until(lambda: len(ended) == 2, LIMIT_SECONDS, "both have an outcome")
    finally:
        await stop_and_join(runner)

    assert {"o1": AttemptOutcome.CANCELLED, "o2": AttemptOutcome.DONE} == {call.event: call.outcome for call in ended}
    assert ["o2"] == called
