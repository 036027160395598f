"""An at-least-once subscriber: each event is called until it is done, or is dead-lettered."""

from __future__ import annotations

import asyncio
import sys
import threading
from typing import Any

import pytest

from streams_app.health.metrics import Metrics
from streams_app.subscribers.declaration.received import Received, Reject, Retry
from streams_app.subscribers.declaration.retries import Retries
from tests.conftest import KafkaServer, Names, RedisServer
from tests.helpers.kafka.topics import produce
from tests.helpers.subscribers.subscribing import LIMIT_SECONDS, PARTITIONS, Paid, Shop
from tests.helpers.waiting import wait_until

pytestmark = pytest.mark.timeout(200)

SOON = Retries(attempts=3, first="20ms", factor=1, longest="20ms")
ORDERS = [f"o{number}" for number in range(40)]

KILLED = """
import asyncio, os, sys
import redis.asyncio
from streams_app.subscribers.state.keys import SubscriberKeys
from tests.helpers.subscribers.subscribing import member_of, settings_of

app_id, bootstrap, topic, redis_url, ledger_path, offset = sys.argv[1:]
known = SubscriberKeys(app_id, "ship", topic, 0).state[1]

async def ship(event):
    with open(ledger_path, "a") as ledger:
        ledger.write(event.data.order_id + "\\n")
    if event.data.order_id == "poison":
        async with redis.asyncio.Redis.from_url(redis_url) as client:
            while offset and event.attempt == 1 and not await client.hexists(known, offset):
                await asyncio.sleep(0.02)
        os.kill(os.getpid(), 9)

async def main():
    async with member_of(settings_of(app_id, bootstrap, topic), topic, redis_url, ship):
        await asyncio.Event().wait()

asyncio.run(main())
"""


@pytest.fixture
async def shop(kafka: KafkaServer, redis_server: RedisServer, names: Names) -> Shop:
    made = Shop(names, kafka.bootstrap_servers, redis_server.url)
    await made.open()
    return made


@pytest.mark.parametrize("is_async", [True, False], ids=["async", "in a thread"])
async def test_each_event_is_handled_and_committed(shop: Shop, is_async: bool) -> None:
    async def ship(event: Received[Paid]) -> None:
        shop.called(event)

    def post(event: Received[Paid]) -> None:
        shop.called(event)

    await shop.send(*ORDERS[:30])
    await shop.send(*ORDERS[30:], partition=1)
    async with shop.member(ship if is_async else post):
        await shop.until_called(*ORDERS)

    assert {order: [1] for order in ORDERS} == shop.calls
    assert len(ORDERS) == await shop.committed("ship" if is_async else "post")


async def test_functions_run_on_threads_of_their_own(shop: Shop) -> None:
    threads: dict[str, str] = {}

    async def ship(event: Received[Paid]) -> None:
        threads["async"] = threading.current_thread().name

    def post(event: Received[Paid]) -> None:
        threads["sync"] = threading.current_thread().name.rstrip("0123456789")

    await shop.send("o1")
    async with shop.member(ship), shop.member(post):
        await wait_until(lambda: len(threads) == 2, LIMIT_SECONDS, "both were called")

    assert {"async": "users-loop", "sync": "slot-"} == threads


async def test_failing_event_is_retried_while_others_continue(shop: Shop) -> None:
    async def ship(event: Received[Paid]) -> None:
        shop.called(event)
        if event.data.order_id == "o0" and (event.attempt < 3 or len(shop.calls) < len(ORDERS)):
            raise ConnectionError("the carrier is away")

    await shop.send(*ORDERS)
    async with shop.member(ship, retry=Retries(attempts=200, first="20ms", factor=1, longest="20ms")):
        await shop.until_called(*ORDERS)
        await wait_until(lambda: len(shop.calls["o0"]) >= 3, LIMIT_SECONDS, "it was tried again")

    assert {order: [1] for order in ORDERS[1:]} == {order: shop.calls[order] for order in ORDERS[1:]}
    assert list(range(1, len(shop.calls["o0"]) + 1)) == shop.calls["o0"]


