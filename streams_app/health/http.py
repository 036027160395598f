"""The HTTP server of a worker: ``/metrics``, ``/health/…``, ``/groups``, ``/events`` and other pages, on a separate thread.

The thread answers even if the main loop hangs, which is when operators need it; only ``/groups`` waits for that loop. The server
listens on loopback by default. With ``http.token_file``, all pages except health require ``Authorization: Bearer …``. A page for
POST requests has a token of its own.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import errno
import hmac
import html
import logging
import threading
from collections.abc import Awaitable, Callable, Mapping
from typing import Final

from aiohttp import web

from streams_app.clock import Clock
from streams_app.errors import ConfigurationError, TryAgainError, UnknownFoldError
from streams_app.exact_json import encode
from streams_app.health.http_connections import BACKLOG, Connections, connection_limit
from streams_app.health.metrics import Metrics
from streams_app.health.status import NOT_READY_CAUSES, Status
from streams_app.settings import HttpSettings
from streams_app.settings.base import LAST_PORT

logger = logging.getLogger(__name__)

EVENTS_PAGE: Final = "/events"
ASYNCAPI_PAGE: Final = "/asyncapi.json"
GROUPS_SECONDS: Final = 5.0
GROUPS_DEFAULT: Final = 100
GROUPS_MAX: Final = 1_000
LONGEST_LIMIT: Final = 10
MAX_BODY_BYTES: Final = 16_384
PORTS_TRIED: Final = 100
START_SECONDS: Final = 10.0
SHUTDOWN_SECONDS: Final = 0.2

ALWAYS_SERVED: Final = {
    "/health/ready": "whether it is ready, and every reason why not",
    "/health/live": "whether its main loop runs",
    "/metrics": "for Prometheus",
}
CATALOGUE_PAGES: Final = {
    EVENTS_PAGE: "the events of its catalogue, and how their subscribers stand here",
    ASYNCAPI_PAGE: "the same as an AsyncAPI document",
}
NO_SCRIPTS: Final = {
    "Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'",
    "X-Content-Type-Options": "nosniff",
}

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class HttpServer:
    """Serves the HTTP pages of a worker on its own thread."""

    def __init__(
        self,
        settings: HttpSettings,
        status: Status,
        metrics: Metrics,
        clock: Clock,
        *,
        is_port_fixed: bool = True,
        console_url: str = "",
    ) -> None:
        """Create the server, without listening.

        Args:
            console_url: Address of the console, to which the page ``/`` links; empty: none is known.
            is_port_fixed: Whether a port that the settings name is the only one to try. If not, or if they name none, the next free
                port is used while the port is in use.
        """
        self._settings = settings
        self._is_port_fixed = is_port_fixed and settings.names_port
        self._token = settings.token
        self._status = status
        self._metrics = metrics
        self._clock = clock
        self._console_url = console_url
        self._connections = Connections(connection_limit(), clock)
        self._added: dict[str, tuple[Handler, str]] = {}
        self._posted: dict[str, tuple[Handler, str]] = {}
        self._closing: list[Callable[[], Awaitable[None]]] = []
        self._listener: asyncio.Server | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._main: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self.port: int | None = None

    @property
    def url(self) -> str:
        host = f"[{self._settings.host}]" if ":" in self._settings.host else self._settings.host
        return f"http://{host}:{self.port}"

    def add(self, path: str, handler: Handler, what: str, close: Callable[[], Awaitable[None]]) -> None:
        """Add a page; call this before :meth:`start`. The handler of the page runs on the thread of the server.

        Args:
            handler: Answers requests; it is cancelled if the client disconnects.
            close: Called on the thread of the server when the server ends.
        """
        self._added[path] = handler, what
        self._closing.append(close)

    def add_post(self, path: str, handler: Handler, close: Callable[[], Awaitable[None]], token: str) -> None:
        """Add a page that answers POST requests, and has a bearer token of its own; otherwise like :meth:`add`."""
        self._posted[path] = handler, token
        self._closing.append(close)

    def start(self) -> None:
        """Start the server on its own thread.

        Call this on the main event loop of the worker: requests for ``/groups`` are answered there.

        Raises:
            ConfigurationError: The settings name the port, and it is in use.
            TryAgainError: The server cannot listen, for example because no port is free.
        """
        self._main = asyncio.get_running_loop()
        started: concurrent.futures.Future[int] = concurrent.futures.Future()
        self._thread = threading.Thread(target=self._run, args=(started,), name="http", daemon=True)
        self._thread.start()
        try:
            self.port = started.result(START_SECONDS)
        except OSError as error:
            where = f"{self._settings.host}:{self._settings.port}"
            if error.errno == errno.EADDRINUSE and self._is_port_fixed:
                advice = "end the other process, choose another port, or leave the setting out, so that the next free port is taken"
                raise ConfigurationError([f"http.port: {where} is in use: {advice}"]) from error
            raise TryAgainError(f"cannot listen on {where}: {error}") from error
        logger.info("http listens url=%s", self.url)

    def stop(self) -> None:
        """Stop the server and end its thread; a second call does nothing."""
        loop, self._loop = self._loop, None
        if loop is not None and self._thread is not None:
            loop.call_soon_threadsafe(loop.stop)
            self._thread.join(GROUPS_SECONDS)

    def _run(self, started: concurrent.futures.Future[int]) -> None:
        loop = asyncio.new_event_loop()
        runner = web.AppRunner(self._application(), handler_cancellation=True, shutdown_timeout=SHUTDOWN_SECONDS)
        try:
            try:
                port = loop.run_until_complete(self._listen(runner))
            except OSError as error:
                started.set_exception(error)
                return
            self._loop = loop
            started.set_result(port)
            loop.run_forever()
        finally:
            if self._listener is not None:
                self._listener.close()
            loop.run_until_complete(runner.cleanup())
            loop.close()

    async def _listen(self, runner: web.AppRunner) -> int:
        await runner.setup()
        assert runner.server is not None
        factory, loop = self._connections.factory(runner.server), asyncio.get_running_loop()
        wanted = self._settings.port
        last = wanted if self._is_port_fixed else min(wanted + PORTS_TRIED - 1, LAST_PORT)
        for port in range(wanted, last + 1):
            try:
                self._listener = await loop.create_server(factory, self._settings.host, port, backlog=BACKLOG)
            except OSError as error:
                if error.errno != errno.EADDRINUSE or port == last:
                    raise
                logger.warning("http port taken, trying the next one port=%d", port)
                continue
            return int(self._listener.sockets[0].getsockname()[1])
        raise OSError(errno.EADDRINUSE, "no free port")

    def _application(self) -> web.Application:
        application = web.Application(middlewares=[self._answer, self._authorize], client_max_size=MAX_BODY_BYTES)
        application.router.add_get("/", self._index)
        application.router.add_get("/metrics", self._metrics_page)
        application.router.add_get("/health/live", self._live)
        application.router.add_get("/health/ready", self._ready)
        application.router.add_get("/groups", self._groups)
        for path in (EVENTS_PAGE, ASYNCAPI_PAGE):
            application.router.add_get(path, self._page)
        for path, (handler, _) in self._added.items():
            application.router.add_get(path, handler)
        for path, (handler, _) in self._posted.items():
            application.router.add_post(path, handler)
        application.on_cleanup.append(self._close_added)
        return application

    async def _close_added(self, _: web.Application) -> None:
        for close in self._closing:
            await close()

    @web.middleware
    async def _answer(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Middleware that suspends the time limit of a connection while the worker answers its request."""
        self._connections.request_begins(request.transport)
        try:
            return await handler(request)
        finally:
            self._connections.request_ends(request.transport)

    @web.middleware
    async def _authorize(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        token = self._posted[request.path][1] if request.path in self._posted else self._token
        if token and not request.path.startswith("/health/"):
            given = request.headers.get("Authorization", "")
            if not hmac.compare_digest(given.encode("utf-8", "surrogateescape"), f"Bearer {token}".encode()):
                return json_reply({"error": "a bearer token is needed: Authorization: Bearer ..."}, status=401)
        return await handler(request)

    async def _index(self, _: web.Request) -> web.Response:
        groups = {"/groups": "open groups of this worker, the longest quiet first"} if self._status.groups_provider else {}
        others = {path: CATALOGUE_PAGES.get(path, "") for path in sorted(self._status.pages)}
        others |= {path: what for path, (_, what) in self._added.items()}
        console = {self._console_url: "the console: the whole application in a browser"} if self._console_url else {}
        return web.Response(text=_index_of(console | ALWAYS_SERVED | groups | others), content_type="text/html", headers=NO_SCRIPTS)

    async def _metrics_page(self, _: web.Request) -> web.Response:
        # Evaluated at each scrape, because tasks that set metrics do not run while the main loop hangs.
        causes = self._status.causes(self._clock.monotonic_ms())
        for cause in NOT_READY_CAUSES:
            self._metrics.not_ready.labels(cause=cause).set(cause in causes)
        return web.Response(body=self._metrics.exposition(), headers={"Content-Type": "text/plain; version=0.0.4; charset=utf-8"})

    async def _live(self, _: web.Request) -> web.Response:
        live = self._status.is_live(self._clock.monotonic_ms())
        return json_reply({"live": live}, status=200 if live else 503)

    async def _ready(self, _: web.Request) -> web.Response:
        reasons = self._status.ready_reasons()
        if not self._status.is_live(self._clock.monotonic_ms()):
            reasons.append("the main loop hangs")
        fields = {"ready": not reasons, "reasons": reasons}
        if remarks := self._status.remarks():
            fields["remarks"] = remarks
        return json_reply(fields, status=503 if reasons else 200)

    async def _page(self, request: web.Request) -> web.Response:
        """Answer ``/events`` (events, and the status of subscribers) or ``/asyncapi.json``; 404 if the worker has no catalogue."""
        page = self._status.pages.get(request.path)
        if page is None:
            return json_reply({"error": "this worker has no catalogue: events.catalogue names none"}, status=404)
        return json_reply(page())

    async def _groups(self, request: web.Request) -> web.Response:
        """Answer ``/groups?fold=NAME&limit=N`` with open groups of this worker; those that are quiet for longest come first."""
        text = request.query.get("limit", str(GROUPS_DEFAULT))
        if not (text.isascii() and text.isdigit() and len(text) < LONGEST_LIMIT and 1 <= int(text) <= GROUPS_MAX):
            return json_reply({"error": f"limit must be a number from 1 to {GROUPS_MAX}"}, status=400)
        provider = self._status.groups_provider
        if provider is None or self._main is None:
            return json_reply({"error": "the worker is starting"}, status=503)

        async def ask() -> list[dict[str, object]]:
            return await provider(request.query.get("fold"), int(text))

        answer = asyncio.run_coroutine_threadsafe(ask(), self._main)
        try:
            rows = await asyncio.wait_for(asyncio.wrap_future(answer), GROUPS_SECONDS)
        except UnknownFoldError as error:
            return json_reply({"error": str(error)}, status=404)
        except Exception as error:  # noqa: BLE001  # any error of Redis: the page shows it, and the worker continues
            return json_reply({"error": f"cannot list groups now: {str(error) or type(error).__name__}"}, status=503)
        return json_reply({"groups": rows})


def _index_of(pages: Mapping[str, str]) -> str:
    """Return an HTML page with a link to each path and its description."""
    rows = "".join(
        f'<li><a href="{html.escape(path)}">{html.escape(path)}</a>{html.escape(f": {what}" if what else "")}</li>'
        for path, what in pages.items()
    )
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8"><title>streams_app worker</title>'
        "<style>body{font:1rem/1.6 system-ui,sans-serif;margin:2rem auto;max-width:44rem;padding:0 1rem}</style></head>"
        f"<body><h1>streams_app worker</h1><ul>{rows}</ul></body></html>"
    )


def json_reply(value: object, status: int = 200) -> web.Response:
    """Return an HTTP response with a value as JSON."""
    return web.Response(body=encode(value), status=status, content_type="application/json")
