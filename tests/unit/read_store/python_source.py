"""A Python function as the source of a read store, opened for a test."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

from streams_app.read_store.core.merge import Cell, CellChange
from streams_app.read_store.core.source import ValueSource
from streams_app.read_store.registry import open_source
from streams_app.settings import ReadStoreSettings

LIKES, SHARES = CellChange(Cell("f", "a", "likes"), 1), CellChange(Cell("f", "a", "shares"), 1)


@asynccontextmanager
async def opened(function: Callable[..., Any], timeout: str = "5s", folds: Sequence[str] = ("f",)) -> AsyncIterator[ValueSource]:
    given = {"name": "dashboard", "url": "sqlite:///x.db", "source": "python", "current": function, "folds": folds}
    source = open_source(ReadStoreSettings.model_validate({**given, "timeout": timeout}))
    try:
        yield source
    finally:
        await source.close()