async def test_event_that_always_fails_is_a_dead_letter_after_its_attempts(shop: Shop) -> None:
    async def ship(event: Received[Paid]) -> None:
        shop.called(event)
        if event.data.order_id == "poison":
            raise ValueError("no such article")

    await shop.send("o1", "poison", "o2")
    async with shop.member(ship, retry=SOON):
        (dead_letter,) = await shop.dead_letters(1)
        await shop.until_called("o1", "o2")

    assert {"o1": [1], "o2": [1], "poison": [1, 2, 3]} == shop.calls
    assert 3 == await shop.committed("ship")
    assert ("failed", "ship", "poison", "3", "ValueError", "ValueError: no such article", "1") == tuple(
        dead_letter[name] for name in ("reason", "subscriber", "order", "attempts", "exception", "detail", "source-offset")
    )
    assert f"ship:{shop.topic}:0:1:3" == dead_letter["letter-id"]
    assert dead_letter["trace"].rstrip().endswith("ValueError: no such article")
    assert int(dead_letter["first-failed-at-ms"]) <= int(dead_letter["failed-at-ms"])


async def test_outcome_of_the_function_determines_the_dead_letter(shop: Shop) -> None:
    async def ship(event: Received[Paid]) -> None:
        match event.data.order_id:
            case "hangs":
                await asyncio.Event().wait()
            case "rejects":
                raise Reject("nobody lives there")
            case "never":
                raise KeyError("o1")
            case "waits":
                raise Retry(after="10ms")
            case "exits":
                raise SystemExit(3)
            case "is cancelled":
                raise asyncio.CancelledError

    expected = {
        "hangs": ("timed-out", "2"), "rejects": ("rejected", "1"), "never": ("failed", "1"), "waits": ("failed", "2"),
        "exits": ("failed", "2"), "is cancelled": ("failed", "2"),
    }  # fmt: skip
    await shop.send(*expected)
    async with shop.member(ship, timeout="200ms", retry=Retries(attempts=2, first="20ms", longest="20ms", never=(KeyError,))):
        dead_letters = await shop.dead_letters(len(expected))

    assert expected == {dead_letter["order"]: (dead_letter["reason"], dead_letter["attempts"]) for dead_letter in dead_letters}


async def test_hanging_function_in_a_thread_does_not_delay_other_events(shop: Shop) -> None:
    is_over = threading.Event()

    def ship(event: Received[Paid]) -> None:
        shop.called(event)
        if event.data.order_id == "o0":
            is_over.wait(LIMIT_SECONDS)

    await shop.send(*ORDERS[:10])
    try:
        async with shop.member(ship, timeout="200ms", concurrency=2, retry=Retries(attempts=1)):
            dead_letters = await shop.dead_letters(1)
            await shop.until_called(*ORDERS[:10])
    finally:
        is_over.set()

    # A machine that stands still may cause a timeout of another one, too.
    assert ("timed-out", "o0") in [(dead_letter["reason"], dead_letter["order"]) for dead_letter in dead_letters]


async def test_invalid_event_is_a_dead_letter_and_an_event_of_another_type_is_skipped(shop: Shop) -> None:
    async def ship(event: Received[Paid]) -> None:
        shop.called(event)

    await shop.send("other", headers=[("ce_type", b"order.sent")])
    await produce(shop.bootstrap, shop.topic, [(b"k", b'{"order_id": 5}')], partition=0)
    await shop.send("o1")
    async with shop.member(ship):
        (dead_letter,) = await shop.dead_letters(1)
        await shop.until_called("o1")

    assert {"o1": [1]} == shop.calls
    assert ("not-valid", "Expected `str`, got `int` - at `$.order_id`") == (dead_letter["reason"], dead_letter["detail"])
    assert 3 == await shop.committed("ship")


