"""Which read store a URL names."""

from __future__ import annotations

from streams_app.errors import ConfigurationError
from streams_app.read_store.databases.driver import OPENSEARCH, POSTGRESQL, needing
from streams_app.read_store.targets.readable_store import ReadableStore
from streams_app.settings import ReadStoreSettings


def open_store(settings: ReadStoreSettings) -> ReadableStore:
    """The store of ``url``; nothing is opened yet.

    Raises:
        ConfigurationError: A URL or table name this version cannot use.
    """
    # A driver only those need who have that database.
    if settings.url.startswith(OPENSEARCH):
        with needing("opensearchpy", settings, "opensearch-py"):
            from streams_app.read_store.targets.opensearch_back import OpenSearchBack
        return OpenSearchBack(settings)
    if settings.url.startswith(POSTGRESQL):
        with needing("asyncpg", settings):
            from streams_app.read_store.targets.postgresql import PostgresStore
            from streams_app.read_store.targets.postgresql_groups_back import PostgresGroupsBack
        return PostgresStore(settings) if settings.shape == "cells" else PostgresGroupsBack(settings)
    if settings.url.startswith("sqlite:"):
        from streams_app.read_store.targets.sqlite import SqliteStore
        from streams_app.read_store.targets.sqlite_groups_back import SqliteGroupsBack

        if settings.shape == "cells":
            return SqliteStore(settings.url, settings.table, settings.name, timeout_seconds=settings.timeout_ms / 1000)
        return SqliteGroupsBack(
            settings.url, settings.table, settings.name, settings.columns, timeout_seconds=settings.timeout_ms / 1000
        )
    scheme = settings.url.partition(":")[0]
    raise ConfigurationError(
        [
            f"{settings.section}.url: no store for '{scheme}:'; use sqlite:///FILE, postgresql://HOST/DATABASE or opensearch+https://HOST:9200"
        ]
    )
