"""A closed producer logs nothing about records that it had not sent."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from aiokafka import AIOKafkaProducer
from aiokafka.errors import ProducerClosed
from aiokafka.structs import TopicPartition

from streams_app.kafka.patches import producer_end
from streams_app.kafka.patches.producer_end import end


async def test_batch_that_waits_for_a_retry_fails_silently() -> None:
    producer = AIOKafkaProducer(bootstrap_servers="127.0.0.1:1")
    accumulator = producer._message_accumulator
    acknowledged: asyncio.Future[Any] = await accumulator.add_message(TopicPartition("t", 0), None, b"v", 1.0)
    accumulator.reenqueue(accumulator._pop_batch(TopicPartition("t", 0)))
    reported: list[str] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: reported.append(context["message"]))
    await end(producer)
    with pytest.raises(ProducerClosed):
        await acknowledged
    await asyncio.sleep(0)  # the callbacks of its failure are called

    assert [] == reported


async def test_sender_that_needs_a_second_cancellation_cancels_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(producer_end, "END_TIMEOUT_SECONDS", 0.01)
    producer = AIOKafkaProducer(bootstrap_servers="127.0.0.1:1")
    never = asyncio.Event()

    async def send() -> None:
        try:
            await never.wait()
        except asyncio.CancelledError:
            await never.wait()  # the answer to a request in flight

    sender = asyncio.create_task(send())
    producer._sender._sender_task = sender
    await asyncio.sleep(0)
    await end(producer)

    assert sender.cancelled()
