"""The metrics of a subscriber while it works, fails, waits and is idle."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import pytest
import redis

from streams_app.embedded import Valkey
from streams_app.errors import TryAgainError
from streams_app.health.metrics import Metrics
from streams_app.health.status import Status
from streams_app.subscribers.declaration.received import Received, Reject, Retry
from streams_app.subscribers.declaration.retries import Retries
from tests.conftest import KafkaServer, Names, RedisServer
from tests.helpers.kafka.topics import create_topics, delete_topic
from tests.helpers.subscribers.subscribing import LIMIT_SECONDS, PARTITIONS, Paid, Shop
from tests.helpers.waiting import wait_until

pytestmark = pytest.mark.timeout(200)


class ShipMetrics:
    """The metrics of the subscriber ``ship`` in one member."""

    def __init__(self, shop: Shop) -> None:
        self.metrics = Metrics(shop.settings)

    def value(self, name: str, **labels: str) -> float:
        found = self.metrics.registry.get_sample_value(f"streams_app_{name}", {"subscriber": "ship", **labels})
        return -1.0 if found is None else found

    def counted(self, name: str, **labels: str) -> float:
        return self.value(f"subscriber_{name}_total", event="order.paid", **labels)

    async def until(self, name: str, expected: float, **labels: str) -> None:
        await wait_until(lambda: self.value(name, **labels) == expected, LIMIT_SECONDS, f"{name} {labels} is {expected}")


@pytest.fixture
async def shop(kafka: KafkaServer, redis_server: RedisServer, names: Names) -> Shop:
    made = Shop(names, kafka.bootstrap_servers, redis_server.url)
    await made.open()
    return made


@pytest.fixture
def seen(shop: Shop) -> ShipMetrics:
    return ShipMetrics(shop)


async def test_event_of_another_type_is_counted_as_skipped(shop: Shop, seen: ShipMetrics) -> None:
    async def ship(event: Received[Paid]) -> None:
        raise AssertionError("it is not for this subscriber")

    await shop.send("o1", headers=[("ce_type", b"order.sent")])
    async with shop.member(ship, metrics=seen.metrics):
        await seen.until("subscriber_finished_total", 1, event="order.paid", result="skipped")

    assert 0 == seen.counted("attempts", outcome="done")


async def test_every_attempt_finished_event_and_dead_letter_is_counted(shop: Shop, seen: ShipMetrics) -> None:
    async def ship(event: Received[Paid]) -> None:
        match event.data.order_id:
            case "poison":
                raise ValueError("no such article")
            case "unwanted":
                raise Reject("nobody lives there")
            case "early" if event.attempt == 1:
                raise Retry
            case "slow":
                await asyncio.Event().wait()

    soon = Retries(attempts=2, first="20ms", factor=1, longest="20ms")
    await shop.send("o1", "poison", "o2", "unwanted", "early", "slow")
    async with shop.member(ship, retry=soon, timeout="100ms", metrics=seen.metrics):
        await wait_until(
            lambda: sum(seen.counted("finished", result=one) for one in ("done", "dead-letter")) == 6,
            LIMIT_SECONDS,
            "all are finished",
        )

    assert [3, 3, 0] == [seen.counted("finished", result=one) for one in ("done", "dead-letter", "duplicate")]
    assert [3, 1, 3, 2, 0] == [
        seen.counted("attempts", outcome=one) for one in ("done", "retry", "error", "timeout", "interrupted")
    ]
    assert [1, 1, 1] == [seen.value("subscriber_dead_letters_total", reason=one) for one in ("failed", "rejected", "timed-out")]
    assert 6 == seen.value("subscriber_wait_seconds_count")
    assert (6, 9) == (seen.value("subscriber_attempts_per_event_count"), seen.value("subscriber_attempts_per_event_sum"))


@pytest.mark.parametrize("ordered", [None, "key"], ids=["unordered", "ordered"])
async def test_oldest_waiting_age_grows_while_nothing_else_moves(shop: Shop, seen: ShipMetrics, ordered: str | None) -> None:
    may_end = threading.Event()

    def ship(event: Received[Paid]) -> None:
        may_end.wait(LIMIT_SECONDS)

    def oldest() -> float:
        return seen.value("subscriber_oldest_waiting_seconds")

    await shop.send("o1-1", "o1-2", "o1-3")
    async with shop.member(ship, concurrency=1, ordered=ordered, metrics=seen.metrics):
        await seen.until("subscriber_running_events", 1)
        await seen.until("subscriber_waiting_events", 2)
        first = oldest()
        await wait_until(lambda: oldest() > first > 0, LIMIT_SECONDS, "the oldest grows older")
        may_end.set()
        for gauge in ("waiting_events", "running_events", "oldest_waiting_seconds"):
            await seen.until(f"subscriber_{gauge}", 0)


async def test_failed_event_waits_for_its_next_attempt_and_an_outage_is_reported(shop: Shop, seen: ShipMetrics) -> None:
    outage = threading.Event()

    async def ship(event: Received[Paid]) -> None:
        if not outage.is_set():
            raise ConnectionError("the carrier is away")

    await shop.send(*[f"o{number}" for number in range(30)])
    async with shop.member(ship, metrics=seen.metrics):
        await seen.until("subscriber_suspended", 1)
        await wait_until(lambda: seen.value("subscriber_retrying_events") > 0, LIMIT_SECONDS, "events wait for an attempt")
        outage.set()
        await seen.until("subscriber_suspended", 0)
        await seen.until("subscriber_finished_total", 30, event="order.paid", result="done")
        await seen.until("subscriber_retrying_events", 0)


@pytest.mark.parametrize(("bound", "most"), [("MAX_UNFINISHED", 3), ("MAX_UNFINISHED_BYTES", 1)])
async def test_paused_reader_is_reported_until_it_resumes(
    shop: Shop, seen: ShipMetrics, monkeypatch: pytest.MonkeyPatch, bound: str, most: int
) -> None:
    may_end = threading.Event()
    monkeypatch.setattr(f"streams_app.subscribers.running.processor.{bound}", most)

    def ship(event: Received[Paid]) -> None:
        may_end.wait(LIMIT_SECONDS)

    await shop.send("o1", "o2", "o3")
    status = Status()
    async with shop.member(ship, concurrency=1, metrics=seen.metrics, status=status) as agent:
        await seen.until("waiting_for", 1, what="window")
        assert [
            f"subscriber ship reads no more of {shop.topic}-0 (3 unfinished events) until some are finished"
        ] == status.remarks()
        # A paused reader does not count as stuck.
        assert {} == agent.ownership.progress({}, 0)
        may_end.set()
        await seen.until("waiting_for", 0, what="window")
        assert [] == status.remarks()
        assert {} != agent.ownership.progress({}, 0)


async def test_process_exits_for_a_restart_if_all_slots_hang(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("streams_app.subscribers.execution.executor.HUNG_MS", 100)
    may_end = threading.Event()
    fatal: list[BaseException] = []

    def ship(event: Received[Paid]) -> None:
        may_end.wait(LIMIT_SECONDS)

    await shop.send("o1", "o2")
    async with shop.member(ship, concurrency=2, timeout="100ms", on_fatal=fatal.append):
        await wait_until(lambda: fatal, LIMIT_SECONDS, "the process is to end")
        may_end.set()

    assert [75] == [error.exit_code for error in fatal if isinstance(error, TryAgainError)]


async def test_loop_lag_of_a_blocking_function_is_visible_for_a_minute(shop: Shop, seen: ShipMetrics) -> None:
    may_end = threading.Event()

    async def ship(event: Received[Paid]) -> None:
        may_end.wait(LIMIT_SECONDS)

    def lag() -> float:
        return seen.value("subscriber_loop_lag_seconds")

    await shop.send("o1")
    async with shop.member(ship, metrics=seen.metrics):
        await wait_until(lambda: lag() > 0.3, LIMIT_SECONDS, "the lag is reported while it lasts")
        may_end.set()
        await seen.until("subscriber_finished_total", 1, event="order.paid", result="done")

        assert lag() > 0.3


async def test_missing_dead_letter_topic_is_named_and_no_broker_outage_is_reported(shop: Shop, seen: ShipMetrics) -> None:
    status = Status()

    async def ship(event: Received[Paid]) -> None:
        raise Reject("nobody lives there")

    dead = f"{shop.topic}.dead"
    await delete_topic(shop.bootstrap, dead)
    await shop.send("o1")
    async with shop.member(ship, metrics=seen.metrics, status=status):
        await seen.until("waiting_for", 1, what="dead-letters")
        words = f"subscriber ship: its dead-letter topic {dead!r} does not exist: create it with `streams-app topics create`"
        await wait_until(lambda: [words] == status.remarks(), LIMIT_SECONDS, "the topic is named")

        assert 0 == seen.value("waiting_for", what="broker")
        await create_topics(shop.bootstrap, [dead], PARTITIONS)
        await seen.until("waiting_for", 0, what="dead-letters")
        await wait_until(lambda: [] == status.remarks(), LIMIT_SECONDS, "nothing is wrong any more")


@contextmanager
def full(url: str) -> Iterator[None]:
    """Fill Redis for the ``with`` block."""
    client: redis.Redis = redis.Redis.from_url(url)
    info: dict[str, int] = client.info("memory")
    client.config_set("maxmemory", info["used_memory"] // 2)
    try:
        yield
    finally:
        client.config_set("maxmemory", 0)
        client.close()


async def test_full_redis_is_reported_while_events_are_handled(shop: Shop, seen: ShipMetrics, valkey: Valkey) -> None:
    shop = replace(shop, redis_url=valkey.url)

    may_end = asyncio.Event()

    async def ship(event: Received[Paid]) -> None:
        # Redis learns of long calls only: calls that end before their write are not reported to it, and not rejected either.
        await may_end.wait()

    status, words = Status(), "subscriber ship: Redis is full: events continue, and attempts are counted in this worker only"
    async with shop.member(ship, metrics=seen.metrics, status=status, rate="100/s"):
        with full(shop.redis_url):
            await shop.send("o1")
            await seen.until("waiting_for", 1, what="redis-memory")
            await wait_until(lambda: [words] == status.remarks(), LIMIT_SECONDS, "it logs that it continues")
            may_end.set()
            await seen.until("subscriber_finished_total", 1, event="order.paid", result="done")
        await seen.until("waiting_for", 0, what="redis-memory")
