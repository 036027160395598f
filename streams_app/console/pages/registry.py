"""All pages of the console: the path of each, how its model is collected, and its template."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Final, NamedTuple

import msgspec

from streams_app.checking.facts import Declarations
from streams_app.console.asking import Asked
from streams_app.console.pages import fold, group, overview
from streams_app.console.reading import Sources


class Parameter(NamedTuple):
    """A value of the query, for the OpenAPI document."""

    name: str
    what: str


class Page(NamedTuple):
    """A page of the console.

    Attributes:
        path: Its path, with parameters in braces.
        json_path: The path of the same as JSON.
        title: Its title, with the names of its parameters in braces.
        what: What it shows, for the OpenAPI document.
    """

    path: str
    json_path: str
    title: str
    what: str
    template: str
    model: type[msgspec.Struct]
    collect: Callable[[Sources, Declarations, Asked], Awaitable[Any]]
    parameters: tuple[Parameter, ...] = ()


async def _overview(sources: Sources, declarations: Declarations, _: Asked) -> overview.Overview:
    return await overview.collect(sources, declarations)


PAGES: Final = (
    Page(
        "/", "/overview.json", "Overview", "Whether all is well, the figures, the application as a picture, and its workers.",
        "overview.html", overview.Overview, _overview,
    ),
    Page(
        "/folds/{fold}", "/folds/{fold}.json", "{fold}",
        "What a fold does, its last hour, what other quiet periods would have folded, and its open groups.",
        "fold.html", fold.FoldPage, fold.collect,
        (Parameter("sort", f"order of the open groups: {', '.join(fold.SORTS)}"), Parameter("page", "from 1, 50 groups each")),
    ),
    Page(
        "/folds/{fold}/group", "/folds/{fold}/group.json", "Group of {fold}",
        "Why a group has not been emitted, its events and bounds, and its last records.",
        "group.html", group.GroupPage, group.collect,
        (Parameter("key", "group key, as `streams-app groups list` shows it"),),
    ),
)  # fmt: skip
