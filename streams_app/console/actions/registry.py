"""All actions of the console, and the OpenAPI document of every route: pages and actions with their facts as JSON."""

from __future__ import annotations

import re
from collections.abc import Sequence
from importlib.metadata import version
from typing import Any, Final

import msgspec

from streams_app.console.actions import components, groups
from streams_app.console.actions.jobs import ActionJob
from streams_app.console.actions.model import CONFIRMATION, OBJECT, PLAN, ActionField, ActionKind
from streams_app.console.pages.action_links import ACTIONS_PATH
from streams_app.console.pages.registry import ConsolePage

ACTIONS: Final = (
    groups.FLUSH, groups.FLUSH_ALL, groups.DROP, components.REPLAY, components.RETRY, components.RESET, components.REPAIR,
)  # fmt: skip
JOB_PATH: Final = f"{ACTIONS_PATH}/jobs/{{job}}"

_CONFIRMED: Final = {
    "plan": {"type": "string", "description": "`fingerprint` of the plan that is confirmed"},
    "confirm": {"type": "string", "description": "`object` of the plan: the name of what the action changes"},
}
_SECURITY: Final[list[dict[str, list[str]]]] = [{"token": []}]
_HTML: Final = {"text/html": {"schema": {"type": "string"}}}
_FORM_TEXT: Final = "For browsers: a form of the console, with its token and the cookie of the browser."
_SEE_OTHER: Final = {"303": {"description": "`Location` is the page that shows it"}}


