"""Registry of the databases of read stores: finds the database that a URL names, and opens its store and source.

Each database has a package beside this file that implements the port :class:`Database`. A package is imported only if a URL names
its database, so that only the drivers in use need to be installed.
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from typing import Final, Protocol, cast

from streams_app.errors import ConfigurationError
from streams_app.read_store.core.rebuilding import Rebuilding, settings_of_new
from streams_app.read_store.core.source import CarriedSource, ValueSource
from streams_app.read_store.core.store import ReadableStore
from streams_app.read_store.python_source import PythonSource
from streams_app.settings import ReadStoreSettings

MAX_NAME_LENGTH: Final = 45
"""Maximum length of the name of a table that can be rebuilt, because a rebuild appends suffixes to the name."""


class Database(Protocol):
    """The functions of a database's package. They open no connection, and raise ConfigurationError for unusable settings."""

    def open_store(self, declared: ReadStoreSettings) -> ReadableStore:
        """Return the store of ``url``, in the layout that ``shape`` names."""

    def open_rebuilding(self, declared: ReadStoreSettings, new: ReadableStore) -> Rebuilding:
        """Return the part of a rebuild that depends on the database.

        Args:
            declared: Settings of the read store, whose table is replaced at the end of the rebuild.
            new: The new store, which replaces it.
        """

    def open_source(self, declared: ReadStoreSettings) -> ValueSource:
        """Return the source that runs ``sql`` at ``source_url``. A database that cannot be a source lacks this function."""


@dataclass(frozen=True, slots=True)
class RegisteredDatabase:
    """A database that read stores support.

    Attributes:
        folder: Folder of the database in ``read_store``.
        schemes: Prefixes of URLs that name the database.
        driver: Module of the driver; empty if the driver is part of Python.
        package: Package that installs the driver; empty if the driver is part of Python.
        has_login: Whether the database has users and rights, which a worker checks when it starts.
        is_source: Whether the database can also be a ``source_url``.
        keeps_former_table: Whether a rebuild retains the former table, whose name then has a suffix.
    """

    folder: str
    schemes: tuple[str, ...]
    driver: str = ""
    package: str = ""
    has_login: bool = True
    is_source: bool = False
    keeps_former_table: bool = True

    def load(self, section: str) -> Database:
        """Import the package of the database.

        Args:
            section: Name of the section of the store, for messages.

        Raises:
            ConfigurationError: The driver is not installed.
        """
        try:
            return cast(Database, import_module(f"streams_app.read_store.{self.folder}"))
        except ModuleNotFoundError as error:
            if error.name != self.driver:
                raise
            text = f"{section}: {self.package} is not installed; pip install {self.package}"
            raise ConfigurationError([text]) from error


DATABASES: Final = (
    RegisteredDatabase("sqlite", ("sqlite:",), has_login=False, is_source=True),
    RegisteredDatabase("postgresql", ("postgresql://", "postgres://"), "asyncpg", "asyncpg", is_source=True),
    RegisteredDatabase("opensearch", ("opensearch+", "elasticsearch+"), "opensearchpy", "opensearch-py", keeps_former_table=False),
)


def database_of(url: str) -> RegisteredDatabase | None:
    """Return the database that a URL names, or None if there is no such database."""
    return next((database for database in DATABASES if url.startswith(database.schemes)), None)


def open_store(declared: ReadStoreSettings) -> ReadableStore:
    """Return the read store that the setting ``url`` names; it does not connect to the database yet.

    Raises:
        ConfigurationError: The URL or the name of the table cannot be used, or the driver is not installed.
    """
    return _store_database(declared).load(declared.section).open_store(declared)


def open_rebuilding(declared: ReadStoreSettings) -> tuple[Rebuilding, ReadableStore]:
    """Return the object that rebuilds a store, and the new store to be filled; neither connects to the database yet.

    Raises:
        ConfigurationError: The URL or the name of the table cannot be used, the name is too long for the suffixes of a rebuild, or
            the driver is not installed.
    """
    if len(declared.table.rpartition(".")[2]) > MAX_NAME_LENGTH:
        raise ConfigurationError([f"{declared.section}.table: '{declared.table}' has more than {MAX_NAME_LENGTH} letters"])
    database = _store_database(declared).load(declared.section)
    new = database.open_store(settings_of_new(declared))
    return database.open_rebuilding(declared, new), new


def open_source(declared: ReadStoreSettings) -> ValueSource:
    """Return the source of current values that the setting ``source`` names; it does not connect yet.

    Raises:
        ConfigurationError: The URL cannot be used, or the driver is not installed.
    """
    if declared.source == "carried":
        return CarriedSource()
    if declared.source == "python":
        assert declared.current is not None  # the settings were checked
        return PythonSource(declared.current, declared)
    assert declared.source_url is not None  # the settings were checked
    database = database_of(declared.source_url)
    if database is None or not database.is_source:
        database = DATABASES[0]  # it rejects the URL, and its error shows a valid one
    return database.load(declared.section).open_source(declared)


def _store_database(declared: ReadStoreSettings) -> RegisteredDatabase:
    database = database_of(declared.url)
    if database is None:
        scheme = declared.url.partition(":")[0]
        expected = "sqlite:///FILE, postgresql://HOST/DATABASE or opensearch+https://HOST:9200"
        raise ConfigurationError([f"{declared.section}.url: no store for '{scheme}:'; use {expected}"])
    return database
