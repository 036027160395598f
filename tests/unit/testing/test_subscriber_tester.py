"""The test kit of subscribers does what a worker does, in virtual time."""

from __future__ import annotations

import asyncio
import hashlib
import socket
import threading
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from typing import Any, cast

from streams_app import Received, Reject, Retries, Retry, subscriber
from streams_app.subscribers.declaration.subscriber import Subscriber
from streams_app.testing import SubscriberTester
from tests.helpers.subscribers.kit import Paid, Sent, paid, seen_by, sent, subscribed


def test_function_that_requests_a_retry_is_called_when_it_is_due() -> None:
    async def ship(event: Received[Paid]) -> None:
        if event.attempt == 1:
            raise Retry(after="30s")
        await event.publish(sent, Sent(event.data.order_id))

    one = subscribed(ship)
    with SubscriberTester(one) as kit:
        event_id = kit.publish(paid, Paid("o1", 500), context={"userid": "u7"})
        kit.advance("29s")
        assert [(1, "retry")] == seen_by(kit, one)
        kit.advance("2s")

        assert [(1, "retry"), (2, "done")] == seen_by(kit, one)
        (parcel,) = kit.published(sent)
        assert (Sent("o1"), "o1", event_id, "u7") == (parcel.data, parcel.key, parcel.causation_id, parcel.context["userid"])


def test_sync_function_runs_inline_and_publishes() -> None:
    def ship(event: Received[Paid]) -> None:
        event.publish_sync(sent, Sent(event.data.order_id))

    one = subscribed(ship)
    with SubscriberTester(one) as kit:
        kit.publish(paid, Paid("o1"))

        assert [(1, "done")] == seen_by(kit, one)
        assert [Sent("o1")] == [parcel.data for parcel in kit.published(sent)]


def test_functions_that_erase_a_key_are_called_with_it() -> None:
    calls: list[str] = []

    async def erase(key: str) -> None:
        await asyncio.sleep(1)
        calls.append(f"async {key}")

    def erase_in_thread(key: str) -> None:
        asyncio.run(asyncio.sleep(0))
        calls.append(f"sync {key}")

    def declared(name: str, forget: Callable[[str], Awaitable[None] | None] | None) -> Subscriber[Paid, Any, Any]:
        def handle(event: Received[Paid]) -> None: ...

        handle.__name__ = name
        return subscriber(paid, idempotent="yes", description="Under test.", forget=forget)(handle)

    with SubscriberTester(declared("one", erase), declared("two", erase_in_thread), declared("three", None)) as kit:
        called = kit.forget("anna")

    assert (["one", "two"], ["async anna", "sync anna"]) == (called, calls)


def test_sync_function_finds_no_running_loop_as_in_a_thread() -> None:
    def ship(event: Received[Paid]) -> None:
        asyncio.run(asyncio.sleep(0))
        event.publish_sync(sent, Sent(event.data.order_id))

    one = subscribed(ship)
    with SubscriberTester(one) as kit:
        kit.publish(paid, Paid("o1"))

        assert [(1, "done")] == seen_by(kit, one)


def test_async_function_that_would_wait_for_its_own_loop_is_rejected_as_in_a_worker() -> None:
    async def ship(event: Received[Paid]) -> None:
        event.publish_sync(sent, Sent(event.data.order_id))

    one = subscribed(ship, retry=Retries(attempts=1))
    with SubscriberTester(one) as kit:
        kit.publish(paid, Paid("o1"))
        (dead_letter,) = kit.dead_letters(one)

        assert "await the function without _sync" in dead_letter.detail
        assert [] == kit.published(sent)


def test_published_event_reaches_other_subscribers() -> None:
    async def ship(event: Received[Paid]) -> None:
        await event.publish(sent, Sent(event.data.order_id))

    received = []
    one, other = subscribed(ship), subscribed(lambda event: received.append(event.data.order_id), sent, name="tell")
    with SubscriberTester(one, other) as kit:
        kit.publish(paid, Paid("o1"))

    assert ["o1"] == received


def test_clock_starts_at_the_given_time_and_waits_take_no_real_time() -> None:
    times = []

    async def ship(event: Received[Paid]) -> None:
        times.append(event.timestamp)
        await asyncio.sleep(20)  # virtual time

    one = subscribed(ship)
    with SubscriberTester(one, clock="2026-01-01") as kit:
        kit.advance("1h")
        kit.publish(paid, Paid("o1"))
        assert [(1, "running")] == seen_by(kit, one)
        kit.advance("20s")

        assert [(1, "done")] == seen_by(kit, one)
        assert ([datetime(2026, 1, 1, 1, tzinfo=UTC)], datetime(2026, 1, 1, 1, 0, 20, tzinfo=UTC)) == (times, kit.now)


