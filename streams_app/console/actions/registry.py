"""All actions of the console, and the document that describes their JSON."""

from __future__ import annotations

from typing import Any, Final

import msgspec

from streams_app.console.actions import components, groups
from streams_app.console.actions.jobs import ActionJob
from streams_app.console.actions.model import CONFIRMATION, OBJECT, PLAN, ActionField
from streams_app.console.pages.action_links import ACTIONS_PATH

ACTIONS: Final = (groups.FLUSH, groups.FLUSH_ALL, groups.DROP, components.REPLAY, components.RESET, components.REPAIR)
JOB_PATH: Final = f"{ACTIONS_PATH}/jobs/{{job}}"

_CONFIRMED: Final = {
    "plan": {"type": "string", "description": "`fingerprint` of the plan that is confirmed"},
    "confirm": {"type": "string", "description": "`object` of the plan: the name of what the action changes"},
}
_SECURITY: Final[list[dict[str, list[str]]]] = [{"token": []}]


def describe_actions(document: dict[str, Any]) -> dict[str, Any]:
    """Add the actions to the OpenAPI document of the pages."""
    (schema,), components = msgspec.json.schema_components([ActionJob], ref_template="#/components/schemas/{name}")
    document["components"]["schemas"] |= components
    document["components"]["securitySchemes"] = {"token": {"type": "http", "scheme": "bearer"}}
    for kind in ACTIONS:
        asked = kind.fields_of(OBJECT, PLAN)
        confirmed = asked + kind.fields_of(CONFIRMATION)
        document["paths"][f"{ACTIONS_PATH}/{kind.name}/plan.json"] = _post(
            f"What `{kind.command}` would do. {kind.what}", asked, {}, schema
        )
        document["paths"][f"{ACTIONS_PATH}/{kind.name}.json"] = _post(kind.what, confirmed, _CONFIRMED, schema)
    parameter = {"name": "job", "in": "path", "required": True, "schema": {"type": "string"}}
    document["paths"][f"{JOB_PATH}.json"] = {
        "get": {"summary": "How far a plan or an action is.", "parameters": [parameter], "responses": _responses(schema)}
    }
    return document


def _post(summary: str, fields: list[ActionField], more: dict[str, Any], schema: Any) -> dict[str, Any]:
    properties = {one.name: _schema(one) for one in fields} | more
    required = [one.name for one in fields if one.is_required] + list(more)
    body = {"type": "object", "properties": properties, "required": required, "additionalProperties": False}
    return {
        "post": {
            "summary": summary, "security": _SECURITY,
            "requestBody": {"required": True, "content": {"application/json": {"schema": body}}},
            "responses": _responses(schema) | {
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


def _responses(schema: Any) -> dict[str, Any]:
    return {"200": {"description": "The job", "content": _json(schema)}}


def _json(schema: Any) -> dict[str, Any]:
    return {"application/json": {"schema": schema}}
