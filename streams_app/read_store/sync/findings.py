"""Checks of read stores and their value sources."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Final

from streams_app.errors import StreamsAppError
from streams_app.finding import Finding, Level
from streams_app.formatting import counted
from streams_app.read_store.core.absent_values import absent_text
from streams_app.read_store.core.merge import CellChange
from streams_app.read_store.core.source import ValueSource
from streams_app.read_store.core.store import ReadableStore
from streams_app.read_store.registry import open_source, open_store
from streams_app.settings import ReadStoreSettings, Settings

PAGE: Final = 500
"""Number of stored cells of a fold that are read. A store with a row per group divides it by the number of its columns."""

MAX_CELLS: Final = 50
"""Number of stored cells of a fold that the source is asked for."""


async def read_store_findings(settings: Settings) -> AsyncGenerator[Finding, None]:
    """Check each read store: whether its tables exist, whether it can be written to, and whether its value source answers."""
    for declared in settings.read_stores:
        async with aclosing(_findings(declared)) as found:
            async for finding in found:
                yield finding


async def _findings(declared: ReadStoreSettings) -> AsyncGenerator[Finding, None]:
    is_ready = False
    what, init = f"read store {declared.name}", f"streams-app read-store init --store {declared.name}"
    try:
        store, source = open_store(declared), open_source(declared)
    except StreamsAppError as error:
        yield Finding(Level.ERROR, str(error), f"correct [{declared.section}]")
        return
    try:
        missing = await store.missing()
        if missing:
            yield Finding(Level.ERROR, f"{what}: no {' and no '.join(missing)}", init)
        else:
            yield Finding(Level.OK, f"{what} has its tables")
            await store.probe()
            yield Finding(Level.OK, f"{what} can be written to")
            is_ready = True
    except StreamsAppError as error:
        yield Finding(Level.ERROR, str(error), f"{init}, or correct {declared.section}.url and the rights there")
    try:
        await source.check()
        yield Finding(Level.OK, f"{what}: the source ({declared.source}) answers")
        if is_ready and not source.carries_values:
            async for finding in _value_findings(declared, store, source):
                yield finding
    except StreamsAppError as error:
        yield Finding(Level.ERROR, str(error), _advice(declared))
    await source.close()
    await store.close()


async def _value_findings(declared: ReadStoreSettings, store: ReadableStore, source: ValueSource) -> AsyncGenerator[Finding, None]:
    """Ask the source for some stored groups of each fold: a query of other groups or names fails for none, and returns no value."""
    for fold in declared.folds:
        cells = (await store.cells(fold, None, PAGE))[:MAX_CELLS]
        if not cells:
            continue
        current = await source.current([CellChange(cell, stored.version) for cell, stored in cells])
        what = f"read store {declared.name}, fold {fold}"
        if any(change.value is not None or change.is_group_gone for change in current):
            found = sum(change.value is not None for change in current)
            yield Finding(Level.OK, f"{what}: the source has {found} of {counted(len(cells), 'value')} of stored groups")
        else:
            yield Finding(
                Level.WARNING,
                f"{what}: {absent_text(current)}, so that each of them becomes NULL",
                f"if they were not deleted, {_advice(declared)}: it must return the groups and names as records have them",
            )


def _advice(declared: ReadStoreSettings) -> str:
    """Return the advice for a value source that fails."""
    if declared.source == "python":
        return f"correct the function {declared.section}.current"
    return f"correct {declared.section}.source_url and {declared.section}.sql"