def openapi(app_id: str, pages: Sequence[ConsolePage], *, has_actions: bool) -> dict[str, Any]:
    """Return the document of the console of an application.

    Args:
        has_actions: Whether the console answers requests for actions.
    """
    models = [*(page.model for page in pages), ActionJob]
    schemas, definitions = msgspec.json.schema_components(models, ref_template="#/components/schemas/{name}")
    *of_pages, of_job = schemas
    paths: dict[str, Any] = {}
    for page, schema in zip(pages, of_pages, strict=True):
        parameters = _parameters(page.json_path) + [_parameter(one.name, "query", one.what) for one in page.parameters]
        for path, content in ((page.json_path, _json(schema)), (page.path, _HTML | _json(schema))):
            responses = {"200": {"description": "The facts of the page", "content": content}}
            paths[path] = {"get": {"summary": page.what, "parameters": parameters, "responses": responses}}
    paths |= _others()
    if has_actions:
        paths |= _actions(of_job)
    return {
        "openapi": "3.1.0",
        "info": {"title": f"Console of {app_id}", "version": version("streams_app")},
        "paths": paths,
        "components": {"schemas": definitions, "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}}},
    }


def _others() -> dict[str, Any]:
    """Return the routes that are neither pages nor actions."""
    begun = _SEE_OTHER | {"409": {"description": "Another one is in progress"}}
    window = "Begin to compute the curve of `streams-app tune` for a fold; its page has progress and result."
    compare = "Begin to compare a read store with its source, as `read-store verify` does; its page has progress and result."
    token = {"type": "object", "properties": {"token": {"type": "string"}}, "required": ["token"]}
    login = _operation("Begin a session of a browser: the answer sets its cookie.", "/login", _SEE_OTHER | _error("403", "429"))
    login["requestBody"] = {"required": True, "content": {"application/x-www-form-urlencoded": {"schema": token}}}
    return {
        "/folds/{fold}/window": {"post": _operation(window, "/folds/{fold}/window", begun)},
        "/read-stores/{store}/verify": {"post": _operation(compare, "/read-stores/{store}/verify", begun)},
        "/health/live": {"get": _operation("Whether the console answers; needs no token.", "", _ok(_json({"type": "object"})))},
        "/openapi.json": {"get": _operation("This document.", "", _ok(_json({"type": "object"})))},
        "/login": {"get": _operation("The form that takes the token, for browsers.", "", _ok(_HTML)), "post": login},
        "/logout": {"post": _operation("End the session of a browser.", "", _SEE_OTHER)},
        "/static/{name}": {"get": _operation("A file of the pages, for browsers.", "/static/{name}", _ok({}) | _error("404"))},
    }


def _actions(schema: Any) -> dict[str, Any]:
    job = _ok(_json(schema), "The job")
    paths: dict[str, Any] = {
        f"{JOB_PATH}.json": {"get": _operation("How far a plan or an action is.", JOB_PATH, job)},
        JOB_PATH: {"get": _operation("The same as a page.", JOB_PATH, _ok(_HTML | _json(schema)))},
        f"{JOB_PATH}/stop": {"post": _operation(f"Stop it, as Ctrl-C stops the command. {_FORM_TEXT}", JOB_PATH, _SEE_OTHER)},
    }
    for kind in ACTIONS:
        path, asked = f"{ACTIONS_PATH}/{kind.name}", kind.fields_of(OBJECT, PLAN)
        plan = f"What `{kind.command}` would do. {kind.what}"
        paths[f"{path}/plan.json"] = _post(plan, asked, {}, schema)
        paths[f"{path}.json"] = _post(kind.what, asked + kind.fields_of(CONFIRMATION), _CONFIRMED, schema)
        paths[f"{path}/plan"] = {"post": _operation(f"{plan} {_FORM_TEXT}", "", _SEE_OTHER)}
        paths[path] = {"get": _form(kind), "post": _operation(f"{kind.what} {_FORM_TEXT}", "", _SEE_OTHER)}
    return paths


def _form(kind: ActionKind) -> dict[str, Any]:
    operation = _operation(f"The form of: {kind.title}", "", _ok(_HTML))
    return operation | {"parameters": [_parameter(one.name, "query", one.what) for one in kind.fields_of(OBJECT, PLAN)]}


def _post(summary: str, fields: list[ActionField], more: dict[str, Any], schema: Any) -> dict[str, Any]:
    properties = {one.name: _schema(one) for one in fields} | more
    required = [one.name for one in fields if one.is_required] + list(more)
    body = {"type": "object", "properties": properties, "required": required, "additionalProperties": False}
    return {
        "post": {
            "summary": summary, "security": _SECURITY,
            "requestBody": {"required": True, "content": _json(body)},
            "responses": _ok(_json(schema), "The job") | {
                "202": {"description": "It is still running: get the job until it has ended", "content": _json(schema)},
                "409": {"description": "The plan does not hold any more, or the same is in progress", "content": _json(schema)},
            },
        }
    }  # fmt: skip


def _schema(one: ActionField) -> dict[str, Any]:
    if one.kind == "lines":
        return {"type": "array", "items": {"type": "string"}, "description": one.what}
    kinds = {"check": "boolean", "number": "integer"}
    return {"type": kinds.get(one.kind, "string"), "description": one.what} | ({"enum": list(one.choices)} if one.choices else {})


def _operation(summary: str, path: str, responses: dict[str, Any]) -> dict[str, Any]:
    parameters = {"parameters": found} if (found := _parameters(path)) else {}
    return {"summary": summary, **parameters, "responses": responses}


def _parameters(path: str) -> list[dict[str, Any]]:
    return [_parameter(name, "path", "") for name in re.findall(r"{(\w+)}", path)]


def _parameter(name: str, where: str, what: str) -> dict[str, Any]:
    return {"name": name, "in": where, "required": where == "path", "description": what, "schema": {"type": "string"}}


def _ok(content: dict[str, Any], what: str = "As described") -> dict[str, Any]:
    return {"200": {"description": what, "content": content}}


def _error(*statuses: str) -> dict[str, Any]:
    what = {"403": "The token is wrong", "404": "There is none", "429": "Too many wrong tokens: wait for a minute"}
    return {status: {"description": what[status]} for status in statuses}


def _json(schema: Any) -> dict[str, Any]:
    return {"application/json": {"schema": schema}}
