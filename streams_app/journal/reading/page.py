"""``GET /journal/NAME``: serves the events of a key over HTTP, on the HTTP server of a worker.

The page runs on the thread of that server and has its own connection to Redis, so it answers even if the worker hangs or lags.
An answer is sent while it is read: a client that stops reading holds back the next read, and some hundred kilobytes of memory, or
the few entries that were read last if they are larger.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import parse_qsl

import orjson
from aiohttp import hdrs, web

from streams_app.clock import Clock
from streams_app.errors import ConfigurationError, CursorError, JournalGoneError, NewerFormatError, StreamsAppError
from streams_app.exact_json import encode
from streams_app.formatting import milliseconds, parse_duration, suggestion
from streams_app.health.http import HttpServer, json_reply
from streams_app.health.http_connections import IDLE_SECONDS, connection_limit
from streams_app.journal.core.cursor import Start, cursor_text, parse_start
from streams_app.journal.core.entry import UNKEYED
from streams_app.journal.reading.all_partitions import Reading
from streams_app.journal.reading.entries import Entry, Gap, key_fault, keys_meant
from streams_app.journal.reading.reader import JournalReader
from streams_app.redis_access.client import REDIS_ERRORS, redis_fault_text
from streams_app.settings import JournalSettings, Settings

PARAMETERS: Final = ("key", "from", "limit", "wait", "unkeyed", "from_floor")
USUAL_LIMIT: Final = 100
MAX_LIMIT: Final = 1_000
MAX_WAIT_MS: Final = 60_000
MAX_BYTES: Final = 4_000_000
"""No further entry is added to a response that has this many bytes."""

PART_BYTES: Final = 64_000
"""An answer of more bytes is sent in parts of about this size."""

CONNECTIONS_A_REQUEST: Final = 2
"""The pages of all journals answer one request at a time for this many connections of the server, to leave some for other pages."""

MAX_PARAMETERS: Final = 20

_NUMBER: Final = re.compile(r"[1-9]\d{0,3}", re.ASCII)


class BadRequestError(ValueError):
    """A request is invalid; the text describes a valid one."""


@dataclass(frozen=True, slots=True)
class PageRequest:
    """A parsed request for events of a journal, the arguments of :meth:`.JournalReader.page`."""

    keys: tuple[bytes, ...]
    start: Start
    limit: int
    wait_ms: int
    from_floor: bool


def add_journal_pages(http: HttpServer, settings: Settings, clock: Clock) -> RequestLimit:
    """Add the page ``/journal/NAME`` of each journal to an HTTP server that is not started yet; return the limit of requests."""
    requests = RequestLimit()
    for journal in settings.journals:
        page = JournalHttpPage(settings, journal, clock, requests)
        http.add(f"/journal/{journal.name}", page.answer, f"the events of a key of {journal.source}: ?key=KEY", page.close)
    return requests


@dataclass(slots=True)
class RequestLimit:
    """Counts the requests that the pages of all journals answer at a time; most of them wait for events, or for their client."""

    maximum: int = field(default_factory=lambda: max(1, connection_limit() // CONNECTIONS_A_REQUEST))
    count: int = 0

    @property
    def is_reached(self) -> bool:
        return self.count >= self.maximum

    def __enter__(self) -> None:
        self.count += 1

    def __exit__(self, *_: object) -> None:
        self.count -= 1


class JournalHttpPage:
    """Answers HTTP requests for the events of one journal. The thread that answers requests connects to Redis."""

    def __init__(self, settings: Settings, journal: JournalSettings, clock: Clock, requests: RequestLimit) -> None:
        self._settings = settings
        self._journal = journal
        self._clock = clock
        self._requests = requests
        self._reader: JournalReader | None = None

    async def close(self) -> None:
        if self._reader is not None:
            await self._reader.aclose()

    async def answer(self, request: web.Request) -> web.StreamResponse:
        """Return entries and gaps as JSON.

        The status is 400 if the request is invalid, 410 if the journal has removed the next events, and 503 if Redis does not
        answer, or too many requests are being answered.
        """
        if self._requests.is_reached:
            most = self._requests.maximum
            advice = "repeat the request later, send it to another worker, or follow the key in Python by JournalReader"
            busy = {"error": f"this worker answers at most {most} requests for journals at a time: {advice}"}
            return json_reply(busy, status=503)
        try:
            with self._requests:
                return await self._answered(request)
        except (BadRequestError, CursorError, ConfigurationError) as error:
            return json_reply({"error": str(error)}, status=400)
        except JournalGoneError as error:
            advice = "begin at next, or repeat the request with from_floor=1"
            gone = {"error": f"{error}: {advice}", "floor": f"{error.partition}-{error.floor}", "next": error.next}
            return json_reply(gone, status=410)
        except NewerFormatError as error:
            return json_reply({"error": str(error)}, status=503)
        except REDIS_ERRORS as error:
            return json_reply({"error": redis_fault_text(error)}, status=503)

    async def _answered(self, request: web.Request) -> web.StreamResponse:
        wanted = parse_request(self._journal, request.rel_url.raw_query_string, self._clock.now_ms())
        if self._reader is None:
            self._reader = JournalReader(self._settings, self._journal.name, clock=self._clock)
        reading = self._reader.reading(wanted.keys, wanted.start, from_floor=wanted.from_floor)
        found = self._reader.limited(reading, limit=wanted.limit, max_bytes=MAX_BYTES, wait_ms=wanted.wait_ms)
        fault = key_fault(self._journal, self._settings.limits, wanted.keys)
        async with aclosing(found) as items, aclosing(_parts(reading, items, fault and f"{fault}: unkeyed=1")) as parts:
            part, is_last = await anext(parts)  # errors come before it
            if is_last:
                return web.Response(body=part, content_type="application/json")
            response = web.StreamResponse(headers={"Content-Type": "application/json"})
            await response.prepare(request)
            if request.method == hdrs.METH_HEAD:
                return response
            try:
                await _write(response, part)
                del part
                async for following, _ in parts:
                    await _write(response, following)
                    del following
            except (OSError, StreamsAppError):  # a client that does not read, or an error for which it is too late
                if request.transport is not None:
                    request.transport.abort()
            return response


async def _write(response: web.StreamResponse, part: bytes) -> None:
    view = memoryview(part)  # in pieces, because what the client does not take is copied
    for begin in range(0, len(view), PART_BYTES):
        async with asyncio.timeout(IDLE_SECONDS):
            await response.write(view[begin : begin + PART_BYTES])


async def _parts(reading: Reading, items: AsyncGenerator[Entry | Gap, None], hint: str) -> AsyncGenerator[tuple[bytes, bool], None]:
    """Yield the parts of the JSON object of an answer, each with whether it is the last one, while its entries are read.

    Errors are raised before the first part. If Redis does not answer later, or a newer version takes over a partition, the answer
    ends with the entries that were read; the client continues after them. ``hint`` is what the client should know about its key, or
    empty.
    """
    pieces, size, gaps, is_begun = [b'{"entries":['], 0, [], False
    try:
        async for item in items:
            if isinstance(item, Gap):
                gaps.append(item.as_json())
                continue
            if size or is_begun:
                pieces.append(b",")
            pieces.append(encode(item.as_json()))
            size += len(pieces[-1])
            if size >= PART_BYTES:
                part, pieces, size, is_begun = b"".join(pieces), [], 0, True
                yield part, False
                del part
    except (NewerFormatError, *REDIS_ERRORS):
        if not is_begun:
            raise
    page = reading.page([])
    end: dict[str, Any] = {
        "next": page.next or "earliest",
        "floor": cursor_text(page.floors),
        "fence": cursor_text(page.fences),
        "older_removed": page.older_removed,
        "caught_up": page.is_caught_up,
        "gaps": gaps,
        "unread": list(page.unread),
    }
    if hint:
        end["hint"] = hint
    yield b"".join((*pieces, b"],", orjson.dumps(end)[1:])), True


def parse_request(journal: JournalSettings, query: str, now_ms: int) -> PageRequest:
    """Parse the query string of a request for events; it has percent-encoding, because a key may contain any bytes.

    Raises:
        BadRequestError: A parameter is unknown, missing, repeated or invalid.
        CursorError: The parameter ``from`` is no valid start.
    """
    given = _parameters(query)
    is_unkeyed = _flag(given, "unkeyed")
    if is_unkeyed == bool(given.get("key")):
        raise BadRequestError("name a key as in ?key=account_7, or unkeyed=1 for events without one")
    limit = given.get("limit", str(USUAL_LIMIT))
    if not _NUMBER.fullmatch(limit) or int(limit) > MAX_LIMIT:
        raise BadRequestError(f"limit must be a number from 1 to {MAX_LIMIT}")
    # A plus means a space in a query, also in the zone of a time.
    start = parse_start(given.get("from", "earliest"), now_ms)
    keys = (UNKEYED,) if is_unkeyed else keys_meant(journal, given["key"])
    return PageRequest(keys, start, int(limit), _wait_ms(given.get("wait", "0s")), _flag(given, "from_floor"))


def _parameters(query: str) -> Mapping[str, str]:
    try:
        pairs = parse_qsl(
            query, keep_blank_values=True, encoding="utf-8", errors="surrogateescape", max_num_fields=MAX_PARAMETERS
        )  # fmt: skip
    except ValueError as error:
        raise BadRequestError(f"there are more than {MAX_PARAMETERS} parameters") from error
    given = dict(pairs)
    if unknown := [name for name in given if name not in PARAMETERS]:
        name = unknown[0].encode("utf-8", "backslashreplace").decode()[:60]
        raise BadRequestError(
            f"there is no parameter {name!r}{suggestion(name, [*PARAMETERS])} (there are: {', '.join(PARAMETERS)})"
        )
    if len(given) < len(pairs):
        raise BadRequestError(f"{_repeated(pairs)} is given twice")
    return given


def _repeated(pairs: Sequence[tuple[str, str]]) -> str:
    names = [name for name, _ in pairs]
    return next(name for name in names if names.count(name) > 1)


def _flag(given: Mapping[str, str], name: str) -> bool:
    if (value := given.get(name, "0")) not in ("0", "1"):
        raise BadRequestError(f"{name} must be 1 or 0")
    return value == "1"


def _wait_ms(text: str) -> int:
    try:
        wait_ms = milliseconds(parse_duration(text))
    except ValueError as error:
        raise BadRequestError(f"wait: {error}") from error
    if wait_ms > MAX_WAIT_MS:
        raise BadRequestError("wait must be at most 60s")
    return wait_ms
