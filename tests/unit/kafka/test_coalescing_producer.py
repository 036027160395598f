"""Records sent one by one are batched with others for the same partition, and each has an outcome of its own."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import cast

import pytest
from aiokafka.errors import KafkaTimeoutError, MessageSizeTooLargeError, ProducerClosed

from streams_app.delivery.batch import TP
from streams_app.delivery.producer import Outcomes, OutgoingRecord
from streams_app.kafka.coalescing_producer import CoalescingProducer
from streams_app.kafka.producer import AckedProducer
from tests.helpers.waiting import turns_of_loop, wait_until

LIMIT_SECONDS = 20
LARGE = MessageSizeTooLargeError()


class StubSender:
    """Accepts requests for known partitions, and answers when the test says so."""

    def __init__(self) -> None:
        self.requests: list[list[bytes | None]] = []
        self.silent: set[int] = set()
        self.answers = asyncio.Event()
        self.raises: Exception | None = None

    def next_partition(self, record: OutgoingRecord) -> TP | None:
        return TP(record.topic, int(record.key or b"0"))

    async def send(self, records: Sequence[OutgoingRecord]) -> Outcomes:
        self.requests.append([record.value for record in records])
        if {record.partition for record in records} & self.silent:
            await asyncio.Event().wait()
        await self.answers.wait()
        if self.raises is not None:
            raise self.raises
        return [LARGE if record.value == b"large" else None for record in records]

    async def stop(self) -> None:
        """Do nothing: nothing is open."""


def coalescing(sends: StubSender, seconds: float = LIMIT_SECONDS) -> CoalescingProducer:
    return CoalescingProducer(cast("AckedProducer", sends), seconds)


def sent(producer: CoalescingProducer, value: bytes, partition: int = 0) -> asyncio.Task[Outcomes]:
    return asyncio.create_task(producer.send([OutgoingRecord("t", b"%d" % partition, value)]))


async def requested(sends: StubSender) -> None:
    await wait_until(lambda: sends.requests, LIMIT_SECONDS, "the first request is in flight")


async def queued() -> None:
    """Return when the records sent before are queued behind the request in flight."""
    await turns_of_loop(10)


async def test_records_that_arrive_during_a_request_are_sent_together_in_the_next_one() -> None:
    sends = StubSender()
    producer = coalescing(sends)
    first = sent(producer, b"a")
    await requested(sends)
    others = [sent(producer, value) for value in (b"b", b"large", b"c")]
    await queued()
    before = list(sends.requests)
    sends.answers.set()
    outcomes = [await asyncio.wait_for(one, LIMIT_SECONDS) for one in (first, *others)]

    assert [[b"a"]] == before
    assert [[b"a"], [b"b", b"large", b"c"]] == sends.requests
    assert [[None], [None], [LARGE], [None]] == outcomes


async def test_unresponsive_partition_does_not_block_others() -> None:
    sends = StubSender()
    sends.silent, producer = {1}, coalescing(sends)
    sends.answers.set()
    silent = sent(producer, b"a", partition=1)
    outcome = await asyncio.wait_for(sent(producer, b"b", partition=2), LIMIT_SECONDS)
    await producer.stop()

    assert ([None], [ProducerClosed]) == (outcome, [type(one) for one in await silent])


async def test_record_waiting_behind_another_has_its_outcome_in_time() -> None:
    sends = StubSender()
    sends.silent, producer = {0}, coalescing(sends, 0.05)
    outcomes = await asyncio.gather(sent(producer, b"a"), sent(producer, b"b"))
    await producer.stop()

    assert [[KafkaTimeoutError], [KafkaTimeoutError]] == [[type(one) for one in each] for each in outcomes]


async def test_abandoned_record_is_not_sent() -> None:
    sends = StubSender()
    producer = coalescing(sends)
    first = sent(producer, b"a")
    await requested(sends)
    cancelled, other = sent(producer, b"b"), sent(producer, b"c")
    await queued()
    cancelled.cancel()
    sends.answers.set()
    await asyncio.wait_for(asyncio.gather(first, other), LIMIT_SECONDS)

    assert [[b"a"], [b"c"]] == sends.requests


async def test_unexpected_error_is_raised_to_every_caller() -> None:
    sends = StubSender()
    sends.raises, producer = ValueError("a defect"), coalescing(sends)
    sends.answers.set()
    outcomes = await asyncio.gather(sent(producer, b"a"), sent(producer, b"b"))

    assert [[sends.raises], [sends.raises]] == list(outcomes)


@pytest.mark.parametrize("is_first", [True, False])
async def test_waiting_records_fail_when_the_producer_stops(is_first: bool) -> None:
    sends = StubSender()
    producer = coalescing(sends)
    first = sent(producer, b"a")
    await requested(sends)
    waiting = first if is_first else sent(producer, b"b")
    await queued()
    await producer.stop()
    outcome = await asyncio.wait_for(waiting, LIMIT_SECONDS)
    await asyncio.wait_for(first, LIMIT_SECONDS)

    assert [ProducerClosed] == [type(one) for one in outcome]


async def test_records_added_just_before_a_stop_fail_at_once() -> None:
    sends = StubSender()
    producer = coalescing(sends, 1)
    last = sent(producer, b"a")
    await asyncio.sleep(0)  # it waits, and nothing was sent yet
    await producer.stop()

    assert ([ProducerClosed], []) == ([type(one) for one in await last], sends.requests)