def test_hanging_function_is_timed_out() -> None:
    async def ship(event: Received[Paid]) -> None:
        await asyncio.Event().wait()

    one = subscribed(ship, timeout="5s", retry=Retries(attempts=2, first="1s"))
    with SubscriberTester(one) as kit:
        kit.publish(paid, Paid("o1"))
        kit.advance("1m")

        assert [(1, "timeout"), (2, "timeout")] == seen_by(kit, one)
        assert ["timed-out"] == [dead_letter.reason for dead_letter in kit.dead_letters(one)]


def test_busy_function_is_timed_out_too() -> None:
    async def ship(event: Received[Paid]) -> None:
        while True:
            await asyncio.sleep(0)

    one = subscribed(ship, timeout="1s", retry=Retries(attempts=1))
    with SubscriberTester(one) as kit:
        kit.publish(paid, Paid("o1"))

        assert [(1, "timeout")] == seen_by(kit, one)
        assert 1 == len(kit.dead_letters(one))


def test_thread_awaited_by_a_function_takes_no_virtual_time() -> None:
    threads: list[int] = []

    async def ship(event: Received[Paid]) -> None:
        await asyncio.to_thread(lambda: threads.append(sum(range(1_000_000))))

    one = subscribed(ship, timeout="1s")
    with SubscriberTester(one) as kit:
        kit.publish(paid, Paid("o1"))

        assert ([(1, "done")], 1) == (seen_by(kit, one), len(threads))


def test_connection_awaited_by_a_function_is_awaited() -> None:
    lines: list[bytes] = []

    def answer() -> None:
        connection, _ = listening.accept()
        with connection:
            received = connection.recv(100)
            # It takes a while, and does not block the loop.
            hashlib.pbkdf2_hmac("sha256", received, b"salt", 300_000)
            connection.sendall(received)

    async def ship(event: Received[Paid]) -> None:
        reader, writer = await asyncio.open_connection(*listening.getsockname())
        writer.write(b"hello\n")
        lines.append(await reader.readline())
        writer.close()

    one = subscribed(ship, retry=Retries(attempts=1), timeout="5m")
    with socket.create_server(("127.0.0.1", 0)) as listening, SubscriberTester(one) as kit:
        thread = threading.Thread(target=answer)
        thread.start()
        kit.publish(paid, Paid("o1"))
        kit.advance("4m")
        thread.join()

        assert ([(1, "done")], [b"hello\n"]) == (seen_by(kit, one), lines)


def test_events_of_a_key_follow_each_other() -> None:
    done = []

    async def ship(event: Received[Paid]) -> None:
        await asyncio.sleep(10 if event.data.cents == 1 else 0)  # virtual time
        done.append((event.data.order_id, event.data.cents))

    with SubscriberTester(subscribed(ship, ordered="key")) as kit:
        for order, cents in (("o1", 1), ("o1", 2), ("o2", 2)):
            kit.publish(paid, Paid(order, cents))
        kit.advance("1m")

    assert [("o2", 2), ("o1", 1), ("o1", 2)] == done


def test_deadline_of_an_event_waiting_for_a_slot_counts_from_its_start() -> None:
    deadlines: list[datetime | None] = []

    async def ship(event: Received[Paid]) -> None:
        deadlines.append(event.deadline)
        await asyncio.sleep(10)  # virtual time

    shipping = subscribed(ship, concurrency=1, timeout="20s")
    with SubscriberTester(shipping, clock="2026-01-01") as kit:
        for order in ("o1", "o2", "o3"):
            kit.publish(paid, Paid(order))
        kit.advance("1m")

    assert [datetime(2026, 1, 1, 0, 0, second, tzinfo=UTC) for second in (20, 30, 40)] == deadlines


def test_dead_letter_of_an_event_with_an_empty_header_can_be_inspected() -> None:
    async def ship(event: Received[Paid]) -> None:
        raise Reject("no")

    one = subscribed(ship)
    with SubscriberTester(one) as kit:
        kit.produce(paid, b'{"order_id": "o1"}', headers=[("trace", cast("bytes", None))])

        assert ["rejected"] == [dead_letter.reason for dead_letter in kit.dead_letters(one)]
