"""The picture of the rooms of the package in CONTRIBUTING.md, drawn from imports and docstrings."""

from __future__ import annotations

import ast
from functools import cache

from tests.checkout.imports import ROOT, modules, modules_in, tree_of

PAGE = ROOT / "CONTRIBUTING.md"
PACKAGE = ROOT / "streams_app"


@cache
def rooms() -> dict[str, frozenset[str]]:
    """Return room → rooms that it imports; files in the package root belong to no room."""
    found: dict[str, set[str]] = {path.parent.name: set() for path in PACKAGE.glob("*/__init__.py")}
    for path in PACKAGE.glob("*/**/*.py"):
        names = modules_in(path, in_functions=False, for_types=True) & modules().keys()
        found[path.relative_to(PACKAGE).parts[0]] |= {name.split(".")[1] for name in names if "." in name}
    return {room: frozenset(needed & found.keys() - {room}) for room, needed in found.items()}


def height(room: str) -> int:
    """Return how many rooms are below a room on the longest way down."""
    return max((height(below) + 1 for below in rooms()[room]), default=0)


def picture() -> str:
    """Draw the rooms: each imports only from lines below it."""
    levels: dict[int, list[str]] = {}
    for room in sorted(rooms()):
        levels.setdefault(height(room), []).append(room)
    width = max(map(len, rooms()))
    lines: list[str] = []
    for level in sorted(levels, reverse=True):
        if lines:
            lines.append("─" * width)
        lines += [f"{room:{width}}  {_purpose(room)}" for room in levels[level]]
    return "```\n" + "\n".join(lines) + "\n```"


def _purpose(room: str) -> str:
    docstring = ast.get_docstring(tree_of(PACKAGE / room / "__init__.py")) or ""
    return docstring.partition("\n")[0].rstrip(".").replace("``", "")


def written(text: str) -> str:
    """Return the page with the picture.

    Raises:
        ValueError: The markers of the picture are missing.
    """
    before, opened, rest = text.partition("<!-- rooms -->\n")
    _, closed, after = rest.partition("<!-- /rooms -->")
    if not (opened and closed):
        raise ValueError(f"no markers of the rooms in {PAGE.name}")
    return f"{before}{opened}{picture()}\n{closed}{after}"
