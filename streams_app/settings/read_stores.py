"""``[read_stores.NAME]``: tables and indexes that are kept in sync with folds, independently of each other."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

from pydantic import AfterValidator, BeforeValidator, Field, field_validator, model_validator

from streams_app.fold import FOLD_NAME, Fold
from streams_app.formatting import Duration, milliseconds, suggestion
from streams_app.settings.base import Section
from streams_app.settings.databases import WITH_SCHEMAS, database_of, location_of, table_name_of
from streams_app.settings.secret_files import read_secret

TABLE: Final = re.compile(r"([A-Za-z_][A-Za-z0-9_]{0,62}\.)?[A-Za-z_][A-Za-z0-9_]{0,44}", re.ASCII)

COLUMN: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,62}", re.ASCII)
"""Pattern of column names. SQL statements quote them, so their case is kept; PostgreSQL would truncate longer names."""

OWN_COLUMNS: Final = ("fold", "group_key", "versions", "updated_ms")
"""Columns that every table with a row per group has, in addition to the columns of changed names."""

EXAMPLE: Final = 'columns = { "click-rate" = "click_rate" }'

MAX_COLUMNS: Final = 1_000
"""Maximum number of columns: PostgreSQL allows 1 600 in a table, SQLite 2 000."""


def _by_name(given: Any) -> dict[str, str]:
    """Convert the setting, a mapping of names to columns or a list of names, to a mapping; a listed name is also its column."""
    if isinstance(given, (list, tuple)) and all(isinstance(name, str) for name in given):
        if len(set(given)) != len(given):
            raise ValueError("a name stands there twice")
        return {name: name for name in given}
    if isinstance(given, dict) and all(isinstance(text, str) for pair in given.items() for text in pair):
        return given
    raise ValueError(f'expected a list of names, columns = ["likes"], or a table name = column, {EXAMPLE}')


def _checked(columns: dict[str, str]) -> dict[str, str]:
    """Validate the columns of all names; the error lists every fault.

    Two columns must not differ only in case, because SQLite, and SQL without quotes, treat them as the same column.
    """
    faults = []
    seen: dict[str, str] = {}
    for name, column in columns.items():
        if COLUMN.fullmatch(column) is None:
            faults.append(f"{column!r} is not a column (letters, digits and _; at most 63); give {name!r} another one: {EXAMPLE}")
        elif column.lower() in OWN_COLUMNS:
            faults.append(f"{column!r} is a column the table has for itself; give {name!r} another one: {EXAMPLE}")
        elif (other := seen.setdefault(column.lower(), name)) != name:
            faults.append(f"{other!r} and {name!r} have the same column {column!r}, as case does not count")
    if faults:
        raise ValueError("; ".join(faults))
    return columns


Columns = Annotated[dict[str, str], BeforeValidator(_by_name), AfterValidator(_checked), Field(max_length=MAX_COLUMNS)]
"""Column of each changed name. The setting may also be a list of names, if the columns have the same names."""


class ReadStoreSettings(Section):
    """``[read_stores.NAME]``: a table or an index that is kept in sync with folds."""

    name: str
    """Label ``store`` of its metrics, and part of its consumer group ``<app_id>.read-store.<name>``."""
    url: str = Field(repr=False)
    """``sqlite:///FILE``, ``postgresql://USER@HOST:PORT/DATABASE``, ``mysql://USER@HOST:PORT/DATABASE`` (also MariaDB) or
    ``opensearch+https://USER@HOST:PORT``."""
    password_file: Path | None = None
    """File with the password for ``url``."""
    ssl_cafile: Path | None = None
    """Trusted certificate authority. The servers of ``url`` and ``source_url`` must then use TLS, with certificates for their host
    names."""
    timeout: Duration = timedelta(seconds=10)
    """How long a connection, a statement or a call of the source may take before it is retried; 100ms to 10m."""
    folds: Annotated[tuple[str, ...], Field(min_length=1)]
    """Folds whose changed names are synced."""
    source: Literal["sql", "carried", "python"] = "sql"
    """Source of current values: ``sql``, a query; ``carried``, the records (needs ``keep = "last"``); ``python``, a function."""
    source_url: str | None = Field(None, repr=False)
    """``sqlite:///FILE``, ``postgresql://USER@HOST:PORT/DATABASE`` or ``mysql://USER@HOST:PORT/DATABASE`` of the write side, for
    ``sql``."""
    source_password_file: Path | None = None
    """File with the password for ``source_url``."""
    sql: str | None = None
    """The query for current values, see below."""
    current: Callable[..., Any] | None = None
    """Python only, for ``python``: a function, async or not, that is called with the name of a fold and a list of pairs (group,
    name), and returns a dict with the value of each pair."""
    table: str = "folded_values"
    """Name of the table, at most 45 characters; in PostgreSQL also ``SCHEMA.TABLE``. See [read-stores.md](read-stores.md)."""
    dead_letters: str = ""
    """Topic for folded records that the store rejects permanently, and for records that are not folded records."""
    shape: Literal["cells", "groups"] = "cells"
    """A row for each name of a group (``cells``), or a row for each group with a column for each name (``groups``)."""
    columns: Columns = Field({})
    """For ``groups``: names that have a column, as a list or a table name → column; other names are rejected."""

    if TYPE_CHECKING:
        # For type checkers: a field accepts more types than it holds after validation.
        def __init__(
            self,
            *,
            name: str,
            url: str,
            folds: Sequence[str],
            password_file: str | Path | None = ...,
            ssl_cafile: str | Path | None = ...,
            timeout: str | timedelta = ...,
            source: Literal["sql", "carried", "python"] = ...,
            source_url: str | None = ...,
            source_password_file: str | Path | None = ...,
            sql: str | None = ...,
            current: Callable[..., Any] | None = ...,
            table: str = ...,
            dead_letters: str = ...,
            shape: Literal["cells", "groups"] = ...,
            columns: Sequence[str] | Mapping[str, str] = ...,
        ) -> None: ...

    @field_validator("name")
    @classmethod
    def _check_name(cls, name: str) -> str:
        if not FOLD_NAME.fullmatch(name):
            raise ValueError("the name of a read store has a-z, 0-9, _ and -, and begins with a letter or digit; at most 63")
        return name

    @field_validator("table")
    @classmethod
    def _check_table(cls, table: str) -> str:
        if TABLE.fullmatch(table) is None:
            raise ValueError(
                f"{table!r} is not a name of a table: letters, digits and _, a letter or _ first, at most 45; "
                f"in {WITH_SCHEMAS} also SCHEMA.TABLE"
            )
        return table

    @model_validator(mode="after")
    def _check(self) -> ReadStoreSettings:
        database = database_of(self.url)
        if "." in self.table and not (database and database.default_schema):
            raise ValueError(f"table = {self.table!r}: there are schemas only in {WITH_SCHEMAS}; leave out what is before the dot")
        if self.source == "sql" and not (self.source_url and self.sql):
            raise ValueError('source = "sql" needs source_url and sql')
        if self.columns and self.shape == "cells":
            raise ValueError('columns are for shape = "groups"')
        if not self.columns and self.shape == "groups" and (database is None or database.needs_columns):
            raise ValueError('shape = "groups" needs columns, as columns = ["likes", "shares"]')
        if (self.source == "python") != (self.current is not None):
            raise ValueError('source = "python" and the function current need each other; a file has no functions: see --app')
        if not timedelta(milliseconds=100) <= self.timeout <= timedelta(minutes=10):
            raise ValueError("timeout must be between 100ms and 10m")
        return self

    @property
    def password(self) -> str | None:
        """Password, read from ``password_file`` at each use; None if no file is set."""
        return read_secret(f"{self.section}.password_file", self.password_file)

    @property
    def source_password(self) -> str | None:
        """Password of the value source, read from ``source_password_file`` at each use; None if no file is set."""
        return read_secret(f"{self.section}.source_password_file", self.source_password_file)

    @property
    def timeout_ms(self) -> int:
        """Timeout of a connection, a statement or a call of the value source, in ms."""
        return milliseconds(self.timeout)

    @property
    def group(self) -> str:
        """Name of the consumer group without the prefix ``<app_id>.``."""
        return f"read-store.{self.name}"

    @property
    def section(self) -> str:
        """Name of the section in the file, for messages."""
        return f"read_stores.{self.name}"


