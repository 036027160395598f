"""Calls of the main loop in the thread of Faust's consumer."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from aiokafka.errors import KafkaConnectionError

from streams_app.kafka.consumer_thread import FoldingThread


async def test_call_of_a_thread_that_has_ended_fails_like_one_without_a_connection() -> None:
    thread: Any = FoldingThread.__new__(FoldingThread)
    thread.thread_loop = asyncio.new_event_loop()
    thread.thread_loop.close()

    async def work(_: object) -> None:
        raise AssertionError("it is never called")

    with pytest.raises(KafkaConnectionError, match="the consumer has stopped"):
        await thread.run(work)
