"""A read store in a SQLite file, and a SQLite file as a source of values. The driver is part of Python."""

from __future__ import annotations

from streams_app.read_store.core.rebuilding import Rebuilding
from streams_app.read_store.core.source import ValueSource
from streams_app.read_store.core.store import ReadableStore
from streams_app.read_store.sqlite.groups import SqliteGroupStore
from streams_app.read_store.sqlite.rebuilding import SqliteRebuilding
from streams_app.read_store.sqlite.source import SqliteSource
from streams_app.read_store.sqlite.store import SqliteStore
from streams_app.settings import ReadStoreSettings


def open_store(declared: ReadStoreSettings) -> ReadableStore:
    """Return the read store in the file of ``url``, with the layout that ``shape`` names, without opening the file."""
    url, table, name, seconds = declared.url, declared.table, declared.name, declared.timeout_ms / 1000
    if declared.shape == "cells":
        return SqliteStore(url, table, name, timeout_seconds=seconds)
    return SqliteGroupStore(url, table, name, declared.columns, timeout_seconds=seconds)


def open_rebuilding(declared: ReadStoreSettings, new: ReadableStore) -> Rebuilding:
    """Return the part of a rebuild that depends on SQLite; its file is not opened yet."""
    return SqliteRebuilding(declared, new)


def open_source(declared: ReadStoreSettings) -> ValueSource:
    """Return the source that runs ``sql`` on the file of ``source_url``, without opening it."""
    assert declared.source_url is not None  # the settings were checked
    assert declared.sql is not None
    return SqliteSource(declared.source_url, declared.sql, declared)