async def test_events_of_one_key_follow_each_other_even_through_retries(shop: Shop) -> None:
    begun: list[str] = []

    async def ship(event: Received[Paid]) -> None:
        begun.append(event.data.order_id)
        await asyncio.sleep(0)
        if event.data.order_id.endswith("-1") and event.attempt < 3:
            raise ConnectionError("the carrier is away")
        if event.data.order_id.endswith("-2"):
            raise Reject("nobody lives there")

    orders = [f"{key}-{number}" for number in range(4) for key in "abc"]
    await shop.send(*orders)
    async with shop.member(ship, ordered="key", retry=SOON):
        await wait_until(lambda: {"a-3", "b-3", "c-3"} <= set(begun), LIMIT_SECONDS, "the last of each key was called")

    for key in "abc":
        of_key = [order for order in begun if order.startswith(key)]
        assert [f"{key}-{number}" for number in (0, 1, 1, 1, 2, 3)] == of_key


async def test_next_member_resumes_after_events_that_were_produced_together(shop: Shop) -> None:
    async def ship(event: Received[Paid]) -> None:
        shop.called(event)

    await shop.send(*ORDERS[:10])
    async with shop.member(ship):
        await shop.until_called(*ORDERS[:10])
    async with shop.member(ship) as next_one:
        await wait_until(lambda: len(next_one.ownership.partitions) == PARTITIONS, LIMIT_SECONDS, "all are claimed")
        await shop.send("o10")
        await shop.until_called("o10")

    assert {order: [1] for order in ORDERS[:11]} == shop.calls


@pytest.mark.long
async def test_two_members_share_the_partitions_and_the_remaining_one_takes_over(shop: Shop) -> None:
    async def ship(event: Received[Paid]) -> None:
        shop.called(event)

    async with shop.member(ship) as first:
        await wait_until(lambda: len(first.ownership.partitions) == PARTITIONS, LIMIT_SECONDS, "the first has all")
        async with shop.member(ship) as other:
            members = (first, other)
            await wait_until(lambda: [len(one.ownership.partitions) for one in members] == [1, 1], LIMIT_SECONDS, "each has one")
            await shop.send(*ORDERS[:20])
            await shop.send(*ORDERS[20:30], partition=1)
            await shop.until_called(*ORDERS[:30])
        await shop.send(*ORDERS[30:])
        await shop.until_called(*ORDERS)

    assert {order: [1] for order in ORDERS} == shop.calls


@pytest.mark.long
@pytest.mark.parametrize(("before", "until_recorded"), [(1, True), (300, False)], ids=["Redis knows of it", "at once, far behind"])
async def test_event_that_kills_its_process_is_a_dead_letter_after_three_crashes(
    shop: Shop, tmp_path: Any, before: int, until_recorded: bool
) -> None:
    ledger = tmp_path / "ledger"
    given = (shop.names.app_id, shop.bootstrap, shop.topic, shop.redis_url, str(ledger), str(before) if until_recorded else "")
    others = {f"o{number}" for number in range(before + 1)}
    await shop.send(*sorted(others)[:-1], "poison", *sorted(others)[-1:])
    for _ in range(3):
        process = await asyncio.create_subprocess_exec(sys.executable, "-c", KILLED, *given)
        async with asyncio.timeout(LIMIT_SECONDS):
            assert -9 == await process.wait()

    async def ship(event: Received[Paid]) -> None:
        shop.called(event)

    def crashes() -> float | None:
        labels = {"subscriber": "ship", "event": "order.paid", "outcome": "crash"}
        return metrics.registry.get_sample_value("streams_app_subscriber_attempts_total", labels)

    metrics = Metrics(shop.settings)
    async with shop.member(ship, metrics=metrics):
        (dead_letter,) = await shop.dead_letters(1)
        await wait_until(lambda: crashes() == 1, LIMIT_SECONDS, "the last of the deaths is counted by who finds it")
        await wait_until(lambda: others <= {*shop.calls, *ledger.read_text().split()}, LIMIT_SECONDS, "the others are done")

    assert ("crashed", "poison") == (dead_letter["reason"], dead_letter["order"])
    assert 3 == ledger.read_text().split().count("poison")
    assert "poison" not in shop.calls
