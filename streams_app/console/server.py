"""The HTTP server of the console: pages as HTML, as JSON and as a stream of changes; login; files for browsers."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import Any, Final
from urllib.parse import quote

import msgspec
from aiohttp import web
from msgspec.structs import replace

from streams_app.console.access import COOKIE, SESSION_MS, Sessions
from streams_app.console.action_routes import ActionRoutes
from streams_app.console.actions.registry import openapi
from streams_app.console.pages.paths import fold_path, store_path
from streams_app.console.pages.registry import ConsolePage
from streams_app.console.pages.rendering import NavigationLink, NavigationSection, Shell, render, static_file
from streams_app.console.pages.search import pages_of
from streams_app.console.reading.asking import Asked, OtherPage, PageError
from streams_app.console.reading.console_reader import ConsoleReader
from streams_app.delivery.dependency_errors import DEPENDENCY_ERRORS
from streams_app.errors import StreamsAppError, TryAgainError, text_of
from streams_app.exact_json import encode
from streams_app.health.http_addresses import is_allowed_authority
from streams_app.health.http_connections import Connections
from streams_app.health.http_errors import UnexpectedErrors
from streams_app.requirements.declarations import Declarations
from streams_app.settings import Settings

logger = logging.getLogger(__name__)

STREAM_SECONDS: Final = 2.0
"""How often an open page is compared with what its browser has."""

RENDERED_MS: Final = 500
"""Time for which browsers share a rendered page; its parts are shared for longer."""

BEAT_SECONDS: Final = 15.0
WRITE_SECONDS: Final = 20.0
"""A browser that reads nothing for this long is disconnected."""

MAX_STREAMS: Final = 400
MAX_BODY: Final = 16_384
FILES: Final = {
    "app.css": "text/css", "app.js": "text/javascript", "icon.svg": "image/svg+xml", "vendor/htmx.min.js": "text/javascript",
    "vendor/hx-sse.min.js": "text/javascript", "vendor/uPlot.iife.min.js": "text/javascript", "vendor/uPlot.min.css": "text/css",
}  # fmt: skip
"""Files that are served to browsers, with their types."""

SECTIONS: Final = {
    "page": "", "fold": "Folds", "subscriber": "Subscribers", "read store": "Read stores", "live view": "Live views",
    "journal": "Journals", "topic": "Topics",
}  # fmt: skip
"""Heading of the navigation for each kind of page."""

HEADERS: Final = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
        "form-action 'self'; frame-ancestors 'none'; base-uri 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "same-origin",  # with no-referrer, browsers send forms without their origin
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}
OPEN_PATHS: Final = ("/login", "/static/", "/health")
"""Paths that are answered without a session."""

MAY_SEE: Final = web.RequestKey("may_see", bool)
"""Key of a request: whether its client may see names of the application, which are in the navigation of each page."""

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class ConsoleServer:
    """Serves the pages; it computes nothing, and forgets everything when it ends."""

    def __init__(
        self,
        pages: Sequence[ConsolePage],
        settings: Settings,
        declarations: Declarations,
        reader: ConsoleReader,
        sockets: Connections,
    ) -> None:
        """Create the server, without listening.

        Raises:
            ConfigurationError: The token cannot be read.
        """
        self._pages = pages
        self._settings = settings
        self._declarations = declarations
        self._reader = reader
        self._sockets = sockets
        token = settings.console.token
        self._sessions = None if token is None else Sessions(token, reader.clock)
        self._errors = UnexpectedErrors(reader.clock)
        self._streams: set[asyncio.Task[Any]] = set()
        self._actions: ActionRoutes | None = None
        if settings.console.allow_actions:
            self._actions = ActionRoutes(settings, declarations, reader, self)
        self._openapi = encode(openapi(settings.app_id, pages, has_actions=self._actions is not None))

    def application(self) -> web.Application:
        application = web.Application(middlewares=[self._answer, self._authorize], client_max_size=MAX_BODY)
        for page in self._pages:
            # First, because a name in the other path may contain a point, too.
            application.router.add_get(page.json_path, self._handler(page, as_json=True))
            application.router.add_get(page.path, self._handler(page))
        if self._actions is not None:
            self._actions.add_to(application.router)
        application.router.add_get("/openapi.json", self._openapi_json)
        application.router.add_get("/static/{name:.+}", self._static)
        application.router.add_get("/health/live", self._live)
        application.router.add_get("/login", self._login_form)
        application.router.add_post("/login", self._login)
        application.router.add_post("/logout", self._logout)
        application.router.add_post("/folds/{fold}/window", self._compute_window)
        application.router.add_post("/read-stores/{store}/verify", self._verify_store)
        return application

    async def end(self) -> None:
        """End all streams and actions."""
        for task in self._streams:
            task.cancel()
        if self._actions is not None:
            await self._actions.close()

    # Around each request

    @web.middleware
    async def _answer(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Call the handler of a request, show errors as pages or as JSON, and add the security headers."""
        self._sockets.request_begins(request.transport)
        try:
            self._require_own_name(request)
            response = await handler(request)
        except PageError as error:
            response = self._error(request, error.status, str(error))
        except OtherPage as answer:
            response = web.Response(status=303, headers={"Location": answer.link})
        except web.HTTPException as error:
            if error.status < web.HTTPBadRequest.status_code:
                response = web.Response(status=error.status, headers=error.headers)
            else:
                response = self._error(request, error.status, _HTTP_TEXTS.get(error.status, error.reason))
                response.headers.update({name: value for name, value in error.headers.items() if name == "Allow"})
        except StreamsAppError as error:
            response = self._error(request, 503, str(error))
        except DEPENDENCY_ERRORS as error:
            response = self._error(request, 503, f"A server did not answer in time, or failed: {text_of(error)}")
        except Exception as error:  # noqa: BLE001  # a defect of one page; the others go on
            self._errors.trace(error)
            response = self._error(request, 500, "The console failed to answer: its log has the reason")
        finally:
            self._sockets.request_ends(request.transport)
        if not response.prepared:
            for name, value in HEADERS.items():
                response.headers.setdefault(name, value)
        return response

    def _require_own_name(self, request: web.Request) -> None:
        if not is_allowed_authority(request.headers.get("Host"), self._settings.console.hosts):
            raise PageError(403, "This address is not one of the console: console.public_url must name it")

    @web.middleware
    async def _authorize(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        is_open = self._sessions is not None and request.path.startswith(OPEN_PATHS)
        request[MAY_SEE] = not is_open and (self._sessions is None or self._has_session(request, self._sessions))
        if is_open or request[MAY_SEE]:
            return await handler(request)
        if wants_json(request) or wants_stream(request) or request.path.endswith(".json"):
            raise PageError(401, "A token is needed: Authorization: Bearer ..., or the cookie of a session")
        raise web.HTTPSeeOther(f"/login?next={quote(request.path_qs, safe='')}")

    def _has_session(self, request: web.Request, sessions: Sessions) -> bool:
        return sessions.is_valid(request.cookies.get(COOKIE, "")) or self._is_bearer(request, sessions)

    def _is_bearer(self, request: web.Request, sessions: Sessions) -> bool:
        kind, _, token = request.headers.get("Authorization", "").partition(" ")
        if kind.lower() != "bearer":
            return False
        self._require_attempt(request, sessions)
        if sessions.is_right(token.strip()):
            return True
        sessions.failed(request.remote or "")
        return False

    @staticmethod
    def _require_attempt(request: web.Request, sessions: Sessions) -> None:
        if not sessions.may_attempt(request.remote or ""):
            raise PageError(429, "Too many wrong tokens: wait for a minute")

    # Pages

    def _handler(self, page: ConsolePage, *, as_json: bool = False) -> Handler:
        async def answer(request: web.Request) -> web.StreamResponse:
            if as_json or wants_json(request):
                return _json(await self._model(page, request, self._reader.patient()))
            if wants_stream(request) and page.is_live:
                return await self.stream(request, lambda: self._main(page, request))
            body = await self._main(page, request)
            return self._framed(self._shell(request, page), body)

        return answer

    @staticmethod
    def _framed(shell: Shell, body: str, status: int = 200) -> web.Response:
        text = render("page.html", shell=shell, main=body)
        return web.Response(text=text, status=status, content_type="text/html", headers={"Vary": "Accept"})

    async def _model(self, page: ConsolePage, request: web.Request, reader: ConsoleReader) -> Any:
        return await page.collect(reader, self._declarations, Asked(request.match_info, request.query))

    async def _main(self, page: ConsolePage, request: web.Request) -> str:
        """Return the changing part of a page, which all browsers share that ask at about the same time."""

        async def rendered() -> str:
            return page.html(await self._model(page, request, self._reader))

        key = ("main", request.path, *sorted(request.query.items()))
        return await self._reader.shared.get(key, rendered, RENDERED_MS)

    async def stream(self, request: web.Request, main: Callable[[], Awaitable[str]]) -> web.StreamResponse:
        """Send the changing part of a page as server-sent events: at once, and then whenever it has changed."""
        if len(self._streams) >= MAX_STREAMS:
            raise PageError(503, "Too many pages are open: this one stays as it is")
        first = await main()
        response = web.StreamResponse(headers={**HEADERS, "Content-Type": "text/event-stream", "X-Accel-Buffering": "no"})
        await response.prepare(request)
        task = asyncio.current_task()
        assert task is not None  # a handler always runs in a task
        self._streams.add(task)
        try:
            with suppress(ConnectionError, TimeoutError, asyncio.CancelledError):
                await self._send_changes(request, response, main, first)
        finally:
            self._streams.discard(task)
        return response

    async def _send_changes(
        self, request: web.Request, response: web.StreamResponse, main: Callable[[], Awaitable[str]], sent: str
    ) -> None:
        clock = self._reader.clock
        beat_ms = clock.monotonic_ms()
        await _write(response, event(sent))
        while True:
            await asyncio.sleep(STREAM_SECONDS)
            if self._sessions is not None and not self._has_session(request, self._sessions):
                return
            try:
                found = await main()
            except PageError:
                return  # what the page was about is no longer declared
            if found != sent:
                await _write(response, event(found))
                sent, beat_ms = found, clock.monotonic_ms()
            elif clock.monotonic_ms() - beat_ms >= BEAT_SECONDS * 1_000:
                await _write(response, b": beat\n\n")
                beat_ms = clock.monotonic_ms()

    def _shell(self, request: web.Request, page: ConsolePage | None = None, title: str = "") -> Shell:
        json_path, names = "", dict(request.match_info)
        if page is not None:
            raw = request.rel_url.raw_query_string  # the other one is decoded: an & of a key would end its parameter
            query = f"?{raw}" if raw else ""
            json_path = page.json_path.format(**{name: quote(value, safe="") for name, value in names.items()}) + query
            title = page.title.format(**names)
        sections = self._sections() if request.get(MAY_SEE) else []
        return Shell(
            self._settings.app_id, title, request.path, request.path_qs, json_path, sections,
            page is not None and page.is_live,
            self._sessions is not None and page is not None, self._reader.clock.now_ms(),
        )  # fmt: skip

    # What the actions need

    def page(
        self, request: web.Request, title: str, body: str, *, status: int = 200, json_path: str = "", is_live: bool = False
    ) -> web.Response:
        """Return a page with a body."""
        shell = replace(
            self._shell(request, title=title), json_path=json_path, is_live=is_live, has_session=self._sessions is not None
        )
        return self._framed(shell, body, status)

    def wants(self, request: web.Request) -> str:
        """Return what a client accepts: ``html``, ``json`` or ``stream``."""
        return "json" if wants_json(request) else "stream" if wants_stream(request) else "html"

    def has_token(self, request: web.Request) -> bool:
        """Return whether a request has the token itself, not only the cookie of a session."""
        return self._sessions is not None and self._is_bearer(request, self._sessions)

    def _sections(self) -> list[NavigationSection]:
        found: dict[str, list[NavigationLink]] = {}
        for page in pages_of(self._declarations):
            found.setdefault(SECTIONS[page.kind], []).append(NavigationLink(page.name, page.link))
        return [NavigationSection(title, entries) for title, entries in found.items()]

    def _error(self, request: web.Request, status: int, text: str) -> web.Response:
        if wants_json(request) or wants_stream(request) or request.path.endswith(".json"):
            return _json({"error": text}, status)
        return self._framed(self._shell(request, title=f"{status}"), render("error.html", status=status, text=text), status)

    # Others

    async def _openapi_json(self, _: web.Request) -> web.Response:
        return web.Response(body=self._openapi, content_type="application/json")

    async def _live(self, _: web.Request) -> web.Response:
        return _json({"live": True})

    async def _static(self, request: web.Request) -> web.Response:
        name = request.match_info["name"]
        if name not in FILES:
            raise web.HTTPNotFound
        headers = {"Cache-Control": "public, max-age=31536000, immutable"}
        return web.Response(body=static_file(name), content_type=FILES[name], charset="utf-8", headers=headers)

    async def _login_form(self, request: web.Request) -> web.Response:
        return self._login_page(request, "")

    def _login_page(self, request: web.Request, fault: str, status: int = 200) -> web.Response:
        text = render(
            "login.html", shell=self._shell(request, title="Log in"), next=_local(request.query.get("next", "/")), fault=fault
        )
        return web.Response(text=text, status=status, content_type="text/html")

    async def _login(self, request: web.Request) -> web.StreamResponse:
        if self._sessions is None:
            raise web.HTTPSeeOther("/")
        self.require_own_origin(request)
        self._require_attempt(request, self._sessions)
        form = await request.post()
        token = form.get("token", "")
        if not isinstance(token, str) or not self._sessions.is_right(token.strip()):
            self._sessions.failed(request.remote or "")
            return self._login_page(request, "This is not the token.", 403)
        response = web.Response(status=303, headers={"Location": _local(request.query.get("next", "/"))})
        response.set_cookie(
            COOKIE, self._sessions.cookie(), httponly=True, samesite="Lax", max_age=SESSION_MS // 1_000,
            secure=self._settings.console.is_secure,
        )  # fmt: skip
        return response

    async def _logout(self, request: web.Request) -> web.StreamResponse:
        self.require_own_origin(request)
        response = web.Response(status=303, headers={"Location": "/login"})
        response.del_cookie(COOKIE)
        return response

    async def _verify_store(self, request: web.Request) -> web.StreamResponse:
        """Begin to compare a read store with its source, which changes nothing, so it needs no right to act."""
        self.require_own_origin(request)
        stores = {store.name: store for store in self._settings.read_stores}
        name = Asked(request.match_info, request.query).named("store", stores, "read store")
        try:
            self._reader.comparisons.start(stores[name])
        except TryAgainError as error:
            raise PageError(409, f"{error}") from error
        return web.Response(status=303, headers={"Location": f"{store_path(name)}#comparison"})

    async def _compute_window(self, request: web.Request) -> web.StreamResponse:
        """Begin to compute the curve of ``tune`` for a fold; it reads Kafka and changes nothing, so it needs no right to act."""
        self.require_own_origin(request)
        names = [fold.name for fold in self._settings.folds]
        name = Asked(request.match_info, request.query).named("fold", names, "fold")
        try:
            self._reader.tuning.start(self._settings.fold(name))
        except TryAgainError as error:
            raise PageError(409, f"{error}") from error
        return web.Response(status=303, headers={"Location": f"{fold_path(name)}#window"})

    def require_own_origin(self, request: web.Request) -> None:
        """Reject a form of another web site; browsers send ``Origin`` with each form."""
        origin = request.headers.get("Origin")
        own = (f"http://{request.host}", f"https://{request.host}", self._settings.console.public_url)
        if origin is not None and origin not in own:
            raise PageError(403, "This form is of another web site")


_HTTP_TEXTS: Final = {
    404: "There is no such page.",
    405: "This address takes no such requests.",
    413: f"The request is too large: its body has at most {MAX_BODY:,} bytes.",
}


def wants_json(request: web.Request) -> bool:
    """Return whether the first type that a client accepts is JSON."""
    return request.headers.get("Accept", "").partition(",")[0].partition(";")[0].strip() == "application/json"


def wants_stream(request: web.Request) -> bool:
    """Return whether a client accepts server-sent events, as htmx does for its streams only."""
    return request.headers.get("HX-Request") == "true" and "text/event-stream" in request.headers.get("Accept", "")


def event(text: str) -> bytes:
    """Return HTML as a server-sent event, in which each line is a line of data."""
    return b"".join(b"data: %b\n" % line for line in text.encode("utf-8", "replace").splitlines() if line.strip()) + b"\n"


def _local(path: str) -> str:
    """Return a path of the console; ``/`` for anything that may lead to another host."""
    is_local = path.startswith("/") and not path.startswith(("//", "/\\")) and path.isprintable() and "\\" not in path
    return path if is_local else "/"


async def _write(response: web.StreamResponse, data: bytes) -> None:
    async with asyncio.timeout(WRITE_SECONDS):
        await response.write(data)


def _json(value: Any, status: int = 200) -> web.Response:
    body = encode(msgspec.to_builtins(value, str_keys=True))
    return web.Response(body=body, status=status, content_type="application/json", headers={"Vary": "Accept"})
