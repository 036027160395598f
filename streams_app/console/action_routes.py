"""The HTTP of the actions: forms and their tokens, plans, confirmations and progress; the same for programs, as JSON."""

from __future__ import annotations

import asyncio
import re
import secrets
from collections.abc import Awaitable, Callable
from typing import Any, Final, Protocol

import msgspec
import orjson
from aiohttp import web

from streams_app.console.access import COOKIE, FORM_COOKIE, Forms
from streams_app.console.actions.jobs import ActionJob, InProgressError, Jobs, RunningJob
from streams_app.console.actions.model import (
    CONFIRMATION,
    OBJECT,
    PLAN,
    ActionContext,
    ActionField,
    ActionInput,
    ActionKind,
    ActionPlan,
    ActionProgress,
    PreparedAction,
)
from streams_app.console.actions.registry import ACTIONS, JOB_PATH
from streams_app.console.pages.action_links import ACTIONS_PATH
from streams_app.console.pages.rendering import render
from streams_app.console.reading.asking import PageError
from streams_app.console.reading.console_reader import ConsoleReader
from streams_app.errors import ConfigurationError, StreamsAppError, TryAgainError
from streams_app.formatting import escaped
from streams_app.requirements.declarations import Declarations
from streams_app.settings import Settings

PLAN_SECONDS: Final = 10.0
"""Time for a plan that is made while a browser waits."""

PLANS_AT_ONCE: Final = 2
ANSWER_SECONDS: Final = 10.0
"""Time for which a program that has begun a plan or an action waits for its end."""

FORM_TYPE: Final = "application/x-www-form-urlencoded"
MOST_OF_USER: Final = 120
_PLAIN_USER: Final = re.compile(r"[\w.@+:/-]+", re.ASCII)

NEW_BROWSER: Final = web.RequestKey("new_browser", str)
"""Cookie that the answer sets, because the browser has none."""

FAULTS: Final = {
    "missing": "This form has no token: open the action in this browser, with cookies, and confirm it there",
    "foreign": "This form is of another browser, another session or a former console: open the action again. Nothing was done",
    "expired": "This form has expired: open the action again. Nothing was done",
}


class Frame(Protocol):
    """What the server around the actions does for them."""

    def page(
        self, request: web.Request, title: str, body: str, *, status: int = 200, json_path: str = "", is_live: bool = False
    ) -> web.Response:
        """Return a page of the console with a body."""

    async def stream(self, request: web.Request, main: Callable[[], Awaitable[str]]) -> web.StreamResponse:
        """Send the body of a page as server-sent events, whenever it has changed."""

    def wants(self, request: web.Request) -> str:
        """Return what a client accepts: ``html``, ``json`` or ``stream``."""

    def has_token(self, request: web.Request) -> bool:
        """Return whether a request has the token of the console, not only the cookie of a session."""

    def require_own_origin(self, request: web.Request) -> None:
        """Reject a form of another web site."""


class ActionForm(msgspec.Struct, frozen=True):
    """An action on one object, before it is confirmed.

    Attributes:
        options: Fields on which the plan depends.
        plan_values: Their values, by name.
        hidden: Input that is sent with the form: names and values.
        plan: None: it was not asked for, or cannot be made.
        fault: Why the plan cannot be made, or why the confirmation was not accepted.
        once: Identifies this form, so that it begins its action once.
        by: Who is going to be named in the audit line.
    """

    action: str
    title: str
    verb: str
    what: str
    command: str
    name: str
    kind: str
    back: str
    is_slow: bool
    must_type: bool
    options: list[ActionField]
    plan_values: dict[str, list[str]]
    hidden: list[tuple[str, str]]
    confirmation: list[ActionField]
    given: dict[str, str]
    plan: ActionPlan | None
    fault: str
    token: str
    once: str
    by: str


