"""The order in which the packages of ``streams_app`` may import each other, and its picture in CONTRIBUTING.md."""

from __future__ import annotations

import ast
from typing import Final

from streams_app.settings.databases import DATABASES
from tests.checkout.imports import ROOT, tree_of

PAGE = ROOT / "CONTRIBUTING.md"
PACKAGE = ROOT / "streams_app"

LAYERS: Final = [
    "settings", "tracing", "redis_access", "health", "schemas", "delivery", "kafka/patches", "kafka", "events", "folding",
    "folding/core", "folding/reading",
    "folding/store", "folding/shard", "folding/agents", "read_store/core",
    *(f"read_store/{database.folder}" for database in DATABASES), "read_store", "read_store/sync", "subscribers",
    "subscribers/declaration", "subscribers/state",
    "subscribers/execution", "subscribers/guarantees", "subscribers/running", "live", "live/core", "live/store",
    "live/agents", "live/hub", "journal", "journal/core", "journal/store", "journal/reading", "journal/agents", "requirements",
    "local", "tuning", "operations", "operations/forget", "checking",
    "console/reading", "console/pages", "console/actions", "console", "worker", "embedded", "testing", "demo", "cli",
]  # fmt: skip
"""Packages from the lowest to the highest: each may import those before it."""


def picture() -> str:
    """Draw the layers, the highest first: a line for each package, and below it its inner packages, if they are several."""
    inner: dict[str, list[str]] = {}
    for layer in reversed(LAYERS):
        inner.setdefault(layer.partition("/")[0], []).append(layer.rpartition("/")[2])
    width = max(map(len, inner))
    lines: list[str] = []
    for package, parts in inner.items():
        lines.append(f"{package:{width}}  {_purpose(package)}")
        shown = parts[:-1] if parts[-1] == package else parts
        if shown:
            lines.append(f"{'':{width}}  {' → '.join(shown)}")
    return "```\n" + "\n".join(lines) + "\n```"


def _purpose(package: str) -> str:
    docstring = ast.get_docstring(tree_of(PACKAGE / package / "__init__.py")) or ""
    return docstring.partition("\n")[0].rstrip(".").replace("``", "")


def written(text: str) -> str:
    """Return the page with the picture.

    Raises:
        ValueError: The markers of the picture are missing.
    """
    before, opened, rest = text.partition("<!-- layers -->\n")
    _, closed, after = rest.partition("<!-- /layers -->")
    if not (opened and closed):
        raise ValueError(f"no markers of the layers in {PAGE.name}")
    return f"{before}{opened}{picture()}\n{closed}{after}"
