"""A read store in PostgreSQL, and PostgreSQL as a source of values. The driver is asyncpg."""

from __future__ import annotations

from streams_app.read_store.core.rebuilding import Rebuilding
from streams_app.read_store.core.source import ValueSource
from streams_app.read_store.core.store import ReadableStore
from streams_app.read_store.postgresql.groups import PostgresGroupStore
from streams_app.read_store.postgresql.rebuilding import PostgresRebuilding
from streams_app.read_store.postgresql.source import PostgresSource
from streams_app.read_store.postgresql.store import PostgresStore
from streams_app.settings import ReadStoreSettings


def open_store(declared: ReadStoreSettings) -> ReadableStore:
    """Return the read store in the database of ``url``, with the layout that ``shape`` names, without connecting."""
    return PostgresStore(declared) if declared.shape == "cells" else PostgresGroupStore(declared)


def open_rebuilding(declared: ReadStoreSettings, new: ReadableStore) -> Rebuilding:
    """Return the part of a rebuild that depends on PostgreSQL; it does not connect yet."""
    return PostgresRebuilding(declared, new)


def open_source(declared: ReadStoreSettings) -> ValueSource:
    """Return the source that runs ``sql`` at ``source_url``, without connecting."""
    assert declared.source_url is not None  # the settings were checked
    assert declared.sql is not None
    return PostgresSource(declared.source_url, declared.sql, declared)
