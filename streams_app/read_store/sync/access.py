"""Check at the start of a worker whether stores and sources accept its credentials and grant the rights that it needs."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Any, Final

from streams_app.errors import ConfigurationError
from streams_app.read_store.core.errors import AccessDeniedError
from streams_app.read_store.registry import open_source, open_store
from streams_app.settings import ReadStoreSettings
from streams_app.settings.databases import database_of

PROBE_SECONDS: Final = 5.0
"""A server that does not answer within this time counts as unavailable."""


async def require_store_access(stores: Sequence[ReadStoreSettings]) -> None:
    """Check that stores and sources accept the worker's credentials and grant its rights.

    All servers are checked concurrently: checkpoints are read, a write without effect is tried, and sources get an empty request. A
    server that is unavailable, slow or not initialised passes the check, because the worker waits for it. Files and users'
    functions are not checked, because they need no login.

    Raises:
        ConfigurationError: A server rejects credentials or a right, or a password cannot be read; every fault is listed.
    """
    found = await asyncio.gather(*(attempt(store) for store in stores for attempt in (_store_fault, _source_fault)))
    if faults := [fault for fault in found if fault is not None]:
        raise ConfigurationError(faults)


async def _store_fault(declared: ReadStoreSettings) -> str | None:
    database = database_of(declared.url)
    if database is None or not database.has_login:
        return None
    store = open_store(declared)

    async def probe() -> None:
        await store.checkpoints()
        await store.probe()

    return await _fault(probe, store.close)


async def _source_fault(declared: ReadStoreSettings) -> str | None:
    database = database_of(declared.source_url or "")
    if declared.source != "sql" or database is None or not (database.has_login and database.is_source):
        return None
    source = open_source(declared)
    return await _fault(source.check, source.close)


async def _fault(probe: Callable[[], Coroutine[Any, Any, None]], close: Callable[[], Awaitable[None]]) -> str | None:
    """Run the probe of a store or source, then close it; return the text of an error that waiting cannot fix.

    Returns None if the probe succeeds, takes too long, or has an error that may be temporary.
    """
    task = asyncio.create_task(probe())
    await asyncio.wait((task,), timeout=PROBE_SECONDS)
    task.cancel()
    await close()  # otherwise the cancelled statement would wait for the server
    await asyncio.wait((task,), timeout=PROBE_SECONDS)
    if not task.done() or task.cancelled():
        return None
    error = task.exception()
    return str(error) if isinstance(error, (AccessDeniedError, ConfigurationError)) else None
