"""Which source of values the settings name."""

from __future__ import annotations

from streams_app.errors import ConfigurationError
from streams_app.read_store.databases.driver import POSTGRESQL, needing
from streams_app.read_store.sources.carried import CarriedSource
from streams_app.read_store.sources.port import ValueSource
from streams_app.read_store.sources.sqlite import SqliteSource
from streams_app.settings import ReadStoreSettings


def open_source(settings: ReadStoreSettings) -> ValueSource:
    """The source of ``source``; nothing is opened yet.

    Raises:
        ConfigurationError: A source this version cannot use.
    """
    if settings.source == "carried":
        return CarriedSource()
    if settings.source != "sql":
        raise ConfigurationError([f'{settings.section}.source: "{settings.source}" is unknown; use "sql" or "carried"'])
    assert settings.source_url is not None  # the settings were checked
    assert settings.sql is not None
    if settings.source_url.startswith(POSTGRESQL):
        with needing("asyncpg", settings):
            # Only those need the driver who have that database.
            from streams_app.read_store.sources.postgresql import PostgresSource
        return PostgresSource(settings.source_url, settings.sql, settings)
    return SqliteSource(settings.source_url, settings.sql, settings.section)
