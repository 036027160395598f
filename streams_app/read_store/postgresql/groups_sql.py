"""The statements of a table in PostgreSQL with a row a group (pure): made of the columns that the names have.

A batch is one statement. It gets its rows as one JSON array of objects, and the database makes each value what its column is.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from streams_app.read_store.core.column_types import ColumnKind, ColumnType

OWN: Final = {
    "fold": "text NOT NULL", "group_key": "text NOT NULL", "versions": "jsonb NOT NULL DEFAULT '{}'",
    "updated_ms": "bigint NOT NULL DEFAULT 0",
}  # fmt: skip
NAME_TYPE: Final = "jsonb"

# Space in each page, so that a row is updated beside its former self and no index is written.
CREATE: Final = """
CREATE TABLE {table} (fold {fold}, group_key {group_key}, {columns}, versions {versions}, updated_ms {updated_ms},
PRIMARY KEY (fold, group_key)) WITH (fillfactor = 85)
"""
FOUND: Final = """
SELECT attname::text, format_type(atttypid, atttypmod), attnotnull, atthasdef OR attidentity <> '', attgenerated <> ''
FROM pg_attribute WHERE attrelid = to_regclass($1) AND attnum > 0 AND NOT attisdropped ORDER BY attnum
"""
# ``noted`` comes first and decides: where the store does not stand at $4 it gives no row, and nothing is written. It also keeps
# another transaction of the same partition out until this one has ended.
# Rows are locked in the order of their key, so that two workers never wait for each other in a circle. ``before`` is what the
# statement found and what is counted by; ``stored`` is what is there in the moment of writing: the guard of each column is right
# whoever writes meanwhile, only the counts may then be of a moment before.
# A row in which nothing is newer is not written. A newer version of the same value is noted, as a record between the two versions
# would take the value back otherwise.
APPLY: Final = """
WITH batch AS MATERIALIZED (
    SELECT fold, group_key, versions, {columns} FROM jsonb_populate_recordset(NULL::{table}, $1::jsonb)
), noted AS (
    INSERT INTO {progress} AS stored (topic, partition, next_offset, updated_ms)
    SELECT $3::text, $5::integer, $6::bigint, $2::bigint
    WHERE $4::bigint IS NULL OR EXISTS (SELECT FROM {progress} WHERE topic = $3 AND partition = $5)
    ON CONFLICT (topic, partition) DO UPDATE SET next_offset = excluded.next_offset, updated_ms = excluded.updated_ms
    WHERE stored.next_offset IN ($4, $6)
    RETURNING next_offset
), before AS MATERIALIZED (
    SELECT cell.given, cell.stored, cell.is_same
    FROM batch LEFT JOIN {table} AS found USING (fold, group_key),
        LATERAL unnest(ARRAY[{given}], ARRAY[{held}], ARRAY[{is_same}]) AS cell (given, stored, is_same)
    WHERE cell.given IS NOT NULL
), upserted AS (
    INSERT INTO {table} AS stored (fold, group_key, {columns}, versions, updated_ms)
    SELECT fold, group_key, {columns}, versions, $2::bigint FROM batch
    WHERE EXISTS (SELECT FROM noted)
    ORDER BY fold, group_key
    ON CONFLICT (fold, group_key) DO UPDATE SET
        {assignments},
        versions = stored.versions || (SELECT jsonb_object_agg(given.key, given.value) FROM {newer}),
        updated_ms = CASE WHEN {is_changed} THEN excluded.updated_ms ELSE stored.updated_ms END
    WHERE EXISTS (SELECT FROM {newer})
)
SELECT
    EXISTS (SELECT FROM noted) AS is_noted,
    (SELECT next_offset FROM {progress} WHERE topic = $3 AND partition = $5) AS found,
    count(*) FILTER (WHERE stored IS NULL OR given > stored AND NOT is_same) AS written,
    count(*) FILTER (WHERE given < stored OR given = stored AND NOT is_same) AS stale,
    count(*) FILTER (WHERE given >= stored AND is_same) AS unchanged
FROM before
"""
NEWER: Final = """
jsonb_each(excluded.versions) AS given WHERE given.value::bigint > COALESCE((stored.versions ->> given.key)::bigint, -1)
""".strip()
GUARDED: Final = "SELECT count(*) FROM {table}, jsonb_each(versions) AS held WHERE fold = $1 AND held.value::bigint >= 0"
LOWER: Final = """
UPDATE {table} SET versions = (SELECT jsonb_object_agg(held, -1) FROM jsonb_object_keys(versions) AS held)
WHERE fold = $1 AND EXISTS (SELECT FROM jsonb_each(versions) AS held WHERE held.value::bigint >= 0)
"""


def apply_statement(table: str, progress: str, types: Mapping[str, ColumnType]) -> str:
    """The statement of a batch.

    Args:
        table: Name of the table, with its quotes.
        progress: Name of the table beside it, with its quotes.
        types: Column of a name → its type; columns are letters, digits and ``_``.
    """
    return APPLY.format(
        table=table,
        progress=progress,
        columns=", ".join(f'"{column}"' for column in types),
        given=", ".join(_version(column, "batch") for column in types),
        held=", ".join(_version(column, "found") for column in types),
        is_same=", ".join(_is_same(column, known, "batch", "found") for column, known in types.items()),
        assignments=",\n        ".join(_assignment(column, known) for column, known in types.items()),
        newer=NEWER,
        is_changed=" OR ".join(_is_changed(column, known) for column, known in types.items()),
    )


def create_statement(table: str, columns: Mapping[str, str]) -> str:
    """The table as ``init`` makes it.

    Args:
        table: Its name, with quotes.
        columns: Column of a name → its type.
    """
    return CREATE.format(table=table, columns=", ".join(f'"{column}" {told}' for column, told in columns.items()), **OWN)


def _version(column: str, side: str) -> str:
    return f"({side}.versions ->> '{column}')::bigint"


def _assignment(column: str, known: ColumnType) -> str:
    return f'"{column}" = CASE WHEN {_is_changed(column, known)} THEN excluded."{column}" ELSE stored."{column}" END'


def _is_changed(column: str, known: ColumnType) -> str:
    """A column that the batch does not name is not looked at further."""
    given, held = _version(column, "excluded"), _version(column, "stored")
    is_same = _is_same(column, known, "excluded", "stored")
    return f"(excluded.versions ? '{column}' AND ({held} IS NULL OR {given} > {held} AND NOT {is_same}))"


def _is_same(column: str, known: ColumnType, left: str, right: str) -> str:
    """Of JSON and decimals as text: 1 and 1.0 are equal numbers and two values."""
    cast = "::text" if known.kind in (ColumnKind.JSON, ColumnKind.NUMERIC) else ""
    return f'{left}."{column}"{cast} IS NOT DISTINCT FROM {right}."{column}"{cast}'
