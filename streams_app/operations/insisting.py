"""Calls that are worth a few tries: a store that is locked, a server that has just been started again."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

from streams_app.backoff import Backoff
from streams_app.errors import TryAgainError
from streams_app.read_store.core.failures import AccessDeniedError, TooSlowError

T = TypeVar("T")

MOST_FAILURES: Final = 5
"""In about six seconds; beyond that somebody has to look."""

MOST_TOO_SLOW: Final = 12
"""Of a batch that takes too long, which is halved each time: a page of cells becomes one cell."""


async def insisted(call: Callable[[], Awaitable[T]]) -> T:
    """What a call returns, tried again a few times.

    Raises:
        AccessDeniedError: It fails for credentials or rights; no second try mends them.
        TryAgainError: It fails each time; that of the last one.
    """
    backoff = Backoff(first_seconds=0.2, longest_seconds=5.0)
    while True:
        try:
            return await call()
        except AccessDeniedError:
            raise
        except TryAgainError as error:
            if backoff.failures >= (MOST_TOO_SLOW if isinstance(error, TooSlowError) else MOST_FAILURES):
                raise
        await asyncio.sleep(backoff.failed())
