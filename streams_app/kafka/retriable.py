"""Repeats a request while Kafka answers with a retriable error, such as while the coordinator of a group moves."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeVar

from aiokafka.errors import KafkaError

from streams_app.backoff import Backoff
from streams_app.retries import retried

T = TypeVar("T")


async def while_retriable(request: Callable[[], Awaitable[T]], *, final: tuple[type[KafkaError], ...] = ()) -> T:
    """Send a request until its error, if any, is not retriable or is one of ``final``; return its result, or raise that error."""
    backoff = Backoff(first_seconds=0.1, longest_seconds=1.0)

    async def wait(error: KafkaError) -> float:
        if isinstance(error, final) or not error.retriable:
            raise error
        return backoff.failed()

    return await retried(request, KafkaError, wait)
