"""The statement that writes a batch in PostgreSQL (pure): one statement writes rows and checkpoint, and counts the changes.

The version guard of the statement prevents an older version from overwriting a newer one. All layouts of tables use the same
statement and the same conditions; a layout adds how the batch and the stored rows are read, and which columns are set.
"""

from __future__ import annotations

from typing import NamedTuple

# Names of queries end with $, because no table in the settings can have such a name.
# ``written_checkpoint$`` writes the checkpoint. If the stored checkpoint is neither $4 nor $5, it returns no row, and nothing is
# written. Its row lock also makes another transaction of the same partition wait until this one has ended.
# ``before$`` reads the versions at the start of the statement, for the counts. ``stored``, in the upsert of a layout,
# is the row at the moment of writing. So the guard holds even if another transaction writes meanwhile; only the counts may then be
# slightly wrong.
# Rows are locked in the order of their key, so that two workers never deadlock.
_STATEMENT = """
WITH batch$ AS MATERIALIZED ({batch}
), written_checkpoint$ AS (
    INSERT INTO {checkpoints} AS stored (topic, partition, next_offset, updated_ms)
    SELECT $2::text, $3::integer, $5::bigint, $1::bigint
    WHERE $4::bigint IS NULL OR EXISTS (SELECT FROM {checkpoints} WHERE topic = $2 AND partition = $3)
    ON CONFLICT (topic, partition) DO UPDATE SET next_offset = excluded.next_offset, updated_ms = excluded.updated_ms
    WHERE stored.next_offset IN ($4, $5)
    RETURNING next_offset
), before$ AS MATERIALIZED ({before}
), upserted$ AS (
    INSERT INTO {table} AS stored ({columns})
    SELECT {values} FROM batch$
    WHERE EXISTS (SELECT FROM written_checkpoint$)
    ORDER BY {key}
    ON CONFLICT ({key}) DO UPDATE SET {assignments}
    WHERE {is_newer}
)
SELECT
    EXISTS (SELECT FROM written_checkpoint$) AS is_checkpoint_written,
    (SELECT next_offset FROM {checkpoints} WHERE topic = $2 AND partition = $3) AS found,
    count(*) FILTER (WHERE {is_written}) AS written,
    count(*) FILTER (WHERE given < stored OR given = stored AND NOT is_same) AS stale,
    count(*) FILTER (WHERE given >= stored AND is_same) AS unchanged
FROM before$
"""


class Layout(NamedTuple):
    """The parts of the statement that depend on the layout of the table.

    The statement has the parameters $1 ``updated_ms``, $2 topic and $3 partition of the checkpoint, $4 the checkpoint that the
    store must have (NULL means none), and $5 the checkpoint after the batch. The parameters of the layout begin with $6.

    Attributes:
        key: Columns of the primary key, as SQL.
        columns: All columns that are written, as SQL.
        values: SQL expressions of the values of these columns, for a row of the query ``batch$``.
        batch: Query that returns the rows to be written.
        before: Query that returns a row for each cell of the batch, with the columns ``given``, the version of the change;
            ``stored``, the stored version, or NULL if the cell is not stored; and ``is_same``, whether the stored value equals the
            value of the change.
        assignments: Assignments of the update of an existing row, which SQL names ``stored``; the row of the batch is ``excluded``.
        is_newer: Condition under which an existing row is updated: ``excluded`` has a newer version than ``stored``.
    """

    key: str
    columns: str
    values: str
    batch: str
    before: str
    assignments: str
    is_newer: str


def apply_statement(table: str, checkpoints: str, layout: Layout) -> str:
    """Build the statement that writes a batch.

    Args:
        table: Name of the table, quoted.
        checkpoints: Name of the checkpoint table, quoted.

    Returns:
        A statement that returns one row: ``is_checkpoint_written``, whether the batch and the checkpoint were written; ``found``,
        the checkpoint before the statement; and the numbers of cells ``written``, ``stale`` and ``unchanged``.
    """
    is_written = is_value_written("given", "stored", "is_same")
    return _STATEMENT.format(table=table, checkpoints=checkpoints, is_written=is_written, **layout._asdict())


def is_version_newer(given: str, stored: str) -> str:
    """Return the version guard: an SQL condition that holds if the cell is not stored, or is stored with an older version.

    The version is written under this condition, even if the value has not changed, see :class:`.MergeResult`.

    Args:
        given: SQL expression of the version to be written.
        stored: SQL expression of the stored version, which is NULL if the cell is not stored.
    """
    return f"({stored} IS NULL OR {given} > {stored})"


def is_value_written(given: str, stored: str, is_same: str) -> str:
    """Return an SQL condition under which the value and ``updated_ms`` are written, not only the version."""
    return f"({stored} IS NULL OR {given} > {stored} AND NOT {is_same})"


def is_same_value(left: str, right: str, *, as_text: bool) -> str:
    """Return an SQL condition under which two values are equal. JSON and decimal numbers need ``as_text``: 1 and 1.0 differ."""
    cast = "::text" if as_text else ""
    return f"({left}{cast} IS NOT DISTINCT FROM {right}{cast})"
