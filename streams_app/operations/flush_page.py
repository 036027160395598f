"""``POST /groups/flush``: another service requests that an open group is emitted now, for example because its user has left.

Every worker of the application answers for all partitions: the request is stored in Redis, and the owner of the group emits it
with its next seal. The page runs on the thread of the worker's HTTP server and has its own connection to Redis, so it answers even
if the worker hangs or lags.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import Final

from aiohttp import web
from redis.asyncio import Redis

from streams_app.clock import Clock
from streams_app.codec import decode_object, member_of
from streams_app.errors import BadEventError, NewerFormatError, UnknownFoldError
from streams_app.formatting import suggestion
from streams_app.health.http import HttpServer, json_reply
from streams_app.operations.flush import request_group
from streams_app.operations.groups import StoredShard, stored_shards
from streams_app.redis_access.client import REDIS_ERRORS, connect_briefly, redis_fault_text
from streams_app.settings import Settings

logger = logging.getLogger(__name__)

FLUSH_PAGE: Final = "/groups/flush"
FIELDS: Final = ("fold", "group")
EXAMPLE: Final = '{"fold": "account-metrics", "group": "account_1"}'
TOO_MANY: Final = 429
BODY_SECONDS: Final = 5.0
"""Time in which the body of a request must arrive."""

CACHED_MS: Final = 10_000
"""How long the partitions with state of a fold are cached; if a group is not found, they are read earlier."""

RECENT_MS: Final = 1_000
"""Minimum time between two readings of the partitions of a fold."""


class RejectedRequestError(Exception):
    """A request that is answered with this status and text."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status


def add_flush_page(http: HttpServer, settings: Settings, clock: Clock) -> None:
    """Add the page to an HTTP server that is not started yet, if the settings have a token for it."""
    token = settings.http.flush_token
    if token is not None:
        page = FlushHttpPage(settings, clock)
        http.add_post(FLUSH_PAGE, page.answer, page.close, token)


class RequestRate:
    """Counts requests against a rate; a second's worth of them may come at once (a token bucket)."""

    def __init__(self, per_second: int, clock: Clock) -> None:
        self._per_second = per_second
        self._clock = clock
        self._left = float(per_second)
        self._counted_ms = clock.monotonic_ms()

    def is_allowed(self) -> bool:
        """Count a request, unless the rate is exceeded."""
        now_ms = self._clock.monotonic_ms()
        self._left = min(float(self._per_second), self._left + (now_ms - self._counted_ms) * self._per_second / 1000)
        self._counted_ms = now_ms
        if self._left < 1:
            return False
        self._left -= 1
        return True


class FlushHttpPage:
    """Stores requests that a group is emitted. The thread that answers requests connects to Redis."""

    def __init__(self, settings: Settings, clock: Clock) -> None:
        self._settings = settings
        self._clock = clock
        self._rate = RequestRate(settings.http.flush_per_second, clock)
        self._shards: dict[str, tuple[int, list[StoredShard]]] = {}
        self._redis: Redis | None = None

    async def close(self) -> None:
        if self._redis is not None:
            await self._redis.aclose()

    async def answer(self, request: web.Request) -> web.Response:
        """Store the request.

        The status is 202 if the group will be emitted, and 200 if it is not open. It is 400 if the request is invalid, 404 if there
        is no such fold, 408 if its body does not arrive, 429 above ``http.flush_per_second``, and 503 if Redis does not answer.
        """
        try:
            fold, member = self._parsed(await self._body(request))
            found = await self._requested(fold, member)
        except RejectedRequestError as error:
            reply = json_reply({"error": str(error)}, status=error.status)
            if error.status == TOO_MANY:
                reply.headers["Retry-After"] = "1"
            return reply
        except UnknownFoldError as error:
            return json_reply({"error": str(error)}, status=404)
        except NewerFormatError as error:
            return json_reply({"error": str(error)}, status=503)
        except REDIS_ERRORS as error:
            return json_reply({"error": redis_fault_text(error)}, status=503)
        partitions = sorted(shard.partition for shard in found)
        logger.debug("flush requested over HTTP fold=%s partitions=%s remote=%s", fold, partitions, request.remote)
        return json_reply({"fold": fold, "partitions": partitions}, status=202 if partitions else 200)

    async def _body(self, request: web.Request) -> bytes:
        if not self._rate.is_allowed():
            most = self._settings.http.flush_per_second
            raise RejectedRequestError(TOO_MANY, f"more than http.flush_per_second = {most} requests: repeat it later")
        try:
            async with asyncio.timeout(BODY_SECONDS):
                return await request.read()
        except TimeoutError as error:
            raise RejectedRequestError(408, f"the body of the request did not arrive within {BODY_SECONDS:g} s") from error

    def _parsed(self, body: bytes) -> tuple[str, bytes]:
        """Return the name of the fold, and the group as stored in Redis."""
        try:
            given = decode_object(body)
        except BadEventError as error:
            raise _invalid(f"the body: {error.detail}") from error
        if unknown := [name for name in given if name not in FIELDS]:
            shown = unknown[0][:60]
            raise _invalid(f"there is no field {shown!r}{suggestion(shown, [*FIELDS])}")
        if missing := [name for name in FIELDS if name not in given]:
            raise _invalid(f"the field {missing[0]!r} is missing")
        fold, group = given["fold"], given["group"]
        declared = [other.name for other in self._settings.folds]
        if fold not in declared:
            raise UnknownFoldError(str(fold)[:60], declared)
        try:
            return fold, member_of(tuple(group) if type(group) is list and len(group) > 1 else (group,))
        except BadEventError as error:
            raise _invalid(f"group: {error.detail}") from error

    async def _requested(self, fold: str, member: bytes) -> list[StoredShard]:
        if self._redis is None:
            self._redis = connect_briefly(self._settings.redis)
        found = await request_group(self._redis, await self._cached(self._redis, fold, CACHED_MS), [member])
        return found or await request_group(self._redis, await self._cached(self._redis, fold, RECENT_MS), [member])

    async def _cached(self, redis: Redis, fold: str, oldest_ms: int) -> Sequence[StoredShard]:
        """Return the partitions of a fold, as they were at most so long ago."""
        now_ms = self._clock.monotonic_ms()
        if (cached := self._shards.get(fold)) is not None and now_ms - cached[0] < oldest_ms:
            return cached[1]
        shards = await stored_shards(redis, self._settings, fold)
        self._shards[fold] = now_ms, shards
        return shards


def _invalid(text: str) -> RejectedRequestError:
    return RejectedRequestError(400, f"{text}; a valid request is {EXAMPLE}")
