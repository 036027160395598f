"""Answers invalid HTTP requests as JSON, for every HTTP server of the application, without an error in the log for each of them.

aiohttp answers a request that it cannot parse before any handler or middleware, as plain text, and logs each one as an error with
its trace. Then any client could fill the log, for example with a URL that is too long.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Any, Final

import orjson
from aiohttp import web
from aiohttp.http_exceptions import BadHttpMethod, HttpProcessingError, InvalidHeader, InvalidURLError, LineTooLong

from streams_app.clock import Clock

logger = logging.getLogger(__name__)

MAX_URL_BYTES: Final = 8_190
MAX_HEADER_BYTES: Final = 8_192
"""Maximum bytes of the name and of the value of a header. It differs from :data:`MAX_URL_BYTES`, so that the limit that an error
of aiohttp contains identifies the part of the request."""

MAX_HEADERS: Final = 128
TRACE_MS: Final = 60_000
"""Minimum time between two log messages that contain the trace of an unexpected error."""

_LONGEST_PATH: Final = 200
_ABOUT_CONTENT: Final = ("content-type", "content-length")

_TEXTS: Final = (
    (BadHttpMethod, "the method of the request is not valid, or this is no HTTP: the server expects HTTP/1.1 without TLS"),
    (InvalidURLError, "the URL of the request is not valid: percent-encode its special characters"),
    (InvalidHeader, "a header of the request is not valid"),
    (HttpProcessingError, "the request is not valid HTTP/1.1"),
)
"""Errors of aiohttp and what the client is told; the first class that matches counts."""


def error_reply(text: str, status: int, headers: dict[str, str] | None = None) -> web.Response:
    """Return an HTTP response with an error as JSON."""
    return web.Response(
        body=orjson.dumps({"error": text}), status=status, content_type="application/json", charset="utf-8", headers=headers
    )


def status_reply(request: web.BaseRequest, error: web.HTTPException) -> web.Response:
    """Return the response to a request that aiohttp rejects, for example because no page has its path."""
    text = f"{error.reason}: {request.method[:_LONGEST_PATH]} {request.path[:_LONGEST_PATH]}"
    headers = {name: value for name, value in error.headers.items() if name.lower() not in _ABOUT_CONTENT}
    return error_reply(text.encode("utf-8", "replace").decode(), error.status, headers)


def parse_error_reply(error: HttpProcessingError) -> web.Response:
    """Return the response to a request that aiohttp cannot parse: status 414, 431 or 400."""
    if isinstance(error, LineTooLong) and MAX_URL_BYTES in error.args:
        return error_reply(f"the URL is too long: at most {MAX_URL_BYTES} bytes", 414)
    if isinstance(error, LineTooLong):
        return error_reply(f"a header is too long: at most {MAX_HEADER_BYTES} bytes", 431)
    if error.message.startswith("Too many headers"):
        return error_reply(f"the request has too many headers: at most {MAX_HEADERS}", 431)
    return error_reply(next(text for kind, text in _TEXTS if isinstance(error, kind)), 400)


class UnexpectedErrors:
    """Logs unexpected errors of handlers with their trace, at most once per :data:`TRACE_MS`."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._traced_ms: int | None = None

    def trace(self, error: BaseException | None) -> None:
        now_ms = self._clock.monotonic_ms()
        if self._traced_ms is None or now_ms - self._traced_ms >= TRACE_MS:
            self._traced_ms = now_ms
            logger.error("an HTTP request failed with an unexpected error: please report this", exc_info=error)


class JsonRequestHandler(web.RequestHandler):
    """aiohttp's protocol of one connection. Its errors are JSON, and a client that sends invalid HTTP is logged at debug level."""

    def __init__(self, server: web.Server, errors: UnexpectedErrors, keepalive_seconds: float) -> None:
        super().__init__(
            server,
            loop=asyncio.get_running_loop(),
            keepalive_timeout=keepalive_seconds,
            access_log=None,  # type: ignore[arg-type]  # None is documented: no log of requests
            max_line_size=MAX_URL_BYTES,
            max_field_size=MAX_HEADER_BYTES,
            max_headers=MAX_HEADERS,
        )
        self._errors = errors

    def handle_error(
        self, request: web.BaseRequest, status: int = 500, exc: BaseException | None = None, message: str | None = None
    ) -> web.StreamResponse:
        """Return the response to a request that cannot be parsed, or whose handler failed; the connection is closed after it."""
        if isinstance(exc, HttpProcessingError):
            logger.debug("an invalid HTTP request was rejected remote=%s", request.remote, exc_info=exc)
        elif exc is not None:
            self._errors.trace(exc)
        if request.writer.output_size > 0:
            raise ConnectionError("a part of the response was sent, so no other response can be sent")
        reply = (
            parse_error_reply(exc)
            if isinstance(exc, HttpProcessingError)
            else error_reply("the server failed to answer: its log has the reason", status)
        )
        reply.headers["X-Content-Type-Options"] = "nosniff"
        reply.force_close()
        return reply

    async def finish_response(
        self, request: web.BaseRequest, resp: web.StreamResponse, start_time: float | None
    ) -> tuple[web.StreamResponse, bool]:
        """Send a response; errors that aiohttp raised outside of the application's handlers are converted to JSON."""
        if isinstance(resp, web.HTTPException) and resp.status >= web.HTTPBadRequest.status_code:
            resp = status_reply(request, resp)
        return await super().finish_response(request, resp, start_time)

    def log_exception(self, *args: Any, **kw: Any) -> None:
        """Log an error of the connection: at debug level if its client caused it, for example by an invalid body."""
        error = kw.get("exc_info")
        if isinstance(error, HttpProcessingError | web.RequestPayloadError | ConnectionError):
            logger.debug("a connection failed", exc_info=error)
        else:
            self._errors.trace(error if isinstance(error, BaseException) else None)
