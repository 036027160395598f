"""A read store in MySQL or MariaDB, and either as a source of values. The driver is asyncmy."""

from __future__ import annotations

from streams_app.read_store.core.rebuilding import Rebuilding
from streams_app.read_store.core.source import ValueSource
from streams_app.read_store.core.store import ReadableStore
from streams_app.read_store.mysql.groups import MysqlGroupStore
from streams_app.read_store.mysql.rebuilding import MysqlRebuilding
from streams_app.read_store.mysql.source import MysqlSource
from streams_app.read_store.mysql.store import MysqlStore
from streams_app.settings import ReadStoreSettings


def open_store(declared: ReadStoreSettings) -> ReadableStore:
    """Return the read store in the database of ``url``, with the layout that ``shape`` names, without connecting."""
    return MysqlStore(declared) if declared.shape == "cells" else MysqlGroupStore(declared)


def open_rebuilding(declared: ReadStoreSettings, new: ReadableStore) -> Rebuilding:
    """Return the part of a rebuild that depends on MySQL; it does not connect yet."""
    return MysqlRebuilding(declared, new)


def open_source(declared: ReadStoreSettings) -> ValueSource:
    """Return the source that runs ``sql`` at ``source_url``, without connecting."""
    assert declared.source_url is not None  # the settings were checked
    assert declared.sql is not None
    return MysqlSource(declared.source_url, declared.sql, declared)
