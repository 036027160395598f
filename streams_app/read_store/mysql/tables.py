"""Tables in MySQL and MariaDB: how they are created, described and checked, and how rows are read and written by their key.

Keys are compared byte by byte, with their case, accents and trailing spaces. The collation that does this has another name on each
server. ``VARBINARY`` does it, too, but many tools show it as hexadecimal text.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from asyncmy.errors import MySQLError

from streams_app.errors import ConfigurationError
from streams_app.read_store.core.group_rows import ExistingColumn
from streams_app.read_store.mysql.connection import TABLE_EXISTS, MysqlConnection, number_of, parts_by_size

KEY_SIZES: Final = {"fold": 64, "group_key": 448, "name": 256}
"""Characters of the columns of the key of a cell. InnoDB limits a key to 3 072 bytes: 768 characters of up to 4 bytes."""

GROUP_KEY_SIZES: Final = {"fold": 64, "group_key": 704}
CHECKPOINT_SIZES: Final = {"topic": 300}
EXACT: Final = ("utf8mb4_nopad_bin", "utf8mb4_0900_bin")
"""Collations that compare texts byte by byte, without ignoring trailing spaces, as ``utf8mb4_bin`` does."""

LONG_TEXT: Final = "longtext CHARACTER SET utf8mb4 COLLATE utf8mb4_bin"
TEXTS: Final = ("longtext", "mediumtext", "text")
MAX_ROWS: Final = 500
"""Maximum number of rows of a statement."""

CREATE: Final = (
    "CREATE TABLE {table} ({columns}, PRIMARY KEY ({key})) ENGINE = InnoDB ROW_FORMAT = DYNAMIC DEFAULT CHARACTER SET utf8mb4"
)
FOUND: Final = """
SELECT column_name, column_type, collation_name, is_nullable = 'NO',
    column_default IS NOT NULL OR extra LIKE '%%auto_increment%%' OR COALESCE(generation_expression, '') <> '',
    COALESCE(generation_expression, '') <> ''
