"""Retries a call to a server: a read store may be locked, or a server may have just restarted."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

from streams_app.backoff import Backoff
from streams_app.errors import TryAgainError
from streams_app.read_store.core.errors import AccessDeniedError, TooSlowError

T = TypeVar("T")

MAX_FAILURES: Final = 5
"""Number of failures of a call that are retried, for about six seconds; a longer outage needs an operator."""

MAX_TOO_SLOW: Final = 12
"""Number of timeouts of a batch that are retried. It is halved each time, until a page of cells has become one cell."""


async def with_retries(call: Callable[[], Awaitable[T]]) -> T:
    """Return the result of a call; retry it a few times, with backoff, on :class:`.TryAgainError`.

    Raises:
        AccessDeniedError: Credentials or rights are wrong, which retries cannot mend.
        TryAgainError: The last attempt failed, too.
    """
    backoff = Backoff(first_seconds=0.2, longest_seconds=5.0)
    while True:
        try:
            return await call()
        except AccessDeniedError:
            raise
        except TryAgainError as error:
            if backoff.failures >= (MAX_TOO_SLOW if isinstance(error, TooSlowError) else MAX_FAILURES):
                raise
        await asyncio.sleep(backoff.failed())
