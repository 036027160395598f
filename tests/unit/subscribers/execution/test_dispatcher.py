"""The dispatcher of events to executor slots: outages, partitions, and queues, on a loop with virtual time."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from itertools import pairwise
from typing import Any

import pytest

from streams_app.delivery.batch import TP
from streams_app.subscribers.declaration.received import Reject
from streams_app.subscribers.declaration.retries import Retries
from streams_app.subscribers.execution.async_executor import AsyncExecutor
from streams_app.subscribers.execution.dispatcher import FEWEST_AHEAD, SOON_ROUNDS, Dispatcher, QueueLimit
from streams_app.subscribers.execution.executor import Attempt, AttemptOutcome
from streams_app.subscribers.execution.in_flight_event import InFlightEvent
from streams_app.subscribers.execution.status import PartitionStatus
from tests.helpers.virtual_loop import LoopClock, in_no_time

PATIENCE_MS = 60_000
LIMIT_SECONDS = 60


class Partition:
    """Events that are retried a second after they failed; it records each call."""

    in_flight = 0

    def __init__(self, events: int) -> None:
        self.fresh = deque(InFlightEvent(None, 0) for _ in range(events))
        self.waiting: deque[InFlightEvent] = deque()
        self.counted: list[bool] = []
        self.outcomes: list[AttemptOutcome | None] = []
        self.taken = self.max_taken = 0
        self.begun = {True: 0, False: 0}

    def take(self, most: int, now_ms: int, *, is_fresh: bool | None = None) -> list[Attempt]:
        if self.waiting and self.waiting[0].due_ms <= now_ms and not (is_fresh and self.fresh):
            return [self._call(self.waiting.popleft())]
        return [self._call(self.fresh.popleft()) for _ in range(min(most, len(self.fresh)))]

    def ready(self, now_ms: int) -> int:
        return len(self.fresh) + sum(work.due_ms <= now_ms for work in self.waiting)

    def retry_now(self, now_ms: int) -> int:
        early = sum(work.due_ms > now_ms for work in self.waiting)
        for work in self.waiting:
            work.due_ms = min(work.due_ms, now_ms)
        return early

    def ended(self, calls: Sequence[Attempt], uncounted: Collection[Attempt]) -> None:
        self.taken -= len(calls)
        for call in calls:
            self.outcomes.append(call.outcome)
            self.counted.append(call not in uncounted)
            if call.outcome is not AttemptOutcome.DONE:
                call.in_flight_event.due_ms = LoopClock().now_ms() + 1_000
                self.waiting.append(call.in_flight_event)

    def status(self) -> PartitionStatus:
        return PartitionStatus(TP("orders", 0), 0)

    def _call(self, work: InFlightEvent) -> Attempt:
        self.begun[not work.attempts] += 1
        work.attempts += 1
        self.taken += 1
        self.max_taken = max(self.max_taken, self.taken)
        return Attempt(work, work)


def dispatcher_of(
    function: Callable[[Any], Any], partitions: list[Partition], concurrency: int = 4, ahead: QueueLimit = QueueLimit.MANY
) -> Dispatcher:
    clock = LoopClock()
    made = Dispatcher(
        "ship", concurrency, PATIENCE_MS, Retries(), clock,
        lambda on_ended: AsyncExecutor(asyncio.get_running_loop(), function, concurrency, 5_000, clock, on_ended),
        ahead=ahead,
    )  # fmt: skip
    for partition in partitions:
        made.join(partition)
    return made


def is_suspended(dispatcher: Dispatcher) -> bool:
    return dispatcher.circuit_breaker.is_suspended


async def tick(dispatcher: Dispatcher, seconds: float) -> None:
    """Kick it ten times a second, as the worker's tick does."""
    for _ in range(round(10 * seconds)):
        dispatcher.kick()
        await asyncio.sleep(0.1)  # virtual time


# Outage


def test_suspension_is_reported_with_the_last_error(caplog: pytest.LogCaptureFixture) -> None:
    async def ship(event: InFlightEvent) -> None:
        raise ConnectionError("the carrier is away")

    async def schedule() -> None:
        dispatcher = dispatcher_of(ship, [Partition(100)])
        await tick(dispatcher, 1)
        assert is_suspended(dispatcher)

    in_no_time(schedule())

    (line,) = [message for message in caplog.messages if "is suspended" in message]
    assert line.endswith("subscriber=ship error=ConnectionError('the carrier is away')")


def test_outage_permits_one_attempt_at_a_time_until_the_first_success() -> None:
    async def schedule() -> None:
        begun: list[float] = []
        running = [0, 0]
        outage = {"is over": False}

        async def ship(event: InFlightEvent) -> None:
            begun.append(asyncio.get_running_loop().time())
            running[0] += 1
            running[1] = max(running)
            await asyncio.sleep(0.05)  # virtual time
            running[0] -= 1
            if not outage["is over"]:
                raise ConnectionError("the carrier is away")

        partition = Partition(100)
        dispatcher = dispatcher_of(ship, [partition])
        await tick(dispatcher, 3)
        assert is_suspended(dispatcher)
        assert len(begun) < 30
        running[1], before = 0, len(begun)
        await tick(dispatcher, 30)
        during = begun[before:]
        assert 1 == running[1]
        assert 3 <= len(during) <= 6
        assert all(later - one > 1 for one, later in pairwise(during))
        outage["is over"] = True
        await tick(dispatcher, 90)

        assert not is_suspended(dispatcher)
        assert 100 == partition.outcomes.count(AttemptOutcome.DONE)

    in_no_time(schedule())


