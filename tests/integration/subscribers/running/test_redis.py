"""State of an at-least-once subscriber in Redis and in its commits: if missing, after a wipe, and shared by two members."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Sequence

import pytest
import redis.asyncio

from streams_app.clock import SystemClock
from streams_app.subscribers.declaration.received import Received
from streams_app.subscribers.declaration.retries import Retries
from streams_app.subscribers.state.keys import SubscriberKeys
from tests.conftest import KafkaServer, Names, RedisServer
from tests.helpers.subscribers.subscribing import LIMIT_SECONDS, PARTITIONS, Paid, Shop
from tests.helpers.waiting import wait_until

pytestmark = pytest.mark.timeout(200)

SOON = Retries(attempts=3, first="20ms", factor=1, longest="20ms")
ORDERS = [f"o{number}" for number in range(40)]


@pytest.fixture
async def shop(kafka: KafkaServer, redis_server: RedisServer, names: Names) -> Shop:
    made = Shop(names, kafka.bootstrap_servers, redis_server.url)
    await made.open()
    return made


async def test_at_least_once_events_are_handled_without_redis(shop: Shop) -> None:
    async def ship(event: Received[Paid]) -> None:
        shop.called(event)
        if event.attempt < 2:
            raise ConnectionError("the carrier is away")

    shop.redis_url = "redis://127.0.0.1:1/0"
    await shop.send("o1", "o2")
    async with shop.member(ship, retry=SOON):
        await wait_until(lambda: dict(shop.calls) == {"o1": [1, 2], "o2": [1, 2]}, LIMIT_SECONDS, "both are tried again")

    assert 2 == await shop.committed("ship")


async def test_wiped_redis_learns_which_attempts_are_running(shop: Shop, redis_client: redis.asyncio.Redis) -> None:
    may_end = threading.Event()

    def ship(event: Received[Paid]) -> None:
        shop.called(event)
        may_end.wait(LIMIT_SECONDS)

    keys = SubscriberKeys(shop.names.app_id, "ship", shop.topic, 0).state

    async def recorded_attempts() -> Sequence[object]:
        # The claim itself is stored beside the events, with offset -1.
        return sorted(set(await redis_client.hkeys(keys[1])) - {b"-1"}, key=bytes)  # type: ignore[arg-type]  # it answers in bytes

    await shop.send("o1", "o2")
    try:
        async with shop.member(ship):
            await wait_until(recorded_attempts, LIMIT_SECONDS, "Redis knows what runs")
            await redis_client.delete(*keys)
            await shop.send("o3")
            await wait_until(lambda: _is(recorded_attempts, [b"0", b"1", b"2"]), LIMIT_SECONDS, "Redis knows again what runs")
            may_end.set()
            await wait_until(lambda: _is(recorded_attempts, []), LIMIT_SECONDS, "and that it has ended")
    finally:
        may_end.set()

    assert {"o1": [1], "o2": [1], "o3": [1]} == shop.calls


async def _is(found: Callable[[], Awaitable[object]], expected: object) -> bool:
    return await found() == expected


@pytest.mark.apache  # the embedded broker stores no metadata
async def test_events_finished_above_the_watermark_are_not_repeated(shop: Shop) -> None:
    may_end = asyncio.Event()

    async def ship(event: Received[Paid]) -> None:
        shop.called(event)
        if event.data.order_id == "o0" and not may_end.is_set():
            await asyncio.Event().wait()

    await shop.send(*ORDERS)
    async with shop.member(ship, timeout="1m", grace="200ms"):
        await shop.until_called(*ORDERS)
    may_end.set()
    async with shop.member(ship):
        await wait_until(lambda: len(shop.calls["o0"]) == 2, LIMIT_SECONDS, "the one that was cut off is called again")

    assert {"o0": [1, 1]} | {order: [1] for order in ORDERS[1:]} == shop.calls
    assert len(ORDERS) == await shop.committed("ship")


async def test_members_together_stay_within_the_rate(shop: Shop) -> None:
    clock = SystemClock()
    called_ms: list[int] = []

    async def ship(event: Received[Paid]) -> None:
        called_ms.append(clock.monotonic_ms())

    for partition in range(PARTITIONS):
        await shop.send(*(f"o{partition}-{number}" for number in range(50)), partition=partition)
    async with shop.member(ship, rate="20/s"), shop.member(ship, rate="20/s"):
        await wait_until(lambda: len(called_ms) >= 100, LIMIT_SECONDS, "all were called")

    # The tokens of the first second, those added since, and as many for the delay between a lease and its call.
    assert 100 <= 20 + 20 + 20 * (max(called_ms) - min(called_ms)) / 1_000
