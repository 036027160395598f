"""Checks of read stores and their value sources."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing

from streams_app.checking.finding import Finding, Level
from streams_app.errors import StreamsAppError
from streams_app.read_store.registry import open_source, open_store
from streams_app.settings import ReadStoreSettings, Settings


async def read_store_findings(settings: Settings) -> AsyncGenerator[Finding, None]:
    """Check each read store: whether its tables exist, whether it can be written to, and whether its value source answers."""
    for declared in settings.read_stores:
        async with aclosing(_findings(declared)) as found:
            async for finding in found:
                yield finding


async def _findings(declared: ReadStoreSettings) -> AsyncGenerator[Finding, None]:
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
    except StreamsAppError as error:
        yield Finding(Level.ERROR, str(error), f"{init}, or correct {declared.section}.url and the rights there")
    try:
        await source.check()
        yield Finding(Level.OK, f"{what}: the source ({declared.source}) answers")
    except StreamsAppError as error:
        yield Finding(Level.ERROR, str(error), _advice(declared))
    await source.close()
    await store.close()


def _advice(declared: ReadStoreSettings) -> str:
    """Return the advice for a value source that fails."""
    if declared.source == "python":
        return f"correct the function {declared.section}.current"
    return f"correct {declared.section}.source_url and {declared.section}.sql"