class ActionRoutes:
    """Answers the requests for actions; exists only if the console has actions."""

    def __init__(self, settings: Settings, declarations: Declarations, reader: ConsoleReader, frame: Frame) -> None:
        self._kinds = {kind.name: kind for kind in ACTIONS}
        self._context = ActionContext(settings, declarations, reader.clock)
        self._frame = frame
        self._forms = Forms(reader.clock)
        self._jobs = Jobs(reader.clock)
        self._planning = asyncio.Semaphore(PLANS_AT_ONCE)

    def add_to(self, router: web.UrlDispatcher) -> None:
        router.add_get(f"{JOB_PATH}.json", self._job_json)
        router.add_get(JOB_PATH, self._job)
        router.add_post(f"{JOB_PATH}/stop", self._stop)
        router.add_post(f"{ACTIONS_PATH}/{{action}}/plan.json", self._plan_json)
        router.add_post(f"{ACTIONS_PATH}/{{action}}/plan", self._plan)
        router.add_post(f"{ACTIONS_PATH}/{{action}}.json", self._confirm_json)
        router.add_get(f"{ACTIONS_PATH}/{{action}}", self._show)
        router.add_post(f"{ACTIONS_PATH}/{{action}}", self._confirm)

    async def close(self) -> None:
        """End the actions that run, as an interrupted command ends."""
        await self._jobs.close()

    # For browsers

    async def _show(self, request: web.Request) -> web.StreamResponse:
        """Show what an action would do."""
        kind = self._kind(request)
        given = ActionInput({name: request.query.getall(name) for name in request.query})
        action = _prepared(kind, self._context, given)
        return await self._form(request, kind, action)

    async def _plan(self, request: web.Request) -> web.StreamResponse:
        """Begin to find out what an action would do, and send the browser to the progress."""
        kind = self._kind(request)
        given = await self._form_input(request)
        action = _prepared(kind, self._context, given)
        if missing := _missing(kind, given, PLAN):
            return await self._form(request, kind, action, fault=missing, status=422)
        return _see(self._jobs.begin_plan(kind, action, self._user(request)))

    async def _confirm(self, request: web.Request) -> web.StreamResponse:
        """Begin an action whose plan was confirmed, and send the browser to the progress."""
        kind = self._kind(request)
        given = await self._form_input(request)
        action = _prepared(kind, self._context, given)
        fault = _missing(kind, given, PLAN, CONFIRMATION) or _unconfirmed(action, given)
        if fault:
            job = self._jobs.kept.get(given.text("once"))
            plan = None if job is None else job.plan
            return await self._form(request, kind, action, fault=fault, given=given, plan=plan, status=422)
        try:
            job = self._jobs.begin_run(kind, action, given.text("plan"), given, self._user(request), given.text("once"))
        except InProgressError as error:
            job = error.job
        return _see(job)

    async def _stop(self, request: web.Request) -> web.StreamResponse:
        await self._form_input(request)
        job = self._job_of(request)
        self._jobs.stop(job)
        return _see(job)

    async def _job(self, request: web.Request) -> web.StreamResponse:
        job = self._job_of(request)
        wanted = self._frame.wants(request)
        if wanted == "json":
            return _json(job.view())

        async def main() -> str:
            form = None
            if job.plan is not None:
                form = self._form_of(request, job.kind, job.action, job.plan, once=job.id)
            return render(
                "action_job.html", job=job.view(), form=form, kind=job.kind, target=job.action.target, can_stop=job.can_stop,
                token=self._token(request),
            )  # fmt: skip

        if wanted == "stream":
            return await self._frame.stream(request, main)
        title = f"{job.kind.title}: {job.action.target.name}"
        return self._with_cookie(
            request, self._frame.page(request, title, await main(), json_path=f"{request.path}.json", is_live=True)
        )

    async def _form(
        self, request: web.Request, kind: ActionKind, action: PreparedAction,
        *, fault: str = "", given: ActionInput | None = None, plan: ActionPlan | None = None, status: int = 200,
    ) -> web.StreamResponse:  # fmt: skip
        """Answer with the form of an action, and with its plan if it is made quickly."""
        is_complete = not _missing(kind, ActionInput(action.target.values), PLAN)
        if plan is None and is_complete and not kind.is_slow:
            try:
                plan = await self._quick_plan(action)
            except StreamsAppError as error:
                fault = fault or action.target.safe(str(error))
        form = self._form_of(request, kind, action, plan, fault=fault, given=given)
        title = f"{kind.title}: {action.target.name}"
        return self._with_cookie(request, self._frame.page(request, title, render("action.html", form=form), status=status))

    async def _quick_plan(self, action: PreparedAction) -> ActionPlan:
        try:
            async with asyncio.timeout(PLAN_SECONDS), self._planning:
                return await action.plan(ActionProgress())
        except TimeoutError as error:
            raise TryAgainError(f"no answer within {PLAN_SECONDS:g} s") from error

    def _form_of(
        self, request: web.Request, kind: ActionKind, action: PreparedAction, plan: ActionPlan | None,
        *, fault: str = "", given: ActionInput | None = None, once: str = "",
    ) -> ActionForm:  # fmt: skip
        target = action.target
        hidden = [(name, value) for name, values in target.values.items() for value in values]
        options, confirmation = kind.fields_of(PLAN), kind.fields_of(CONFIRMATION)
        names = [*(one.name for one in confirmation), "confirm"]
        return ActionForm(
            kind.name, kind.title, kind.verb, kind.what, kind.command, target.name, target.kind, target.back, kind.is_slow,
            action.must_type, options, {one.name: target.values.get(one.name, []) for one in options}, hidden, confirmation,
            {name: given.text(name) if given is not None else "" for name in names}, plan, fault,
            self._token(request), once or secrets.token_hex(8), self._user(request),
        )  # fmt: skip

    # Who

    def _user(self, request: web.Request) -> str:
        """Return who is named in the audit line: the user that the proxy has named, and the address."""
        address = request.remote or "unknown"
        header = self._context.settings.console.user_header
        name = escaped(request.headers.get(header, "").strip()[:MOST_OF_USER]) if header else ""
        if not name:
            return address
        # Quoted, unless it is one word: the audit line has its facts between spaces.
        return f"{name if _PLAIN_USER.fullmatch(name) else orjson.dumps(name).decode()}({address})"

    def _browser(self, request: web.Request) -> str:
        found = request.cookies.get(FORM_COOKIE, "")
        if not found and NEW_BROWSER not in request:
            request[NEW_BROWSER] = self._forms.new_browser()
        return found or request[NEW_BROWSER]

    def _token(self, request: web.Request) -> str:
        return self._forms.token(self._browser(request), request.cookies.get(COOKIE, ""))

    def _with_cookie(self, request: web.Request, response: web.Response) -> web.Response:
        if new := request.get(NEW_BROWSER):
            response.set_cookie(
                FORM_COOKIE, new, path=ACTIONS_PATH, httponly=True, samesite="Lax",
                secure=self._context.settings.console.is_secure,
            )  # fmt: skip
        return response

    async def _form_input(self, request: web.Request) -> ActionInput:
        """Return the input of a form of this console.

        Raises:
            PageError: It is of another web site, or its token is not right (403).
        """
        if request.content_type != FORM_TYPE:
            raise PageError(415, f"An action is a form of the type {FORM_TYPE}")
        if request.headers.get("Origin") is None:
            raise PageError(403, "This form has no origin: browsers send it. Programs use the JSON that /openapi.json describes")
        self._frame.require_own_origin(request)
        form = await request.post()
        given = ActionInput({name: [value for value in form.getall(name) if isinstance(value, str)] for name in form})
        session, browser = request.cookies.get(COOKIE, ""), request.cookies.get(FORM_COOKIE, "")
        if fault := self._forms.fault(given.text("token"), browser, session):
            raise PageError(403, FAULTS[fault])
        return given

    # For programs

    async def _plan_json(self, request: web.Request) -> web.StreamResponse:
        kind = self._kind(request)
        given = await self._json_input(request, kind, OBJECT, PLAN)
        action = _prepared(kind, self._context, given)
        _require(_missing(kind, given, PLAN))
        return await self._answer(self._jobs.begin_plan(kind, action, self._user(request)))

    async def _confirm_json(self, request: web.Request) -> web.StreamResponse:
        kind = self._kind(request)
        given = await self._json_input(request, kind, OBJECT, PLAN, CONFIRMATION, more=("plan", "confirm"))
        action = _prepared(kind, self._context, given)
        _require(_missing(kind, given, PLAN, CONFIRMATION) or _unconfirmed(action, given, is_always_typed=True))
        try:
            job = self._jobs.begin_run(kind, action, given.text("plan"), given, self._user(request), "")
        except InProgressError as error:
            return _json(error.job.view(), 409)
        return await self._answer(job)

    async def _answer(self, job: RunningJob) -> web.Response:
        await self._jobs.wait(job, ANSWER_SECONDS)
        return _json(job.view(), {"running": 202, "changed": 409}.get(job.state, 200))

    async def _job_json(self, request: web.Request) -> web.StreamResponse:
        return _json(self._job_of(request).view())

    async def _json_input(self, request: web.Request, kind: ActionKind, *stages: Any, more: tuple[str, ...] = ()) -> ActionInput:
        """Return the input of a program.

        Raises:
            PageError: It has no token (403), or its body is not an object with the fields of the action (400).
        """
        if not self._frame.has_token(request):
            raise PageError(403, "Actions of programs need the token: Authorization: Bearer ... and console.token_file")
        if request.headers.get("Origin") is not None:
            self._frame.require_own_origin(request)
        if request.content_type != "application/json":
            raise PageError(415, "The body must be of the type application/json")
        try:
            found = orjson.loads(await request.read())
        except orjson.JSONDecodeError as error:
            raise PageError(400, f"The body is not JSON: {error}") from error
        known = [*(one.name for one in kind.fields_of(*stages)), *more]
        if not isinstance(found, dict) or (unknown := found.keys() - known):
            wrong = "" if not isinstance(found, dict) else f", without {escaped(sorted(unknown)[0][:100])!r}"
            raise PageError(400, f"The body must be an object with {', '.join(known)}{wrong}")
        return ActionInput({name: _texts(name, value) for name, value in found.items()})

    # What a request is about

    def _kind(self, request: web.Request) -> ActionKind:
        found = self._kinds.get(request.match_info["action"])
        if found is None:
            raise PageError(404, f"There is no such action: there are {', '.join(self._kinds)}")
        return found

    def _job_of(self, request: web.Request) -> RunningJob:
        found = self._jobs.kept.get(request.match_info["job"])
        if found is None:
            raise PageError(404, "This console does not know this job: it has ended long ago, or the console was started again")
        return found


