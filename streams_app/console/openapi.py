"""Describes the JSON of all pages as an OpenAPI document, from their models."""

from __future__ import annotations

import re
from importlib.metadata import version
from typing import Any

import msgspec

from streams_app.console.pages.registry import PAGES


def openapi(app_id: str) -> dict[str, Any]:
    """Return the OpenAPI document of the console of an application."""
    schemas, components = msgspec.json.schema_components([page.model for page in PAGES], ref_template="#/components/schemas/{name}")
    paths = {}
    for page, schema in zip(PAGES, schemas, strict=True):
        in_path = [(name, "path", "") for name in re.findall(r"{(\w+)}", page.json_path)]
        in_query = [(parameter.name, "query", parameter.what) for parameter in page.parameters]
        parameters = [
            {"name": name, "in": where, "required": where == "path", "description": what, "schema": {"type": "string"}}
            for name, where, what in in_path + in_query
        ]
        paths[page.json_path] = {
            "get": {
                "summary": page.what,
                "parameters": parameters,
                "responses": {"200": {"description": "The facts of the page", "content": {"application/json": {"schema": schema}}}},
            }
        }
    return {
        "openapi": "3.1.0",
        "info": {"title": f"Console of {app_id}", "version": version("streams_app")},
        "paths": paths,
        "components": {"schemas": components},
    }
