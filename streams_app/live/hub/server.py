"""HTTP routes for browsers: ``/live/PAGE`` as JSON, ``/live/PAGE/events`` as a stream, ``/live.js``, an example page at ``/``."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import html
import logging
import random
import re
import secrets
import socket
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from importlib.resources import files
from typing import Any, Final

import orjson
from aiohttp import web

from streams_app.clock import Clock
from streams_app.formatting import suggestion
from streams_app.health.http_addresses import client_of, is_allowed_authority
from streams_app.health.http_connections import Connections
from streams_app.health.http_errors import status_reply
from streams_app.health.metrics import Metrics
from streams_app.live.hub.connection import Connection
from streams_app.live.hub.hub import Hub
from streams_app.live.hub.sockets import RESERVE, connections_within
from streams_app.live.hub.stream import EventStream
from streams_app.live.hub.tokens import COOKIE, PageToken, TokenError, TokenVerifier
from streams_app.settings import Settings
from streams_app.settings.live import LiveView

logger = logging.getLogger(__name__)

PAGE: Final = "/live/{page:[^/]+}"
"""Path of a page. By default, aiohttp accepts no braces in a part of a path."""

MAX_VIEWS: Final = 8
MAX_PAGE_BYTES: Final = 512
TAB: Final = re.compile(r"[A-Za-z0-9_-]{8,64}")
MAX_SHOWN_CHARACTERS: Final = 200
"""Maximum number of characters of a header that the error about it repeats."""

JSON_SECONDS: Final = 8.0
"""Timeout in seconds of a request for JSON. Such a request waits for the next poll, so its timeout exceeds that of Redis."""

BACKLOG: Final = 1_024
CHECK_SECONDS: Final = 1.0
BYE_SECONDS: Final = 3.0
LAST_RETRY_AFTER: Final = 10
HEADERS: Final = {
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Content-Security-Policy": "default-src 'none'; frame-ancestors 'none'",
}

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class RequestError(Exception):
    """Raised by a handler to reject a request with an HTTP status.

    ``reason`` is the label of the metric ``live_refused``; ``headers`` are added to the response.
    """

    def __init__(self, status: int, reason: str, message: str, headers: dict[str, str] | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.reason = reason
        self.headers = headers or {}


class ViewServer:
    """Serves live views over HTTP.

    Attributes:
        max_streams: Maximum number of browser tabs that are served: that of the settings, or fewer if the process has too few file
            descriptors.
    """

    def __init__(
        self, settings: Settings, hub: Hub, tokens: TokenVerifier, clock: Clock, metrics: Metrics, *, has_page: bool
    ) -> None:
        """Create the server, without listening; ``has_page``: with an example page at ``/``."""
        self._server = settings.live_server
        self._proxies = self._server.proxy_networks
        self._views = {view.name: view for view in settings.live}
        self._hub = hub
        self._tokens = tokens
        self._clock = clock
        self._metrics = metrics
        self.max_streams = connections_within(self._server.connections)
        self.sockets = Connections(self.max_streams + RESERVE, clock)
        self._streams: set[EventStream] = set()
        self._is_ending = False
        self._all_left = asyncio.Event()
        self._script = web_file("live.js").encode()
        self._page, self._page_policy = _page(settings.live) if has_page else (b"", "")

    def application(self) -> web.Application:
        application = web.Application(middlewares=[self._answer], client_max_size=1024)
        add = application.router.add_get
        add("/live.js", self._live_js)
        add(PAGE, self._json)
        add(f"{PAGE}/events", self._events, allow_head=False)
        if self._page:
            add("/", self._example)
        return application

    async def listen(self, listening: socket.socket, runner: web.AppRunner) -> asyncio.Server:
        """Serve HTTP on a listening socket by the result of :meth:`runner`, which this call sets up; return the running server.

        The number of connections is limited. A connection whose client sends nothing for too long is closed.
        """
        await runner.setup()
        assert runner.server is not None
        factory = self.sockets.factory(runner.server)
        return await asyncio.get_running_loop().create_server(factory, sock=listening, backlog=BACKLOG)

    def runner(self, shutdown_seconds: float) -> web.AppRunner:
        """Create the runner for :meth:`listen`; its clean-up waits ``shutdown_seconds`` at most for responses in progress."""
        return web.AppRunner(self.application(), handler_cancellation=True, shutdown_timeout=shutdown_seconds)

    async def check_forever(self) -> None:
        """Once a second, send due beats, end streams whose token is no longer valid, and disconnect browsers that do not read."""
        while True:
            monotonic_ms = self._clock.monotonic_ms()
            for stream in list(self._streams):
                stream.check(monotonic_ms)
            await asyncio.sleep(CHECK_SECONDS)

    async def end(self) -> None:
        """End all streams with the event ``bye``; return when all have ended, or after :data:`BYE_SECONDS`.

        From then on, requests for views are rejected.
        """
        self._is_ending = True
        for stream in self._streams:
            stream.connection.end()
        if self._streams:
            with suppress(TimeoutError):
                await asyncio.wait_for(self._all_left.wait(), BYE_SECONDS)

    @web.middleware
    async def _answer(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Call the handler of a request, convert errors to JSON responses, and add the security and CORS headers."""
        allowed: dict[str, str] = {}
        self.sockets.request_begins(request.transport)
        try:
            self._require_authority(request)
            allowed = self._allow_origin(request)
            response = await handler(request)
        except RequestError as error:
            self._metrics.live_refused.labels(reason=error.reason).inc()
            response = _json({"error": str(error)}, error.status, error.headers)
        except web.HTTPException as error:
            response = status_reply(request, error)
        finally:
            self.sockets.request_ends(request.transport)
        if not response.prepared:
            for name, value in {**HEADERS, **allowed}.items():
                response.headers.setdefault(name, value)
        return response

    def _require_authority(self, request: web.Request) -> None:
        authority = request.headers.get("Host")
        if not is_allowed_authority(authority, self._server.hosts):
            shown = ascii((authority or "")[:MAX_SHOWN_CHARACTERS])[1:-1]
            raise RequestError(403, "host", f"the host {shown} is not allowed: live_server.hosts does not contain it")

    def _allow_origin(self, request: web.Request) -> dict[str, str]:
        if request.path == "/live.js":
            return {"Access-Control-Allow-Origin": "*"}
        origin = request.headers.get("Origin")
        if origin is None:
            return {"Vary": "Origin"}
        is_own = origin.removeprefix("https://").removeprefix("http://") == request.host
        if origin not in self._server.origins and not (is_own and "://" in origin):
            shown = ascii(origin[:MAX_SHOWN_CHARACTERS])[1:-1]
            raise RequestError(403, "origin", f"pages of {shown} are not allowed: live_server.origins does not contain this origin")
        return {"Access-Control-Allow-Origin": origin, "Access-Control-Allow-Credentials": "true", "Vary": "Origin"}

    async def _live_js(self, _: web.Request) -> web.Response:
        headers = {"Cache-Control": "max-age=300"}
        return web.Response(body=self._script, content_type="text/javascript", charset="utf-8", headers=headers)

    async def _example(self, _: web.Request) -> web.Response:
        headers = {"Content-Security-Policy": self._page_policy, "Cache-Control": "no-store"}
        return web.Response(body=self._page, content_type="text/html", charset="utf-8", headers=headers)

    async def _json(self, request: web.Request) -> web.Response:
        page, views, _ = self._asked(request)
        connection = Connection(page, views)
        self._hub.open(connection)
        try:
            async with asyncio.timeout(JSON_SECONDS):
                states = await connection.states()
        except TimeoutError:
            raise RequestError(503, "redis", "Redis does not answer: try again", _retry_after()) from None
        finally:
            self._hub.close(connection)
        found = {"views": [state.to_dict() for state in states], "now_ms": self._clock.now_ms()}
        return _json(found, headers={"Cache-Control": "no-store"})

    async def _events(self, request: web.Request) -> web.StreamResponse:
        tab = request.query.get("tab")
        if tab is not None and not TAB.fullmatch(tab):
            raise RequestError(400, "tab", "tab must be 8 to 64 of a-z A-Z 0-9 _ -: an id that the page creates")
        page, views, allowed = self._asked(request)
        member = tab or secrets.token_urlsafe(12)
        if allowed is not None and any(view.people for view in views) and allowed[2].sub:
            member = f"{member} {allowed[2].sub}"
        connection = Connection(page, views, member, self._client_of(request, allowed))
        stream = EventStream(connection, request, self._clock, self._metrics, allowed, self._server.beat_ms)
        headers = {**HEADERS, **self._allow_origin(request)}
        self._streams.add(stream)
        self._hub.open(connection)
        try:
            return await stream.write(headers)
        finally:
            self._streams.discard(stream)
            if self._is_ending and not self._streams:
                self._all_left.set()
            self._hub.close(connection)

    def _client_of(self, request: web.Request, allowed: tuple[TokenVerifier, str, PageToken] | None) -> str:
        if allowed is not None and allowed[2].sub:
            return f"sub {allowed[2].sub}"
        return client_of(request.remote, request.headers.getall("X-Forwarded-For", ()), self._proxies)

    def _asked(self, request: web.Request) -> tuple[str, list[LiveView], tuple[TokenVerifier, str, PageToken] | None]:
        """Validate and authorize a request for views; return the page and the views.

        If a view is not public, also return the verifier, the text and the content of the token; otherwise None instead of these.
        """
        page = request.match_info["page"]
        if not page or len(page.encode("utf-8", "surrogatepass")) > MAX_PAGE_BYTES:
            raise RequestError(400, "page", f"the name of a page has at most {MAX_PAGE_BYTES} bytes")
        views = self._asked_views(request)
        allowed = self._allowed(request, page) if any(not view.public for view in views) else None
        if self._is_ending or len(self._hub.connections) >= self.max_streams:
            why = "this server is shutting down" if self._is_ending else "this server has reached its maximum of connections"
            raise RequestError(503, "full", f"{why}: try again", _retry_after())
        return page, views, allowed

    def _asked_views(self, request: web.Request) -> list[LiveView]:
        names = list(dict.fromkeys(request.query.getall("view", [])))
        if not 1 <= len(names) <= MAX_VIEWS:
            raise RequestError(400, "views", f"name 1 to {MAX_VIEWS} views: ?view=NAME&view=NAME")
        for name in names:
            if name not in self._views:
                raise RequestError(404, "view", f"there is no live view {name!r}{suggestion(name, list(self._views))}")
        return [self._views[name] for name in names]

    def _allowed(self, request: web.Request, page: str) -> tuple[TokenVerifier, str, PageToken]:
        text = request.cookies.get(COOKIE, "")
        try:
            token = self._tokens.accepted(text)
        except TokenError as error:
            raise RequestError(401, "token", str(error)) from error
        if not token.allows(page):
            raise RequestError(403, "page-not-in-token", "the token is not for this page")
        return self._tokens, text, token


