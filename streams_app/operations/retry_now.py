"""Requests that a subscriber retries now what waits for a retry, and probes now if its circuit breaker is open.

``streams-app events retry`` only writes a request into Redis: only the owner of a partition may begin an attempt. Each worker that
has waiting events carries it out once, within a second or two, and answers with their number. The request expires after some
seconds, so that it never makes an event early that fails long after it.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Final

from redis.asyncio import Redis

from streams_app.clock import Clock
from streams_app.errors import TryAgainError
from streams_app.formatting import counted, span
from streams_app.operations.groups import redis_of
from streams_app.settings import Settings
from streams_app.subscribers.declaration.subscription import Subscription
from streams_app.subscribers.state.keys import scan_pattern
from streams_app.subscribers.state.retry_requests import VALID_MS, RetryRequests

SCANNED: Final = 1_000
MOST_READ: Final = 100_000
"""Maximum number of stored events that are counted."""

POLL_SECONDS: Final = 0.1
OTHERS_SECONDS: Final = 2.0
"""Time for the other workers after the first one has answered: each looks for a request once a second."""


@dataclass(frozen=True, slots=True)
class WaitingEvents:
    """The events of a subscriber that wait for a retry, as Redis has them.

    Attributes:
        first_ms: When the first is due, by the wall clock; 0 if none waits.
        is_whole: Whether all were counted.
    """

    subscriber: str
    events: int
    first_ms: int
    last_ms: int
    is_whole: bool

    def lines(self, now_ms: int) -> list[str]:
        """Describe what a request would do."""
        if not self.events:
            return [f"no event of subscriber {self.subscriber} waits for a later retry", PROBE]
        number = f"{'' if self.is_whole else 'at least '}{counted(self.events, 'event')}"
        due = f"due in {span(self.first_ms - now_ms)}"
        if self.events > 1:
            due = f"the first {due}, the last in {span(self.last_ms - now_ms)}"
        return [f"{number} of subscriber {self.subscriber} would be retried now, {due}", PROBE]


PROBE: Final = "if its circuit breaker is open, each worker probes now; a success closes it"


@dataclass(frozen=True, slots=True)
class RetryResult:
    """What workers have answered: how many events they retry, and how many they are."""

    events: int
    workers: int

    def line(self) -> str:
        return f"{counted(self.events, 'event')} retried now by {counted(self.workers, 'worker')}"


async def waiting_events(settings: Settings, one: Subscription, clock: Clock) -> WaitingEvents:
    """Count the events of a subscriber that wait for a retry which is not due.

    Raises:
        TryAgainError: Redis does not answer.
    """
    now_ms = clock.now_ms()
    due: list[int] = []
    is_whole = True
    async with redis_of(settings) as redis:
        async for key in redis.scan_iter(match=scan_pattern(settings.app_id, one.subscriber.name), count=SCANNED):
            if key.endswith(b":open"):
                is_whole = await _read_due(redis, key, now_ms, due) and is_whole
    return WaitingEvents(one.subscriber.name, len(due), min(due, default=0), max(due, default=0), is_whole)


async def _read_due(redis: Redis, key: bytes, now_ms: int, due: list[int]) -> bool:
    """Append the due times in a partition; return whether all were read."""
    async for _, entry in redis.hscan_iter(key, count=SCANNED):
        if len(due) >= MOST_READ:
            return False
        if (due_ms := int(entry.split()[2])) > now_ms:
            due.append(due_ms)
    return True


async def retry_now(settings: Settings, one: Subscription, clock: Clock) -> RetryResult:
    """Request workers to retry what waits, and wait for their answers. It may be repeated.

    Raises:
        TryAgainError: Redis does not answer, or no worker has answered while the request was valid.
    """
    now_ms = clock.now_ms()
    async with redis_of(settings) as redis:
        requests = RetryRequests(redis, settings.app_id, one.subscriber.name)
        await requests.write(now_ms)
        try:
            async with asyncio.timeout(VALID_MS / 1_000):
                while not await requests.answers(now_ms):  # noqa: ASYNC110  # another process answers
                    await asyncio.sleep(POLL_SECONDS)
        except TimeoutError as error:
            raise TryAgainError(
                f"no worker has retried an event of {one.subscriber.name} within {VALID_MS // 1_000} s: no worker runs it, or none "
                "of its events waits there, or the workers are of an older version; the request has expired"
            ) from error
        await asyncio.sleep(OTHERS_SECONDS)
        answers = await requests.answers(now_ms)
    return RetryResult(sum(answers), len(answers))
