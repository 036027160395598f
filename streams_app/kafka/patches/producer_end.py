"""Ends an aiokafka producer that may have failed, within a time limit and without leaving tasks behind.

``AIOKafkaProducer.stop`` (0.14) waits until all records are acknowledged. If it is cancelled, the tasks and connections remain.
Once the connections are closed, a request in flight waits for metadata that is no longer fetched (``producer/sender.py``).
"""

from __future__ import annotations

import asyncio
import logging
from itertools import chain

from aiokafka import AIOKafkaProducer
from aiokafka.errors import KafkaError, ProducerClosed

logger = logging.getLogger(__name__)

END_TIMEOUT_SECONDS = 3.0
"""Timeout of each step: the answer to requests in flight, the end of the sender, and the end of the producer."""


async def end(producer: AIOKafkaProducer) -> None:
    """End a producer within a few seconds; pending sends fail with ``ProducerClosed``."""
    sending = producer._sender.sender_task
    if sending is not None:
        sending.cancel()
        await asyncio.wait({sending}, timeout=END_TIMEOUT_SECONDS)
        if not sending.done():
            producer.client._maybe_wait_metadata = _at_once
            await producer.client.close()
            await asyncio.wait({sending}, timeout=END_TIMEOUT_SECONDS)
    _fail_all(producer)
    # A separate task, because it awaits a task that was cancelled above, whose CancelledError must not reach the caller.
    stopping = asyncio.create_task(producer.stop())
    try:
        await asyncio.wait({stopping}, timeout=END_TIMEOUT_SECONDS)
    finally:
        is_late = stopping.cancel()
    error: BaseException | None = TimeoutError()
    if not is_late:
        error = asyncio.CancelledError() if stopping.cancelled() else stopping.exception()
    if isinstance(error, KafkaError | OSError | asyncio.CancelledError):
        logger.info("a producer did not close cleanly error=%r", error)
    elif error is not None:
        raise error


def _fail_all(producer: AIOKafkaProducer) -> None:
    """Fail all unanswered batches of a producer, and retrieve each exception, so that asyncio does not log it."""
    accumulator = producer._message_accumulator
    batches = [*chain.from_iterable(accumulator._batches.values()), *accumulator._pending_batches]
    # A batch that waits for a retry is not in the pending batches, and its removal from them would log a KeyError.
    accumulator._pending_batches.update(batches)
    accumulator.fail_all(ProducerClosed())
    for future in [future for batch in batches for future in (batch.future, batch._drain_waiter)]:
        if future.done() and not future.cancelled():
            future.exception()


async def _at_once() -> None:
    """Return at once; replaces the wait of aiokafka's client for metadata, which is no longer fetched."""