def _retry_after() -> dict[str, str]:
    return {"Retry-After": str(random.randint(1, LAST_RETRY_AFTER))}  # no secret


def _json(value: Any, status: int = 200, headers: dict[str, str] | None = None) -> web.Response:
    return web.Response(body=orjson.dumps(value), status=status, content_type="application/json", headers=headers)


def web_file(name: str) -> str:
    """Return the text of a file that is served to browsers."""
    return (files("streams_app.live") / "web" / name).read_text("utf-8")


def _page(views: Sequence[LiveView]) -> tuple[bytes, str]:
    """Return the example page for the public views, and its content security policy with the digests of its script and style."""
    shown = [{"view": view.name, "kind": view.kind} for view in views if view.public]
    text = web_file("page.html").replace("VIEWS", html.escape(orjson.dumps(shown).decode()))
    digests = {
        kind: base64.b64encode(hashlib.sha256(found[1].encode()).digest()).decode()
        for kind in ("script", "style")
        if (found := re.search(rf"<{kind}[^>]*>(.*?)</{kind}>", text, re.DOTALL))
    }
    return text.encode(), (
        f"default-src 'none'; script-src 'self' 'sha256-{digests['script']}'; style-src 'sha256-{digests['style']}'; "
        "connect-src 'self'; img-src data:; base-uri 'none'; form-action 'self'; frame-ancestors 'none'"
    )
