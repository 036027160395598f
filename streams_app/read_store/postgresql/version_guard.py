"""The statement that writes a batch in PostgreSQL (pure): one statement writes rows and progress, and counts the changes.

Its version guard prevents an older version from overwriting a newer one. Every layout of a table uses the same statement and the
same conditions; a layout adds how the batch and the stored rows are read, and which columns are set.
"""

from __future__ import annotations

from typing import NamedTuple

# ``noted`` writes the progress. If the stored progress is neither $4 nor $5, it returns no row, and nothing is written. Its row
# lock also makes another transaction of the same partition wait until this one has ended.
# ``before`` reads the versions at the start of the statement, which the counts are based on. ``stored``, in the upsert of a layout,
# is the row at the moment of writing. So the guard holds even if another transaction writes meanwhile; only the counts may then be
# slightly wrong.
# Rows are locked in the order of their key, so that two workers never deadlock.
_STATEMENT = """
WITH batch AS MATERIALIZED ({batch}
), noted AS (
    INSERT INTO {progress} AS stored (topic, partition, next_offset, updated_ms)
    SELECT $2::text, $3::integer, $5::bigint, $1::bigint
    WHERE $4::bigint IS NULL OR EXISTS (SELECT FROM {progress} WHERE topic = $2 AND partition = $3)
    ON CONFLICT (topic, partition) DO UPDATE SET next_offset = excluded.next_offset, updated_ms = excluded.updated_ms
    WHERE stored.next_offset IN ($4, $5)
    RETURNING next_offset
), before AS MATERIALIZED ({before}
), upserted AS (
    INSERT INTO {table} AS stored ({columns})
    SELECT {values} FROM batch
    WHERE EXISTS (SELECT FROM noted)
    ORDER BY {key}
    ON CONFLICT ({key}) DO UPDATE SET {assignments}
    WHERE {is_newer}
)
SELECT
    EXISTS (SELECT FROM noted) AS is_noted,
    (SELECT next_offset FROM {progress} WHERE topic = $2 AND partition = $3) AS found,
    count(*) FILTER (WHERE {is_written}) AS written,
    count(*) FILTER (WHERE given < stored OR given = stored AND NOT is_same) AS stale,
    count(*) FILTER (WHERE given >= stored AND is_same) AS unchanged
FROM before
"""


class Layout(NamedTuple):
    """The parts of the statement that depend on the layout of the table.

    The statement has the parameters $1 ``updated_ms``, $2 topic and $3 partition of the progress, $4 the progress that the store
    must have (NULL: none), and $5 the progress after the batch. The parameters of the layout begin with $6.

    Attributes:
        key: Columns of the primary key.
        columns: All columns that are written.
        values: Their values, from ``batch``.
        batch: Query of the rows of the batch.
        before: Query that returns a row per cell of the batch: ``given``, its version; ``stored``, the stored version or NULL;
            ``is_same``, whether the stored value equals the given one.
        assignments: Assignments of an update, from the row ``excluded`` of the batch to the existing row ``stored``.
        is_newer: Condition under which an existing row is updated: a version of ``excluded`` is newer than that of ``stored``.
    """

    key: str
    columns: str
    values: str
    batch: str
    before: str
    assignments: str
    is_newer: str


def apply_statement(table: str, progress: str, layout: Layout) -> str:
    """Build the statement of a batch; it returns one row: ``is_noted``, ``found``, ``written``, ``stale`` and ``unchanged``.

    Args:
        table: Name of the table, quoted.
        progress: Name of the table of the progress, quoted.
        layout: The parts that depend on the layout.
    """
    is_written = is_value_written("given", "stored", "is_same")
    return _STATEMENT.format(table=table, progress=progress, is_written=is_written, **layout._asdict())


def is_version_newer(given: str, stored: str) -> str:
    """Return the version guard, an SQL condition under which a version is written.

    A newer version of an equal value is also written. Otherwise a record with a version in between would be accepted, and an older
    value would overwrite the newer one.
    """
    return f"({stored} IS NULL OR {given} > {stored})"


def is_value_written(given: str, stored: str, is_same: str) -> str:
    """Return an SQL condition under which the value and ``updated_ms`` are written, not only the version."""
    return f"({stored} IS NULL OR {given} > {stored} AND NOT {is_same})"


def is_same_value(left: str, right: str, *, as_text: bool) -> str:
    """Return an SQL condition under which two values are equal.

    Args:
        left: Expression of one value.
        right: Expression of the other value.
        as_text: Whether to compare texts, for JSON and decimal numbers: 1 and 1.0 are equal numbers, but different values.
    """
    cast = "::text" if as_text else ""
    return f"({left}{cast} IS NOT DISTINCT FROM {right}{cast})"
