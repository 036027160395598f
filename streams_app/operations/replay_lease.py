"""One replay at a time for each fold and each subscriber: a lease in the application's Redis.

A replay looks once for what was put back before. Of two that run side by side neither would see what the other one puts back, and
every event would go back twice. So a replay holds a lease, renews it while it lives, and asks for it once more just before each
request that has events in it: one that was stopped for so long that its lease has expired puts nothing more back.

What remains: a replay that is stopped between that question and the broker's answer, for longer than the lease, while another one
runs to its end. Then the events of one page go back twice. Only the broker could refuse that page, to a producer with transactions,
which not every broker has.
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
from streams_app.delivery.tasks import ended
from streams_app.errors import ConfigurationError, StreamsAppError, TryAgainError
from streams_app.folding.store.keys import replay_key
from streams_app.formatting import escaped, time_text
from streams_app.operations.audit import user_text
from streams_app.operations.insisting import insisted
from streams_app.redis_access.client import REDIS_ERRORS, connect_briefly, why_unreachable
from streams_app.settings import Settings

LEASE_SECONDS: Final = 30.0
"""A replay that was killed is over after this time; longer than its producer waits for an acknowledgement."""

RENEWALS: Final = 3
"""So often a lease is renewed before it would expire."""


class ReplayLease:
    """A lease that is held; see :func:`replay_lease`."""

    def __init__(self, settings: Settings, redis: Redis, key: str, seconds: float) -> None:
        """Holds nothing yet."""
        self._settings = settings
        self._redis = redis
        self._key = key
        self._seconds = seconds
        self._lock: Lock = redis.lock(key, timeout=seconds, blocking=False, thread_local=False)

    async def require(self) -> None:
        """Returns where the lease is still held, for its whole time from now on; to be awaited before events are sent.

        Raises:
            TryAgainError: It has expired, so that another replay may have begun; or Redis does not answer for some seconds.
            ConfigurationError: Redis refuses the connection by the settings.
        """
        if not await insisted(self._is_renewed):
            raise TryAgainError(
                f"the lease of this replay is gone: it was stopped, or without Redis, for {self._seconds:.0f} s, or Redis has lost "
                "its data. Another replay may have begun, so this one puts nothing more back; call it again for what is left"
            )

    async def take(self, holder: dict[str, Any]) -> None:
        """Takes the lease.

        Raises:
            TryAgainError: Somebody else has it, or Redis does not answer.
            ConfigurationError: Redis refuses the connection by the settings.
        """
        try:
            if await self._lock.acquire(token=orjson.dumps(holder)):
                return
            found, left_ms = await self._redis.get(self._key), await self._redis.pttl(self._key)
        except REDIS_ERRORS as error:
            raise await self._unreachable(error) from error
        raise TryAgainError(_refusal(found, left_ms))

    async def renew_forever(self) -> None:
        """Renews it again and again."""
        while True:
            await asyncio.sleep(self._seconds / RENEWALS)
            with suppress(*REDIS_ERRORS):  # before events are sent it is asked for once more, and then the error is told
                await self._lock.reacquire()

    async def release(self) -> None:
        """Lets the next replay begin at once."""
        with suppress(*REDIS_ERRORS):  # without Redis it expires by itself, and one that is another's stays as it is
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
    """The lease of the only replay for a fold or a subscriber, held for the ``async with`` block.

    Args:
        settings: Settings of the application.
        address: Whom its receipts name.
        clock: Says since when it is held, for people.
        seconds: So long it outlives a process that was killed.

    Raises:
        TryAgainError: Another replay holds it, or Redis does not answer.
        ConfigurationError: Redis refuses the connection by the settings.
    """
    redis = connect_briefly(settings.redis)
    try:
        lease = ReplayLease(settings, redis, replay_key(address.decode()), seconds)
        await lease.take({"by": user_text(), "pid": os.getpid(), "since_ms": clock.now_ms(), "token": secrets.token_hex(8)})
        renewing = asyncio.create_task(lease.renew_forever(), name="lease of a replay")
        try:
            yield lease
        finally:
            await ended([renewing])
            await lease.release()
    finally:
        await redis.aclose()


def _refusal(found: bytes | str | None, left_ms: int) -> str:
    """What somebody is told who has to wait (pure).

    Args:
        found: What the holder has written; None: it has ended meanwhile.
        left_ms: After so long the lease expires, if nobody renews it.
    """
    try:
        holder = orjson.loads(found or b"")
        who = f", begun {time_text(holder['since_ms'])} by {escaped(str(holder['by']))}, pid {int(holder['pid'])}"
    except (ValueError, LookupError, TypeError):
        who = ""  # gone between two questions, or written by another version
    return (
        f"another replay is under way{who}: wait until it has ended, and call this one again. Nothing was put back. A replay "
        f"that was killed is over in {max(1, round(left_ms / 1000))} s"
    )
