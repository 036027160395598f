"""A consumer whose fetch has failed closes without an error while it waits for the next attempt."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

from aiokafka.consumer.fetcher import Fetcher
from aiokafka.errors import KafkaConnectionError

from streams_app.kafka.patches.fetch_end import return_when_cancelled

LIMIT_SECONDS = 60


async def test_fetcher_closes_without_an_error_while_a_fetch_waits_for_its_next_attempt() -> None:
    return_when_cancelled()
    failed = asyncio.Event()

    async def send(node_id: int, request: Any) -> None:
        failed.set()
        raise KafkaConnectionError("connection closed")

    fetcher: Any = Fetcher.__new__(Fetcher)
    fetcher._client = SimpleNamespace(send=send)
    fetcher._retry_backoff = LIMIT_SECONDS
    fetcher._fetch_waiters = set()
    fetcher._fetch_task = asyncio.create_task(asyncio.sleep(LIMIT_SECONDS))
    fetch = asyncio.create_task(fetcher._proc_fetch_request(None, 1, SimpleNamespace(topics=[])))
    fetcher._pending_tasks = {fetch}
    await failed.wait()

    await fetcher.close()

    assert fetch.result() is False