def _prepared(kind: ActionKind, context: ActionContext, given: ActionInput) -> PreparedAction:
    try:
        return kind.prepare(context, given)
    except ConfigurationError as error:
        raise PageError(404, str(error)) from error


def _missing(kind: ActionKind, given: ActionInput, *stages: Any) -> str:
    """Return which required field has no value; empty if all have one."""
    empty = [one.label for one in kind.fields_of(*stages) if one.is_required and not given.text(one.name).strip()]
    return f"{empty[0]} is needed" if empty else ""


def _unconfirmed(action: PreparedAction, given: ActionInput, *, is_always_typed: bool = False) -> str:
    """Return why an action is not confirmed; empty if it is."""
    if not given.text("plan"):
        return "What is it that you confirm? Look at the plan first"
    typed = given.text("confirm")
    if (action.must_type or is_always_typed) and action.target.name not in (typed, typed.strip()):
        return f"Not confirmed: write {action.target.name} to confirm it. Nothing was done"
    return ""


def _require(fault: str) -> None:
    if fault:
        raise PageError(422, fault)


def _texts(name: str, value: Any) -> list[str]:
    """Return a value of JSON as texts of a form."""
    values = value if isinstance(value, list) else [value]
    if not all(isinstance(one, str | bool | int) for one in values):
        raise PageError(400, f"{escaped(name)[:100]} must be a text, a number, a boolean or a list of texts")
    return [("yes" if one else "") if isinstance(one, bool) else str(one) for one in values]


def _see(job: RunningJob) -> web.Response:
    return web.Response(status=303, headers={"Location": JOB_PATH.format(job=job.id)})


def _json(job: ActionJob, status: int = 200) -> web.Response:
    body = orjson.dumps(msgspec.to_builtins(job))
    return web.Response(body=body, status=status, content_type="application/json", headers={"Vary": "Accept"})
