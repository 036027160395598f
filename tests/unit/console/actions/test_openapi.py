"""The OpenAPI document describes every route of the console, and no other."""

from __future__ import annotations

import re
from typing import Any

import pytest

from streams_app.clock import SystemClock
from streams_app.console.actions.registry import ACTIONS, openapi
from streams_app.console.pages.registry import PAGES
from streams_app.console.reading.console_reader import ConsoleReader
from streams_app.console.server import ConsoleServer
from streams_app.health.http_connections import Connections
from streams_app.requirements.declarations import declarations_of
from streams_app.settings import Settings

FOLDS = [{"name": "likes", "source": "posts", "group_key": "id", "changed": "names", "quiet_period": "15m"}]


def references(part: Any) -> set[str]:
    if isinstance(part, dict):
        own = {part["$ref"]} if isinstance(part.get("$ref"), str) else set()
        return own.union(*map(references, part.values()))
    return set().union(*map(references, part)) if isinstance(part, list) else set()


@pytest.mark.parametrize("has_actions", [False, True])
async def test_document_has_every_route_and_no_other(has_actions: bool) -> None:
    settings = Settings.model_validate({"app_id": "shop", "folds": FOLDS, "console": {"allow_actions": has_actions}})
    reader = ConsoleReader(settings, SystemClock())
    server = ConsoleServer(PAGES, settings, declarations_of(settings), reader, Connections(1, SystemClock()))
    routes = {
        (route.method.lower(), route.resource.canonical.replace("{action}", name))
        for route in server.application().router.routes()
        if route.resource is not None and route.method != "HEAD"  # which each GET has
        for name in [kind.name for kind in ACTIONS]
    }
    await reader.close()
    document = openapi("shop", PAGES, has_actions=has_actions)

    assert routes == {(method, path) for path, methods in document["paths"].items() for method in methods}


def test_document_has_every_schema_that_it_names_and_every_parameter_of_a_path() -> None:
    document = openapi("shop", PAGES, has_actions=True)
    missing = [
        path
        for path, methods in document["paths"].items()
        for operation in methods.values()
        if set(re.findall(r"{(\w+)}", path)) != {one["name"] for one in operation.get("parameters", ()) if one["in"] == "path"}
    ]

    assert [] == missing
    assert {name.rpartition("/")[2] for name in references(document)} <= document["components"]["schemas"].keys()
