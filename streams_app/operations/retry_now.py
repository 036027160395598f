"""Requests that a subscriber retries now what waits for a retry, and probes now if its circuit breaker is open.

``streams-app events retry`` only writes a request into Redis: only the owner of a partition may begin an attempt. Each worker that
has waiting events carries it out once, within a second or two, and answers with their number. The request expires after some
seconds, so that it never makes an event early that fails long after it.
"""

from __future__ import annotations

import asyncio
import heapq
import re
from dataclasses import dataclass
from typing import Final, NamedTuple

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

SHOWN: Final = 50
"""Maximum number of events in :attr:`WaitingEvents.soonest`."""

_OPEN: Final = re.compile(rb"\{[^/]*/[^/]*/([^/]*)/(\d+)\}:[^:]*:open")

POLL_SECONDS: Final = 0.1
OTHERS_SECONDS: Final = 2.0
"""Time for the other workers after the first one has answered: each looks for a request once a second."""


class WaitingEvent(NamedTuple):
    """An event that waits for a retry.

    Attributes:
        due_ms: When its next attempt is due, by the wall clock.
        position: As ``events explain`` takes it, ``TOPIC:PARTITION:OFFSET``.
        attempts: Number of attempts that have failed.
    """

    due_ms: int
    position: str
    attempts: int


@dataclass(frozen=True, slots=True)
class WaitingEvents:
    """The events of a subscriber that wait for a retry, as Redis has them.

    Attributes:
        first_ms: When the first is due, by the wall clock; 0 if none waits.
        is_whole: Whether all were counted.
        soonest: Those that are due first, at most :data:`SHOWN`.
    """

    subscriber: str
    events: int
    first_ms: int
    last_ms: int
    is_whole: bool
    soonest: tuple[WaitingEvent, ...] = ()

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


async def waiting_events(settings: Settings, one: Subscription, clock: Clock, most: int = MOST_READ) -> WaitingEvents:
    """Find the events of a subscriber that wait for a retry which is not due, among the first ``most`` that are stored.

    Raises:
        TryAgainError: Redis does not answer.
    """
    now_ms = clock.now_ms()
    found: list[WaitingEvent] = []
    is_whole = True
    async with redis_of(settings) as redis:
        async for key in redis.scan_iter(match=scan_pattern(settings.app_id, one.subscriber.name), count=SCANNED):
            if (match := _OPEN.fullmatch(key)) is not None:
                topic, partition = match[1].decode(), int(match[2])
                is_whole = await _read_waiting(redis, key, f"{topic}:{partition}", (now_ms, most), found) and is_whole
    last_ms = max((event.due_ms for event in found), default=0)
    soonest = tuple(heapq.nsmallest(SHOWN, found))
    first_ms = soonest[0].due_ms if soonest else 0
    return WaitingEvents(one.subscriber.name, len(found), first_ms, last_ms, is_whole, soonest)


async def _read_waiting(redis: Redis, key: bytes, source: str, limits: tuple[int, int], found: list[WaitingEvent]) -> bool:
    """Append the events of a partition that are due later; return whether all were read."""
    now_ms, most = limits
    async for offset, entry in redis.hscan_iter(key, count=SCANNED):
        if len(found) >= most:
            return False
        attempts, _, due_ms = map(int, entry.split()[:3])
        if due_ms > now_ms:
            found.append(WaitingEvent(due_ms, f"{source}:{int(offset)}", attempts))
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
