"""Opens the read store or the source that a URL names.

``settings/databases.py`` lists the databases. The package of each database implements the port :class:`Database`. The package is
imported only if a URL names the database, so that only the drivers in use need to be installed. The functions do not connect yet.
They raise :class:`~streams_app.errors.ConfigurationError` if the settings cannot be used, or the driver is not installed.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from typing import Final, Protocol, cast

from streams_app.errors import ConfigurationError
from streams_app.read_store.core.rebuilding import Rebuilding, settings_of_new
from streams_app.read_store.core.source import CarriedSource, ValueSource
from streams_app.read_store.core.store import ReadableStore
from streams_app.read_store.python_source import PythonSource
from streams_app.settings import ReadStoreSettings
from streams_app.settings.databases import DATABASES, RegisteredDatabase, database_of

MAX_NAME_LENGTH: Final = 45
"""Maximum length of the name of a table that can be rebuilt, because a rebuild appends suffixes to the name."""


class Database(Protocol):
    """The functions that the package of a database has."""

    def open_store(self, declared: ReadStoreSettings) -> ReadableStore:
        """Return the store of ``url``, in the layout that ``shape`` names."""

    def open_rebuilding(self, declared: ReadStoreSettings, new: ReadableStore) -> Rebuilding:
        """Return the part of a rebuild that depends on the database.

        Args:
            declared: Settings of the read store, whose table is replaced at the end of the rebuild.
            new: The store that the rebuild fills, and that then replaces the declared one.
        """

    def open_source(self, declared: ReadStoreSettings) -> ValueSource:
        """Return the source that runs ``sql`` at ``source_url``. A database that cannot be a source lacks this function."""


def open_store(declared: ReadStoreSettings) -> ReadableStore:
    """Return the read store that the setting ``url`` names."""
    return _store_database(declared).open_store(declared)


def open_rebuilding(declared: ReadStoreSettings) -> tuple[Rebuilding, ReadableStore]:
    """Return the object that rebuilds a store, and the new store to be filled.

    Raises:
        ConfigurationError: Also if the name of the table is too long for the suffixes of a rebuild.
    """
    if len(declared.table.rpartition(".")[2]) > MAX_NAME_LENGTH:
        raise ConfigurationError([f"{declared.section}.table: '{declared.table}' has more than {MAX_NAME_LENGTH} letters"])
    database = _store_database(declared)
    new = database.open_store(settings_of_new(declared))
    return database.open_rebuilding(declared, new), new


def open_source(declared: ReadStoreSettings) -> ValueSource:
    """Return the source of current values that the setting ``source`` names."""
    if declared.source == "carried":
        return CarriedSource()
    if declared.source == "python":
        assert declared.current is not None  # the settings were checked
        return PythonSource(declared.current, declared)
    assert declared.source_url is not None  # the settings were checked
    database = database_of(declared.source_url)
    if database is None or not database.is_source:
        expected = [one for one in DATABASES if one.is_source]
        raise ConfigurationError([f"{declared.section}.source_url: {_unknown('source', declared.source_url, expected)}"])
    return _loaded(database, declared.section).open_source(declared)


def _store_database(declared: ReadStoreSettings) -> Database:
    database = database_of(declared.url)
    if database is None:
        raise ConfigurationError([f"{declared.section}.url: {_unknown('store', declared.url, DATABASES)}"])
    return _loaded(database, declared.section)


def _unknown(what: str, url: str, expected: Sequence[RegisteredDatabase]) -> str:
    *others, last = [database.example for database in expected]
    return f"no {what} for '{url.partition(':')[0]}:'; use {' or '.join(filter(None, (', '.join(others), last)))}"


def _loaded(database: RegisteredDatabase, section: str) -> Database:
    """Import the folder of a database."""
    try:
        return cast(Database, import_module(f"streams_app.read_store.{database.folder}"))
    except ModuleNotFoundError as error:
        if error.name != database.driver:
            raise
        text = f"{section}: {database.package} is not installed; pip install {database.package}"
        raise ConfigurationError([text]) from error
