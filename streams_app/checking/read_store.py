"""The read store and its source, as the agent that syncs them needs them."""

from __future__ import annotations

from collections.abc import AsyncGenerator

from streams_app.checking.finding import Finding, Level
from streams_app.errors import StreamsAppError
from streams_app.read_store.sources import open_source
from streams_app.read_store.store import open_store
from streams_app.settings import Settings


async def read_store_findings(settings: Settings) -> AsyncGenerator[Finding, None]:
    """Looks for the tables, tries a transaction that is rolled back, and asks the source for nothing."""
    section = settings.read_store
    if section is None:
        return
    try:
        store, source = open_store(section), open_source(section)
    except StreamsAppError as error:
        yield Finding(Level.ERROR, str(error), "correct [read_store]")
        return
    try:
        missing = await store.missing()
        if missing:
            yield Finding(Level.ERROR, f"read store: no {' and no '.join(missing)}", "streams-app read-store init")
        else:
            yield Finding(Level.OK, f"read store ({store.name}) has its tables")
            await store.probe()
            yield Finding(Level.OK, f"read store ({store.name}) can be written to")
    except StreamsAppError as error:
        yield Finding(Level.ERROR, str(error), "streams-app read-store init, or correct read_store.url and the rights of the file")
    try:
        await source.check()
        yield Finding(Level.OK, f"read store: the source ({section.source}) answers")
    except StreamsAppError as error:
        yield Finding(Level.ERROR, str(error), "correct read_store.source_url and read_store.sql")
    await source.close()
    await store.close()
