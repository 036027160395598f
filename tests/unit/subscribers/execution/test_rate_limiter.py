"""The rate limit of a subscriber: the tokens of its bucket, and that all workers together stay within it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import Any

import msgspec
import pytest

from streams_app import Event, Received, Retries, Retry, subscriber
from streams_app.local.scripts import MemoryScripts
from streams_app.subscribers.declaration.subscriber import Rate, rate_of
from streams_app.subscribers.execution.async_executor import AsyncExecutor
from streams_app.subscribers.execution.dispatcher import Dispatcher
from streams_app.subscribers.execution.rate_limiter import RateLimiter
from streams_app.subscribers.state.keys import rate_key
from streams_app.subscribers.state.store import RateStore
from streams_app.subscribers.state.token_bucket import TokenBucket, bucket_of, leased
from streams_app.testing import SubscriberTester
from tests.helpers.virtual_loop import LoopClock, in_no_time
from tests.unit.subscribers.execution.test_dispatcher import Partition

SECOND_US = 1_000_000
RATE = Rate(50, 1_000)


class Paid(msgspec.Struct, frozen=True):
    order_id: str


paid = Event("order.paid", Paid, description="Paid.", keyed_by="order_id")


# Token bucket


@pytest.mark.parametrize("text", ["50/s", "100/m", "1000/h"])
def test_rate_is_formatted_as_declared(text: str) -> None:
    assert text == str(rate_of(text, []))


@pytest.mark.parametrize(
    ("rate", "most"), [(Rate(50, 1_000), 50), (Rate(49, 1_000), 49), (Rate(100, 60_000), 1), (Rate(3, 3_600_000), 1)], ids=str
)
def test_full_bucket_holds_the_leases_of_one_second_and_at_least_one(rate: Rate, most: int) -> None:
    assert most == leased(bucket_of(rate), None, 1_000, SECOND_US).granted


def test_empty_bucket_reports_when_the_next_lease_is_available() -> None:
    empty_us = leased(bucket_of(RATE), None, 50, SECOND_US).empty_us

    assert (0, 15_000) == leased(bucket_of(RATE), empty_us, 9, SECOND_US + 5_000)[:2]
    assert (1, 20_000) == leased(bucket_of(RATE), empty_us, 9, SECOND_US + 20_000)[:2]


def test_fractional_lease_is_carried_over() -> None:
    bucket, empty_us, given = TokenBucket(SECOND_US / 7, SECOND_US), 0.0, 0
    for now_us in range(0, 10 * SECOND_US, 33_333):
        got = leased(bucket, empty_us, 9, now_us)
        empty_us, given = got.empty_us, given + got.granted

    assert 69 == given


def test_backward_clock_adds_no_leases() -> None:
    assert 0 == leased(bucket_of(RATE), 9.0 * SECOND_US, 10, SECOND_US).granted


# Workers


class Server:
    """The scripts in memory, which can be unavailable."""

    def __init__(self, clock: LoopClock) -> None:
        self.is_away = False
        self.asked = 0
        self._lease = MemoryScripts(clock.now_ms).by_name["lease"]
        self.by_name: Mapping[str, Callable[..., Any]] = {"lease": self._answer}

    async def _answer(self, keys: Sequence[str], arguments: Mapping[str, Any]) -> Any:
        self.asked += 1
        if self.is_away:
            raise ConnectionError("redis is away")
        return await self._lease(keys, arguments)


class Application:
    """Workers of one subscriber with a rate limit, on one loop with virtual time."""

    def __init__(self, rate: Rate = RATE) -> None:
        self.begun: list[float] = []
        self.clock = LoopClock()
        self.server = Server(self.clock)
        self.fatal: list[BaseException] = []
        self._rate = rate
        self._workers: list[tuple[Dispatcher, Partition]] = []

    def worker(self, events: int, fails: bool = False) -> Dispatcher:
        async def ship(event: Any) -> None:
            self.begun.append(asyncio.get_running_loop().time())
            if fails:
                raise ConnectionError("the carrier is away")

        token = f"w{len(self._workers)}"
        store = RateStore(self.server, rate_key("a", "ship"), token, bucket_of(self._rate))
        leases = RateLimiter("ship", self._rate, store, self.clock, self.fatal.append)
        made = Dispatcher(
            "ship", 4, 60_000, Retries(), self.clock,
            lambda on_ended: AsyncExecutor(asyncio.get_running_loop(), ship, 4, 5_000, self.clock, on_ended), rate_limiter=leases,
        )  # fmt: skip
        partition = Partition(events)
        self._workers.append((made, partition))
        made.join(partition)
        return made

    async def stop(self) -> None:
        for made, partition in self._workers:
            made.remove_queue(partition)
            await made.executor.stop()

        assert [] == self.fatal

    def between(self, begin: float, end: float) -> int:
        return sum(begin <= at < end for at in self.begun)

    async def run(self, seconds: float) -> None:
        """Let time pass, with a tick each second."""
        for _ in range(round(seconds)):
            await asyncio.sleep(1)  # virtual time
            for made, _partition in self._workers:
                made.kick()


@pytest.mark.parametrize("fails", [False, True], ids=["events", "attempts that fail"])
@pytest.mark.parametrize("workers", [1, 2, 3])
def test_workers_together_start_exactly_as_many_attempts_as_the_rate_permits(workers: int, fails: bool) -> None:
    async def schedule() -> None:
        application = Application(Rate(10, 1_000))
        for _ in range(workers):
            application.worker(2_000 if not fails else 15, fails)
        await application.run(10)
        await application.stop()

        assert len(application.begun) <= 110
        assert fails or len(application.begun) >= 100

    in_no_time(schedule())


def test_attempts_are_spread_over_the_second_while_more_wait() -> None:
    async def schedule() -> None:
        application = Application(Rate(4, 1_000))
        application.worker(2_000)
        application.worker(2_000)
        await application.run(10)
        await application.stop()

        assert max(later - one for one, later in pairwise(application.begun)) < 0.6

    in_no_time(schedule())


def test_high_rate_is_used_up_with_few_slots() -> None:
    async def schedule() -> None:
        application = Application(Rate(1_000, 1_000))
        application.worker(20_000)
        await application.run(10)
        await application.stop()

        assert 10_500 <= len(application.begun) <= 11_000
        assert application.server.asked < 250

    in_no_time(schedule())


def test_rate_below_one_a_second_is_spread_evenly() -> None:
    async def schedule() -> None:
        application = Application(Rate(6, 60_000))
        application.worker(100)
        application.worker(100)
        await application.run(60)
        await application.stop()

        assert 6 <= len(application.begun) <= 7

    in_no_time(schedule())


def test_each_worker_continues_with_its_share_during_a_redis_outage() -> None:
    async def schedule() -> None:
        application = Application(Rate(10, 1_000))
        application.worker(2_000)
        application.worker(0)
        await application.run(5)
        application.server.is_away = True
        await application.run(10)
        during = application.between(6, 15)
        application.server.is_away = False
        await application.run(10)
        await application.stop()

        assert 44 <= during <= 46
        assert 90 <= application.between(16, 25) <= 101

    in_no_time(schedule())


def test_stopped_worker_no_longer_has_a_share() -> None:
    async def schedule() -> None:
        application = Application(Rate(10, 1_000))
        application.worker(2_000)
        gone = application.worker(0)
        await application.run(2)
        gone.remove_queue(application._workers[1][1])
        await application.run(5)
        application.server.is_away = True
        await application.run(10)
        await application.stop()

        assert 88 <= application.between(8, 17) <= 91

    in_no_time(schedule())


def test_attempt_does_not_start_before_the_first_answer_of_redis() -> None:
    async def schedule() -> None:
        application = Application()
        application.server.is_away = True
        made = application.worker(100)
        await application.run(3)
        assert [] == application.begun
        assert [{"redis"}] == [status.waits_for for status in made.statuses()]
        application.server.is_away = False
        await application.run(3)
        assert [set()] == [status.waits_for for status in made.statuses()]
        await application.stop()

        assert 100 == len(application.begun)

    in_no_time(schedule())


# With everything else, in virtual time


@pytest.mark.parametrize("idempotent", ["yes", "unknown", "no"])
@pytest.mark.parametrize("ordered", [None, "key"])
def test_rate_is_kept_for_every_delivery_guarantee(idempotent: Any, ordered: Any) -> None:
    @subscriber(paid, idempotent=idempotent, description="Ships.", rate="5/s", ordered=ordered)
    async def ship(event: Received[Paid]) -> None:
        """Do nothing."""

    with SubscriberTester(ship) as kit:
        for number in range(20):
            kit.publish(paid, Paid(f"o{number}"))
        begun = [len(kit.runs(ship))]
        for _ in range(4):
            kit.advance("1s")
            begun.append(len(kit.runs(ship)))

    assert [5, 10, 15, 20, 20] == begun


def test_retry_counts_as_an_attempt() -> None:
    @subscriber(paid, idempotent="yes", description="Ships.", rate="3/m", retry=Retries(attempts=9, first="1s", factor=1))
    def ship(event: Received[Paid]) -> None:
        if event.attempt < 4:
            raise Retry(after="100ms")

    with SubscriberTester(ship) as kit:
        kit.publish(paid, Paid("o1"))
        kit.advance("50s")
        assert 3 == len(kit.runs(ship))
        kit.advance("20s")

        assert ["retry", "retry", "retry", "done"] == [run.outcome for run in kit.runs(ship)]


def test_rate_is_kept_across_a_takeover() -> None:
    @subscriber(paid, idempotent="yes", description="Ships.", rate="2/m")
    async def ship(event: Received[Paid]) -> None:
        """Do nothing."""

    with SubscriberTester(ship) as kit:
        for number in range(4):
            kit.publish(paid, Paid(f"o{number}"))
        kit.rebalance()
        kit.advance("20s")
        assert 1 == len(kit.runs(ship))
        kit.advance("11s")

        assert 2 == len(kit.runs(ship))
        kit.advance("2m")


@pytest.mark.parametrize("idempotent", ["unknown", "no"])
def test_dead_letter_of_an_interrupted_attempt_waits_for_no_lease_and_releases_its_key(idempotent: Any) -> None:
    @subscriber(paid, idempotent=idempotent, description="Ships.", rate="1/h", ordered="key")
    async def ship(event: Received[Paid]) -> None:
        """Do nothing."""

    with SubscriberTester(ship) as kit:
        kit.crash(at="begun")
        for _ in range(2):
            kit.publish(paid, Paid("o1"))
        kit.rebalance()
        kit.advance("5s")
        assert ["interrupted"] == [dead_letter.reason for dead_letter in kit.dead_letters(ship)]
        kit.advance("1h")

        assert ["crash", "done"] == [run.outcome for run in kit.runs(ship)]


def test_invalid_event_takes_no_lease() -> None:
    @subscriber(paid, idempotent="yes", description="Ships.", rate="1/h")
    async def ship(event: Received[Paid]) -> None:
        """Do nothing."""

    with SubscriberTester(ship) as kit:
        kit.produce(paid, b"nonsense")
        kit.publish(paid, Paid("o1"))
        kit.advance("5s")

        assert (["not-valid"], ["done"]) == (
            [dead_letter.reason for dead_letter in kit.dead_letters(ship)],
            [run.outcome for run in kit.runs(ship)],
        )
