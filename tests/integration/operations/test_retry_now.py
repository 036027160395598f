"""``streams-app events retry``: what waits for a retry is retried now, beside running workers."""

from __future__ import annotations

import asyncio

import pytest
from redis.asyncio import Redis

from streams_app.clock import SystemClock
from streams_app.errors import TryAgainError
from streams_app.operations import retry_now as operation
from streams_app.operations.retry_now import RetryResult, retry_now, waiting_events
from streams_app.settings import RedisSettings, Settings
from streams_app.subscribers.declaration.received import Received
from streams_app.subscribers.declaration.retries import Retries
from streams_app.subscribers.declaration.subscriber import subscriber
from streams_app.subscribers.declaration.subscription import Subscription
from streams_app.subscribers.running.agent import RetryPolling
from streams_app.subscribers.state.retry_requests import RetryRequests
from tests.conftest import KafkaServer, Names, RedisServer
from tests.helpers.subscribers.subscribing import LIMIT_SECONDS, Paid, Shop, order_paid
from tests.helpers.waiting import wait_until

LATE = Retries(attempts=4, first="15m", factor=1, longest="15m")
ORDERS = [f"o{number}" for number in range(25)]


@pytest.fixture
async def shop(kafka: KafkaServer, redis_server: RedisServer, names: Names) -> Shop:
    made = Shop(names, kafka.bootstrap_servers, redis_server.url)
    await made.open()
    return made


def declared(shop: Shop) -> tuple[Settings, Subscription]:
    """Return settings, and a subscriber ``ship`` as a command knows it."""

    async def ship(event: Received[Paid]) -> None:
        pass

    one = subscriber(order_paid, idempotent="yes", description="Under test.")(ship)
    settings = shop.settings.model_copy(update={"redis": RedisSettings(url=shop.redis_url)})
    return settings, Subscription(one, shop.topic, f"{shop.names.app_id}.ship", f"{shop.topic}.dead")


async def test_events_that_wait_for_minutes_and_an_open_circuit_breaker_are_retried_now(shop: Shop) -> None:
    outage = {"is over": False}
    settings, one = declared(shop)

    async def ship(event: Received[Paid]) -> None:
        shop.called(event)
        if not outage["is over"]:
            raise ConnectionError("the carrier is away")

    async def wait() -> bool:
        return (await waiting_events(settings, one, SystemClock())).events >= 20

    await shop.send(*ORDERS)
    async with shop.member(ship, retry=LATE):
        await wait_until(wait, LIMIT_SECONDS, "events wait")
        planned = (await waiting_events(settings, one, SystemClock())).lines(SystemClock().now_ms())
        outage["is over"] = True
        done = await retry_now(settings, one, SystemClock())
        await wait_until(lambda: _committed(shop), LIMIT_SECONDS, "all have ended")
        left = await waiting_events(settings, one, SystemClock())

    assert "of subscriber ship would be retried now, the first due in" in planned[0]
    assert (1, True) == (done.workers, done.events >= 20)
    assert (0, "no event of subscriber ship waits for a later retry") == (left.events, left.lines(0)[0])


async def _committed(shop: Shop) -> bool:
    return await shop.committed("ship") == len(ORDERS)


async def test_request_is_carried_out_once_by_each_worker_with_waiting_events(shop: Shop, redis_client: Redis) -> None:
    settings, one = declared(shop)
    requests = RetryRequests(redis_client, settings.app_id, "ship")
    retried: list[str] = []

    def worker(name: str, *, has_waiting: bool = True) -> RetryPolling:
        return RetryPolling(requests, lambda: retried.append(name) or 2, lambda: has_waiting)  # type: ignore[func-returns-value]

    workers = [worker("a"), worker("b"), worker("idle", has_waiting=False)]

    async def pass_() -> None:
        for one in workers:
            await one.once()

    await pass_()
    await requests.write(1)
    for _ in range(2):
        await pass_()
    first = await requests.answers(1)
    await requests.write(2)
    before, stale = await requests.answers(2), await requests.answers(1)
    await pass_()

    assert (["a", "b"] * 2, [2, 2]) == (retried, first)
    assert ([], [], [2, 2]) == (before, stale, await requests.answers(2))
    assert 0 < await redis_client.pttl(f"{{{settings.app_id}/ship}}:v1:retry") <= 10_000
    workers[0].start()
    done = await retry_now(settings, one, SystemClock())
    workers[0].stop()

    assert RetryResult(2, 1) == done


async def test_request_that_no_worker_answers_is_said_and_expires(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(operation, "VALID_MS", 300)
    settings, one = declared(shop)

    with pytest.raises(TryAgainError, match="no worker has retried an event of ship"):
        await retry_now(settings, one, SystemClock())


async def test_request_without_redis_asks_to_try_later(shop: Shop) -> None:
    settings, one = declared(shop)
    away = settings.model_copy(update={"redis": RedisSettings(url="redis://127.0.0.1:1/0")})

    for asked in (retry_now(away, one, SystemClock()), waiting_events(away, one, SystemClock())):
        with pytest.raises(TryAgainError):
            await asyncio.wait_for(asked, LIMIT_SECONDS)