@pytest.mark.parametrize("partitions", [1, 2, 3])
def test_outage_probes_include_fresh_and_waiting_events_of_each_partition(partitions: int) -> None:
    async def schedule() -> None:
        async def ship(event: InFlightEvent) -> None:
            raise ConnectionError("the carrier is away")

        served = [Partition(1_000) for _ in range(partitions)]
        dispatcher = dispatcher_of(ship, served)
        await tick(dispatcher, 3)
        assert is_suspended(dispatcher)
        begun = [dict(partition.begun) for partition in served]
        await tick(dispatcher, 600)

        assert all(
            partition.begun[is_fresh] > before[is_fresh]
            for partition, before in zip(served, begun, strict=True)
            for is_fresh in (True, False)
        )

    in_no_time(schedule())


def test_failures_during_an_outage_do_not_count_until_patience_is_over() -> None:
    async def schedule() -> None:
        async def ship(event: InFlightEvent) -> None:
            raise ConnectionError("the carrier is away")

        partition = Partition(100)
        dispatcher = dispatcher_of(ship, [partition])
        await tick(dispatcher, PATIENCE_MS / 1000)
        counted = partition.counted.count(True)
        assert False in partition.counted
        await tick(dispatcher, 150)

        assert counted < partition.counted.count(True)

    in_no_time(schedule())


def test_rejection_is_no_outage() -> None:
    async def schedule() -> None:
        async def ship(event: InFlightEvent) -> None:
            raise Reject("nobody lives there")

        partition = Partition(100)
        dispatcher = dispatcher_of(ship, [partition])
        await tick(dispatcher, 1)

        assert not is_suspended(dispatcher)
        assert all(partition.counted)

    in_no_time(schedule())


# Partitions


def test_partition_with_many_events_does_not_delay_another() -> None:
    async def schedule() -> None:
        order: list[InFlightEvent] = []

        async def ship(event: InFlightEvent) -> None:
            order.append(event)
            await asyncio.sleep(0.01)  # virtual time

        long, short = Partition(5_000), Partition(1)
        (only,) = short.fresh
        dispatcher = dispatcher_of(ship, [long, short])
        await tick(dispatcher, 2)

        assert only in order[:50]

    in_no_time(schedule())


# Queue for a slot


@pytest.mark.parametrize(
    ("seconds", "ahead", "most"),
    [
        (0.001, QueueLimit.SOON, 4 + 4 * SOON_ROUNDS),
        (0.02, QueueLimit.SOON, 8),
        (1, QueueLimit.SOON, 4),
        (0.001, QueueLimit.NONE, 4),
        (1, QueueLimit.MANY, FEWEST_AHEAD),
    ],
)
def test_number_of_events_queued_for_slots_follows_the_ahead_policy(seconds: float, ahead: QueueLimit, most: int) -> None:
    async def schedule() -> None:
        async def ship(event: InFlightEvent) -> None:
            await asyncio.sleep(seconds)  # virtual time

        partition = Partition(5_000)
        await tick(dispatcher_of(ship, [partition], ahead=ahead), 1)

        assert most == pytest.approx(partition.max_taken, rel=0.1)

    in_no_time(schedule())


@pytest.mark.parametrize("ahead", [QueueLimit.NONE, QueueLimit.SOON])
def test_hanging_slot_has_no_queue_if_begins_are_logged(ahead: QueueLimit) -> None:
    async def schedule() -> None:
        async def ship(event: InFlightEvent) -> None:
            while not may_end:
                with suppress(asyncio.CancelledError):
                    await asyncio.sleep(0.01)  # virtual time

        may_end: list[bool] = []
        partition = Partition(100)
        dispatcher = dispatcher_of(ship, [partition], concurrency=2, ahead=ahead)
        await tick(dispatcher, 7)
        hanging, taken = dispatcher.executor.hanging, partition.taken
        may_end.append(True)
        await asyncio.sleep(1)  # virtual time

        assert (2, 0, 102) == (hanging, taken, len(partition.outcomes))

    in_no_time(schedule())


def test_call_rate_is_forgotten_after_a_pause() -> None:
    async def schedule() -> None:
        async def ship(event: InFlightEvent) -> None:
            await asyncio.sleep(0.001)  # virtual time

        partition = Partition(1_000)
        dispatcher = dispatcher_of(ship, [partition], ahead=QueueLimit.SOON)
        await tick(dispatcher, 2)
        partition.max_taken = 0
        partition.fresh.extend(InFlightEvent(None, 0) for _ in range(100))
        dispatcher.kick()

        assert (4, 1_000) == (partition.max_taken, len(partition.outcomes))

    in_no_time(schedule())
