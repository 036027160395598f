"""Retries a call to a server that fails temporarily: a read store may be locked, or the server may be restarting."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

from streams_app.backoff import Backoff
from streams_app.errors import TryAgainError
from streams_app.read_store.core.errors import AccessDeniedError, TooSlowError
from streams_app.retries import retried

T = TypeVar("T")

MAX_FAILURES: Final = 5
"""Maximum number of retries of a call, which take about six seconds; a longer outage needs an operator."""

MAX_TOO_SLOW: Final = 12
"""Maximum number of retries of a call that times out. Its batch of cells is halved each time, until it has become one cell."""


async def with_retries(call: Callable[[], Awaitable[T]]) -> T:
    """Return the result of a call. If the call raises :class:`.TryAgainError`, retry it a few times, with backoff.

    Raises:
        AccessDeniedError: Credentials or rights are wrong; the call is not retried.
        TryAgainError: The last retry failed.
    """
    backoff = Backoff(first_seconds=0.2, longest_seconds=5.0)

    async def wait(error: TryAgainError) -> float:
        is_last = backoff.failures >= (MAX_TOO_SLOW if isinstance(error, TooSlowError) else MAX_FAILURES)
        if is_last or isinstance(error, AccessDeniedError):
            raise error
        return backoff.failed()

    return await retried(call, TryAgainError, wait)