FROM information_schema.columns WHERE table_schema = DATABASE() AND table_name = %s ORDER BY ordinal_position
"""
KEYS: Final = """
SELECT index_name, column_name, sub_part IS NOT NULL FROM information_schema.statistics
WHERE table_schema = DATABASE() AND table_name = %s AND non_unique = 0
"""
ENGINE: Final = "SELECT engine FROM information_schema.tables WHERE table_schema = DATABASE() AND table_name = %s"
INTEGER: Final = re.compile(r"\b((?:big|small|medium)?int)\(\d+\)")
"""An integer type with a display width, which older servers show and which has no meaning."""


class FoundColumn(NamedTuple):
    """A column of a table, as the server describes it."""

    column_type: str
    collation: str | None
    is_required: bool
    is_filled: bool
    is_computed: bool

    def type_as(self, expected: str) -> str:
        """Return the type for comparison with an expected one: that one if it is equivalent, otherwise the type as it is."""
        base = self.column_type.partition("(")[0]
        if "COLLATE" in expected and expected.startswith("varchar"):
            is_exact = base == "varbinary" or (base == "varchar" and self.collation in EXACT)
            return expected.partition(" ")[0] if is_exact else " COLLATE ".join(filter(None, (self.column_type, self.collation)))
        if expected.startswith("longtext") and (base in TEXTS or (base == "json" and "NOT NULL" in expected)):
            return "longtext"  # of JSON, only `versions` is NOT NULL, whose numbers have 64 bits
        return self.column_type


@dataclass(frozen=True, slots=True)
class FoundTable:
    """A table, as the server describes it.

    Attributes:
        keys: The columns of each unique key.
    """

    columns: Mapping[str, FoundColumn]
    keys: Sequence[frozenset[str]]
    engine: str

    def existing(self, own: Mapping[str, str]) -> dict[str, ExistingColumn]:
        """Return the columns of a table with a row per group; ``own`` are the declarations of those that belong to no name."""
        return {
            name: ExistingColumn(_type(column, own.get(name, "")), column.is_required, column.is_filled, column.is_computed)
            for name, column in self.columns.items()
        }

    def engine_fault(self) -> str | None:
        """Return the fault of an engine without transactions, or None."""
        return None if self.engine == "InnoDB" else f"has the engine {self.engine}; expected InnoDB, which has transactions"

    def unsafe(self, columns: Mapping[str, str]) -> str | None:
        """Return why a table that has the expected columns would mix up groups, or lose what it writes; None if it would not."""
        is_loose = self.columns.keys() == columns.keys() and any(
            column.type_as(columns[name]) != columns[name].partition(" ")[0]
            for name, column in self.columns.items()
            if name in KEY_SIZES
        )
        return self.fault(columns, ()) if is_loose else self.engine_fault()

    def fault(self, columns: Mapping[str, str], key: Sequence[str]) -> str | None:
        """Return how the table differs from the expected one, or None if it does not.

        Args:
            columns: Declaration of each column.
            key: Columns of the primary key.
        """
        found = {name: column.type_as(columns.get(name, "")) for name, column in self.columns.items()}
        if found != {name: declared.partition(" ")[0] for name, declared in columns.items()}:
            return f"has the columns {_listed(found)}; expected {_listed(columns)}"
        if frozenset(key) not in self.keys:
            return f"has no PRIMARY KEY ({', '.join(key)})"
        return self.engine_fault()


def _type(column: FoundColumn, expected: str) -> str:
    """Return the type of a column of a table with a row per group. MariaDB and MySQL know no type boolean, but ``tinyint(1)``."""
    found = column.type_as(expected)
    return "boolean" if found == "tinyint(1)" else found


async def described(connection: MysqlConnection, table: str) -> FoundTable | None:
    """Return the description of a table, or None if there is none."""
    engines = await connection.fetch(ENGINE, table)
    if not engines:
        return None
    columns = {
        name: FoundColumn(INTEGER.sub(r"\1", text(kind)), collation, *map(bool, rest))
        for name, kind, collation, *rest in await connection.fetch(FOUND, table)
    }
    keys: dict[str, set[str]] = {}
    partial = set()
    for index, column, is_prefix in await connection.fetch(KEYS, table):
        keys.setdefault(index, set()).add(column)
        if is_prefix or column is None:
            partial.add(index)
    return FoundTable(columns, [frozenset(found) for index, found in keys.items() if index not in partial], engines[0][0] or "")


def exact_text(connection: MysqlConnection, size: int) -> str:
    """Return the declaration of a column of texts that are compared byte by byte."""
    collation = EXACT[0] if connection.is_mariadb else EXACT[1]
    return f"varchar({size}) CHARACTER SET utf8mb4 COLLATE {collation} NOT NULL"


def exact_columns(connection: MysqlConnection, sizes: Mapping[str, int]) -> dict[str, str]:
    """Return the declarations of the columns of texts of a key."""
    return {name: exact_text(connection, size) for name, size in sizes.items()}


def checkpoint_columns(connection: MysqlConnection) -> dict[str, str]:
    """Return the declarations of the columns of a checkpoint table."""
    numbers = {"partition": "int NOT NULL", "next_offset": "bigint NOT NULL", "updated_ms": "bigint NOT NULL"}
    return {**exact_columns(connection, CHECKPOINT_SIZES), **numbers}


CHECKPOINT_KEY: Final = ("topic", "partition")


def cell_columns(connection: MysqlConnection) -> dict[str, str]:
    """Return the declarations of the columns of a table with a row per cell.

    The value is text: JSON in MySQL rounds numbers of more than 64 bits, and in MariaDB it is another name of this type.
    """
    rest = {"value": LONG_TEXT, "version": "bigint NOT NULL", "updated_ms": "bigint NOT NULL"}
    return {**exact_columns(connection, KEY_SIZES), **rest}


async def create(connection: MysqlConnection, table: str, columns: Mapping[str, str], key: Sequence[str]) -> bool:
    """Create a table with a primary key; return whether it did not exist."""
    definitions = ", ".join(f"{quoted(name)} {declared}" for name, declared in columns.items())
    try:
        await connection.execute(CREATE.format(table=quoted(table), columns=definitions, key=listed(key)))
    except MySQLError as error:  # another process has just created it
        if number_of(error) != TABLE_EXISTS:
            raise
        return False
    return True


async def initialised(connection: MysqlConnection, setting: str, table: str, columns: Mapping[str, str], key: Sequence[str]) -> str:
    """Create a table if it is missing; return a sentence about it.

    Raises:
        ConfigurationError: The existing table differs from the expected one; the fault begins with the name of the setting.
    """
    found = await described(connection, table)
    if found is None:
        if await create(connection, table, columns, key):
            return f"created table {table}"
        found = await described(connection, table)
    if found is not None and (fault := found.fault(columns, key)):
        raise ConfigurationError([f"{setting}: {table} {fault}"])
    return f"table {table} already exists"


async def rows_of_keys(
    connection: MysqlConnection,
    table: str,
    key: Sequence[str],
    keys: Sequence[Sequence[str]],
    columns: Sequence[str],
    lock: str = "",
) -> list[tuple[Any, ...]]:
    """Read the rows of some keys; the rows are locked in the order of the primary key.

    Args:
        key: Columns of the primary key, or the first of them.
        keys: Values of these columns, for each row.
        columns: Columns to be read.
        lock: ``FOR UPDATE``, or nothing.
    """
    conditions = [
        "(" + " AND ".join(f"{quoted(name)} = {connection.literal(part)}" for name, part in zip(key, values, strict=True)) + ")"
        for values in sorted(set(map(tuple, keys)))
    ]
    found = []
    for part in parts_by_size(conditions, connection.max_bytes, MAX_ROWS):
        # Without ORDER BY: an index gives the order, and a sort would lock the rows in the order in which it finds them.
        sql = f"SELECT {listed(columns)} FROM {quoted(table)} WHERE {' OR '.join(part)} {lock}"
        found += await connection.fetch(sql)
    return found


async def put_rows(
    connection: MysqlConnection,
    table: str,
    key: Sequence[str],
    columns: Sequence[str],
    rows: Sequence[tuple[Any, ...]],
    *,
    is_new: bool,
) -> None:
    """Insert rows, or update existing ones that are locked.

    New rows are inserted without ON DUPLICATE KEY UPDATE, which would update another row if a user's unique key has its value.

    Args:
        columns: Columns of the key, and then the others.
        rows: A value for each column; ordered by key, so that two writers do not deadlock.
    """
    # The alias ends with $, because no table in the settings can have such a name.
    if is_new:
        suffix = ""
    else:
        given = "VALUES({})" if connection.is_mariadb else "`given$`.{}"
        changed = [quoted(column) for column in columns if column not in key]
        alias = "" if connection.is_mariadb else " AS `given$`"
        suffix = f"{alias} ON DUPLICATE KEY UPDATE {', '.join(f'{name} = {given.format(name)}' for name in changed)}"
    texts = [connection.literal(row) for row in rows]
    reserved = len(listed(columns)) + len(suffix)
    for part in parts_by_size(texts, max(1, connection.max_bytes - reserved), MAX_ROWS):
        await connection.execute(f"INSERT INTO {quoted(table)} ({listed(columns)}) VALUES {', '.join(part)}{suffix}")


def quoted(name: str) -> str:
    """Return the name of a table or a column as a quoted SQL identifier."""
    return "`" + name.replace("`", "``") + "`"


def listed(names: Sequence[str]) -> str:
    """Return quoted names, separated by commas."""
    return ", ".join(map(quoted, names))


def text(value: Any) -> str:
    """Return a text that the driver may have returned as bytes, because its column is binary."""
    return value.decode("utf-8", "backslashreplace") if isinstance(value, bytes) else str(value)


def _listed(columns: Mapping[str, str]) -> str:
    return ", ".join(f"{name} {kind}" for name, kind in columns.items())
