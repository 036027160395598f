"""Which source of values the settings name."""

from __future__ import annotations

from streams_app.read_store.databases.driver import POSTGRESQL, needing
from streams_app.read_store.sources.carried import CarriedSource
from streams_app.read_store.sources.port import ValueSource
from streams_app.read_store.sources.python import PythonSource
from streams_app.read_store.sources.sqlite import SqliteSource
from streams_app.settings import ReadStoreSettings


def open_source(settings: ReadStoreSettings) -> ValueSource:
    """The source of ``source``; nothing is opened yet.

    Raises:
        ConfigurationError: A URL that cannot be used, or its driver is missing.
    """
    if settings.source == "carried":
        return CarriedSource()
    if settings.source == "python":
        assert settings.current is not None  # the settings were checked
        return PythonSource(settings.current, settings)
    assert settings.source_url is not None  # the settings were checked
    assert settings.sql is not None
    if settings.source_url.startswith(POSTGRESQL):
        with needing("asyncpg", settings):
            # Only those need the driver who have that database.
            from streams_app.read_store.sources.postgresql import PostgresSource
        return PostgresSource(settings.source_url, settings.sql, settings)
    return SqliteSource(settings.source_url, settings.sql, settings)
