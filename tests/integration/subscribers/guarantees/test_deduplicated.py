"""A deduplicated subscriber: which events run, and which become dead letters."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest
import redis.asyncio

from streams_app.subscribers.declaration.received import Received, Reject, Retry
from streams_app.subscribers.declaration.retries import Retries
from streams_app.subscribers.state.keys import SubscriberKeys
from tests.conftest import KafkaServer, Names, RedisServer
from tests.helpers.subscribers.subscribing import LIMIT_SECONDS, Paid, Shop
from tests.helpers.waiting import wait_until

pytestmark = pytest.mark.timeout(200)

REMEMBER_MS = 3_600_000


@pytest.fixture
async def shop(kafka: KafkaServer, redis_server: RedisServer, names: Names) -> Shop:
    made = Shop(names, kafka.bootstrap_servers, redis_server.url)
    await made.open()
    return made


async def sent(shop: Shop, **ids: str) -> None:
    """Send one order for each, with the id of its event."""
    for order, event_id in ids.items():
        await shop.send(order, headers=[("ce_id", event_id.encode())])


async def test_event_published_twice_is_called_once(shop: Shop) -> None:
    async def ship(event: Received[Paid]) -> None:
        shop.called(event)

    await sent(shop, o1="e1", o2="e2", copy="e1", o3="e3")
    async with shop.member(ship, idempotent="unknown"):
        await shop.until_called("o1", "o2", "o3")

    assert {"o1": [1], "o2": [1], "o3": [1]} == shop.calls
    assert 4 == await shop.committed("ship")


@pytest.mark.parametrize("idempotent", ["yes", "unknown"])
async def test_sync_function_that_succeeds_after_its_timeout_makes_a_second_dead_letter(shop: Shop, idempotent: str) -> None:
    may_end = threading.Event()

    def ship(event: Received[Paid]) -> None:
        shop.called(event)
        may_end.wait(LIMIT_SECONDS)

    await shop.send("o1")
    async with shop.member(ship, idempotent=idempotent, timeout="300ms", retry=Retries(attempts=1)):
        await shop.dead_letters(1)
        may_end.set()
        dead_letters = await shop.dead_letters(2)

    assert [("timed-out", "o1"), ("finished-late", "o1")] == [
        (dead_letter["reason"], dead_letter["order"]) for dead_letter in dead_letters
    ]
    assert ({"o1": [1]}, 1) == (shop.calls, await shop.committed("ship"))


async def test_every_error_except_retry_makes_a_dead_letter_at_once(shop: Shop) -> None:
    async def ship(event: Received[Paid]) -> None:
        shop.called(event)
        match event.data.order_id:
            case "fails":
                raise ConnectionError("the carrier is away")
            case "hangs":
                await asyncio.Event().wait()
            case "rejects":
                raise Reject("nobody lives there")
            case "waits" if event.attempt < 3:
                raise Retry(after="10ms")
            case "always waits":
                raise Retry(after="10ms")

    expected = {
        "fails": ("failed", "1"), "hangs": ("timed-out", "1"), "rejects": ("rejected", "1"), "always waits": ("failed", "3"),
    }  # fmt: skip
    await shop.send(*expected, "waits")
    async with shop.member(ship, idempotent="unknown", timeout="300ms", retry=Retries(attempts=3)):
        dead_letters = await shop.dead_letters(len(expected))
        await wait_until(lambda: len(shop.calls["waits"]) == 3, LIMIT_SECONDS, "it was tried again")

    assert expected == {dead_letter["order"]: (dead_letter["reason"], dead_letter["attempts"]) for dead_letter in dead_letters}
    assert {"fails": [1], "hangs": [1], "rejects": [1], "always waits": [1, 2, 3], "waits": [1, 2, 3]} == shop.calls


async def test_event_does_not_start_while_redis_is_unavailable(shop: Shop, redis_server: RedisServer) -> None:
    def ship(event: Received[Paid]) -> None:
        shop.called(event)

    shop.redis_url = "redis://127.0.0.1:1/0"
    await shop.send("o1")
    async with shop.member(ship, idempotent="unknown", timeout="1s") as member:
        await wait_until(lambda: member.ownership.assignment, LIMIT_SECONDS, "its partitions are assigned")

        assert {} == dict(shop.calls)

    shop.redis_url = redis_server.url
    async with shop.member(ship, idempotent="unknown"):
        await shop.until_called("o1")

    assert {"o1": [1]} == shop.calls


async def test_wiped_redis_learns_the_ids_of_the_log_before_anything_starts(shop: Shop, redis_client: redis.asyncio.Redis) -> None:
    async def ship(event: Received[Paid]) -> None:
        shop.called(event)

    keys = SubscriberKeys(shop.names.app_id, "ship", shop.topic, 0)
    await sent(shop, o1="e1", o2="e2")
    async with shop.member(ship, idempotent="unknown"):
        await shop.until_called("o1", "o2")
    async for key in redis_client.scan_iter(match=f"{keys.state[0].removesuffix('meta')}*"):
        await redis_client.delete(key)
    await sent(shop, copy="e2", o3="e3")
    async with shop.member(ship, idempotent="unknown"):
        await shop.until_called("o3")

    assert {"o1": [1], "o2": [1], "o3": [1]} == shop.calls


async def test_skipped_events_advance_the_fence_in_redis(shop: Shop, redis_client: redis.asyncio.Redis) -> None:
    async def ship(event: Received[Paid]) -> None:
        shop.called(event)

    meta = SubscriberKeys(shop.names.app_id, "ship", shop.topic, 0).state[0]
    await shop.send("o1")
    await shop.send("other", "another", headers=[("ce_type", b"order.sent")])

    async def fence() -> bool:
        return await redis_client.hget(meta, "fence") == b"3"

    async with shop.member(ship, idempotent="unknown"):
        await wait_until(fence, LIMIT_SECONDS, "Redis knows how far it is")

    assert {"o1": [1]} == shop.calls


async def test_wiped_redis_is_reclaimed_after_running_attempts_have_ended(shop: Shop, redis_client: redis.asyncio.Redis) -> None:
    may_end = threading.Event()

    def ship(event: Received[Paid]) -> None:
        shop.called(event)
        may_end.wait(LIMIT_SECONDS)

    keys = SubscriberKeys(shop.names.app_id, "ship", shop.topic, 0).state
    await shop.send("o1")
    try:
        async with shop.member(ship, idempotent="unknown", timeout="1m"):
            await shop.until_called("o1")
            await redis_client.delete(*keys)
            await shop.send("o2")
            may_end.set()
            await shop.until_called("o2")
    finally:
        may_end.set()

    assert [1] == shop.calls["o2"]


async def test_event_interrupted_by_a_rebalance_is_a_dead_letter_and_is_not_repeated(shop: Shop) -> None:
    async def ship(event: Received[Paid]) -> None:
        shop.called(event)
        if event.data.order_id == "long":
            await asyncio.Event().wait()

    options: dict[str, Any] = {"idempotent": "unknown", "timeout": "5m"}
    await shop.send("long", "o1")
    async with shop.member(ship, **options, grace="200ms"):
        await shop.until_called("long", "o1")
    async with shop.member(ship, **options):
        (dead_letter,) = await shop.dead_letters(1)

    assert ("interrupted", "long", "1") == tuple(dead_letter[name] for name in ("reason", "order", "attempts"))
    assert {"long": [1], "o1": [1]} == shop.calls
    assert 2 == await shop.committed("ship")
