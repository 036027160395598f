"""Waiting for what another process, thread or task does."""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar, overload

T = TypeVar("T")

_POLL_SECONDS = 0.03
_LONGEST_POLL_SECONDS = 0.15


def _pause(waited_seconds: float) -> float:
    """Return the time until the next attempt: a twentieth of the wait, as many attempts parse pages, logs or metrics."""
    return min(max(_POLL_SECONDS, waited_seconds / 20), _LONGEST_POLL_SECONDS)


@overload
async def wait_until(predicate: Callable[[], Awaitable[T]], timeout_seconds: float, description: str) -> T: ...
@overload
async def wait_until(predicate: Callable[[], T], timeout_seconds: float, description: str) -> T: ...
async def wait_until(predicate: Callable[[], Any], timeout_seconds: float, description: str) -> Any:
    """Wait for the first true value of ``predicate`` and return it.

    Raises:
        AssertionError: There was none in time; the message has the description and the last value.
    """
    begun = time.monotonic()
    deadline = begun + timeout_seconds
    value: Any = None
    while True:
        try:
            async with asyncio.timeout(max(0.0, deadline - time.monotonic())):
                result = predicate()
                value = await result if inspect.isawaitable(result) else result
        except TimeoutError:
            if time.monotonic() < deadline:
                raise  # its own error, not our timeout
        if value:
            return value
        if time.monotonic() >= deadline:
            raise AssertionError(f"not within {timeout_seconds} s: {description}; last value: {value!r}")
        await asyncio.sleep(_pause(time.monotonic() - begun))


def wait_until_sync(predicate: Callable[[], T], timeout_seconds: float, description: str) -> T:
    """As `wait_until`, for tests and fixtures without an event loop."""
    begun = time.monotonic()
    deadline = begun + timeout_seconds
    while not (value := predicate()):
        if time.monotonic() >= deadline:
            raise AssertionError(f"not within {timeout_seconds} s: {description}; last value: {value!r}")
        time.sleep(_pause(time.monotonic() - begun))
    return value


async def turns_of_loop(count: int) -> None:
    """Let other tasks run for some turns of the event loop, if there is no state for `wait_until`."""
    for _ in range(count):
        await asyncio.sleep(0)
