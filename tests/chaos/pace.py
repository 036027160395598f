"""A producer that outlasts the faults of a run, and a load at a steady rate."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable
from contextlib import asynccontextmanager
from typing import Any

from aiokafka import AIOKafkaProducer

STEP_SECONDS = 0.05
ACK_SECONDS = 90


@asynccontextmanager
async def producing(bootstrap: str, *, is_idempotent: bool = True) -> AsyncIterator[AIOKafkaProducer]:
    """Start a producer that sends an event again for a minute, and stop it at the end."""
    producer = AIOKafkaProducer(
        bootstrap_servers=bootstrap, acks="all", enable_idempotence=is_idempotent, linger_ms=5, request_timeout_ms=60_000,
        max_batch_size=65_536,
    )  # fmt: skip
    await producer.start()
    try:
        yield producer
    finally:
        await producer.stop()


async def paced(rate: float, send: Callable[[], Iterable[Coroutine[Any, Any, None]]], is_over: Callable[[], bool]) -> None:
    """Send at a rate until the run is over; return when everything is acknowledged or has failed."""
    acks: set[asyncio.Task[None]] = set()
    due = 0.0
    while not is_over():
        due += rate * STEP_SECONDS
        while due >= 1:
            due -= 1
            acks |= {asyncio.create_task(sending) for sending in send()}
        await asyncio.sleep(STEP_SECONDS)  # the rate of the load
    if acks:
        await asyncio.wait(acks, timeout=ACK_SECONDS)