def faults_of(stores: Sequence[ReadStoreSettings], folds: Collection[Fold]) -> list[str]:
    """Check the read stores of an application together; return the faults, one sentence for each."""
    names = [store.name for store in stores]
    faults = ["two read stores have the same name"] if len(set(names)) != len(names) else []
    owner_of_table: dict[tuple[str, str], ReadStoreSettings] = {}
    for store in stores:
        # Stores with a common table would overwrite each other's progress and skip records; and a rebuild of one store must not
        # remove the table of another.
        keys = [(location_of(store.url), table_name_of(store.url, table)) for table in _tables(store)]
        owners = [owner_of_table.setdefault(key, store) for key in keys]
        if other := next((owner for owner in owners if owner.name != store.name), None):
            faults.append(f"{store.section} and {other.section} have the same url and {_clash(store, other.table)}")
        faults += _fold_faults(store, folds)
    return faults


def _clash(store: ReadStoreSettings, other: str) -> str:
    if table_name_of(store.url, store.table) == table_name_of(store.url, other):
        return "table"
    return f"the tables {store.table} and {other}, but a store has the names with _progress, _new and _old for itself"


def _tables(store: ReadStoreSettings) -> list[str]:
    """Return the tables of a store, including those that a rebuild creates and removes."""
    return [f"{store.table}{suffix}{part}" for suffix in ("", "_new", "_old") for part in ("", "_progress")]


def _fold_faults(store: ReadStoreSettings, folds: Collection[Fold]) -> list[str]:
    declared = {fold.name: fold for fold in folds}
    faults = []
    for name in store.folds:
        if name not in declared:
            faults.append(f"{store.section}.folds: there is no fold {name!r}{suggestion(name, list(declared))}")
        elif store.source == "carried" and declared[name].keep != "last":
            faults.append(f'{store.section}.source = "carried" needs keep = "last" in fold {name!r}')
        elif declared[name].keeps_events:
            faults.append(f'{store.section}.folds: fold {name!r} has keep = "events", and a read store needs changed names')
    return faults
