"""Lease in the application's Redis that allows one replay at a time for each fold and each subscriber.

A replay reads the receipts of earlier replays once, at its start. Two concurrent replays would not see each other's receipts and
would send every event twice. So a replay holds a lease, renews it, and checks it right before each request with events. A replay
that was suspended until its lease expired therefore sends no more events.

One case remains. If a replay is suspended between that check and the reply of the broker for longer than the lease, and another
replay runs to its end meanwhile, then the events of one batch are sent twice. Only a transactional producer could prevent that, and
not every broker supports transactions.
"""

from __future__ import annotations

import asyncio
import os
import secrets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any, Final

import orjson
from redis.asyncio import Redis
from redis.asyncio.lock import Lock
from redis.exceptions import LockNotOwnedError

from streams_app.clock import Clock
from streams_app.delivery.tasks import cancel_all
from streams_app.errors import ConfigurationError, StreamsAppError, TryAgainError
from streams_app.folding.store.keys import replay_key
from streams_app.formatting import escaped, time_text
from streams_app.operations.audit import user_text
from streams_app.operations.retrying import with_retries
from streams_app.redis_access.client import REDIS_ERRORS, connect_briefly, why_unreachable
from streams_app.settings import Settings

LEASE_SECONDS: Final = 30.0
"""Time after which the lease of a killed replay expires; longer than a producer waits for an acknowledgement."""

RENEWALS: Final = 3
"""Number of renewals within the lifetime of a lease."""


class ReplayLease:
    """Lock in Redis by which no two replays of the same fold or subscriber run at the same time, see :func:`replay_lease`."""

    def __init__(self, settings: Settings, redis: Redis, key: str, seconds: float) -> None:
        self._settings = settings
        self._redis = redis
        self._key = key
        self._seconds = seconds
        self._lock: Lock = redis.lock(key, timeout=seconds, blocking=False, thread_local=False)

    async def require(self) -> None:
        """Renew the lease, or fail if this replay does not hold it any more. Call it right before events are sent.

        Raises:
            TryAgainError: The lease has expired, so that another replay may have begun. Or Redis does not answer for some seconds.
        """
        if not await with_retries(self._is_renewed):
            raise TryAgainError(
                f"the lease of this replay is gone: it was stopped, or without Redis, for {self._seconds:.0f} s, or Redis has lost "
                "its data. Another replay may have begun, so this one stops; repeat the command for the remaining dead letters"
            )

    async def take(self, holder: dict[str, Any]) -> None:
        """Acquire the lease for ``holder``: facts for the user of a concurrent replay, made unique by a random token."""
        try:
            if await self._lock.acquire(token=orjson.dumps(holder)):
                return
            found, left_ms = await self._redis.get(self._key), await self._redis.pttl(self._key)
        except REDIS_ERRORS as error:
            raise await self._unreachable(error) from error
        raise TryAgainError(_in_use_text(found, left_ms))

    async def renew_forever(self) -> None:
        """Renew the lease at intervals until cancelled. Failures are ignored here: :meth:`require` raises them before a send."""
        while True:
            await asyncio.sleep(self._seconds / RENEWALS)
            with suppress(*REDIS_ERRORS):  # ignored here: `require` raises the error before events are sent
                await self._lock.reacquire()

    async def release(self) -> None:
        """Release the lease, so that the next replay can begin at once. If Redis does not answer, the lease expires later."""
        with suppress(*REDIS_ERRORS):  # without Redis it expires; the lease of another replay is not touched
            await self._lock.release()

    async def _is_renewed(self) -> bool:
        try:
            return await self._lock.reacquire()
        except LockNotOwnedError:
            return False
        except REDIS_ERRORS as error:
            raise await self._unreachable(error) from error

    async def _unreachable(self, error: BaseException) -> StreamsAppError:
        why = await why_unreachable(self._settings.redis, error)
        text = f"{why}; only Redis knows whether another replay is in progress, and without it nothing is replayed"
        return ConfigurationError([text]) if isinstance(why, ConfigurationError) else TryAgainError(text)


@asynccontextmanager
async def replay_lease(
    settings: Settings, address: bytes, clock: Clock, seconds: float = LEASE_SECONDS
) -> AsyncIterator[ReplayLease]:
    """Hold the replay lease of a fold or a subscriber during the ``async with`` block.

    Args:
        clock: Clock for the start time of this replay. If another replay is tried meanwhile, its user sees this time.
        seconds: Time after which the lease expires if the process was killed.

    Raises:
        TryAgainError: Another replay holds the lease, or Redis does not answer.
    """
    redis = connect_briefly(settings.redis)
    try:
        lease = ReplayLease(settings, redis, replay_key(address.decode()), seconds)
        await lease.take({"by": user_text(), "pid": os.getpid(), "since_ms": clock.now_ms(), "token": secrets.token_hex(8)})
        renewing = asyncio.create_task(lease.renew_forever(), name="lease of a replay")
        try:
            yield lease
        finally:
            await cancel_all([renewing])
            await lease.release()
    finally:
        await redis.aclose()


def _in_use_text(found: bytes | str | None, left_ms: int) -> str:
    """Return the message about another replay that holds the lease; ``found`` is None if it has ended meanwhile (pure)."""
    try:
        holder = orjson.loads(found or b"")
        who = f", begun {time_text(holder['since_ms'])} by {escaped(str(holder['by']))}, pid {int(holder['pid'])}"
    except (ValueError, LookupError, TypeError):
        who = ""  # the lease expired between two requests, or another version wrote it
    return (
        f"another replay is in progress{who}: wait until it has ended, then repeat the command. Nothing was replayed. A replay "
        f"that was killed is over in {max(1, round(left_ms / 1000))} s"
    )
