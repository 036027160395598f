"""Requests of operators that waiting events are retried now, in Redis: the command writes one, and workers answer it.

A request is valid for :data:`VALID_MS`. Its time identifies it: a worker carries out each request once, and a repeated request
finds only what waits again.
"""

from __future__ import annotations

from typing import Any, Final

from redis.asyncio import Redis

from streams_app.subscribers.state.keys import retry_key

VALID_MS: Final = 10_000
AT: Final = b"at"


class RetryRequests:
    """The request of one subscriber: a hash with its time, and the number of events that each worker retries."""

    def __init__(self, redis: Redis, app_id: str, subscriber: str) -> None:
        self._redis = redis
        self._key = retry_key(app_id, subscriber)

    async def write(self, now_ms: int) -> None:
        """Write a request in place of an earlier one."""
        async with self._redis.pipeline(transaction=True) as pipe:
            pipe.delete(self._key)
            pipe.hset(self._key, AT.decode(), str(now_ms))
            pipe.pexpire(self._key, VALID_MS)
            await pipe.execute()

    async def present(self) -> bytes | None:
        """Return what identifies the valid request; None if there is none."""
        reply: Any = await self._redis.hget(self._key, AT.decode())
        return None if reply is None else bytes(reply)

    async def answer(self, worker: str, events: int) -> None:
        """Record the number of events that a worker retries."""
        async with self._redis.pipeline(transaction=True) as pipe:
            pipe.hset(self._key, worker, str(events))
            pipe.pexpire(self._key, VALID_MS)
            await pipe.execute()

    async def answers(self, now_ms: int) -> list[int]:
        """Return the numbers of events that workers retry because of the request written at ``now_ms``; empty if there are none."""
        found: Any = await self._redis.hgetall(self._key)
        is_mine = found.pop(AT, b"") == b"%d" % now_ms
        return [int(events) for events in found.values()] if is_mine else []
