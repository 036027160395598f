"""The loop that repeats a call until a server answers it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

T = TypeVar("T")
E = TypeVar("E", bound=BaseException)


async def retried(
    step: Callable[[], Awaitable[T]],
    errors: type[E] | tuple[type[E], ...],
    on_failure: Callable[[E], Awaitable[float]],
) -> T:
    """Call a step until it raises none of these errors, and return its result.

    Args:
        step: It must be safe to repeat, because a failed call may have taken effect.
        on_failure: Awaited with each error; returns the seconds until the next attempt, or raises to give up.
    """
    while True:
        try:
            return await step()
        except errors as error:
            seconds = await on_failure(error)
        await asyncio.sleep(seconds)
