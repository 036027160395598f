"""Tables with a row per group (pure): the row and column of each change, and the requirements on the table.

A row has a column for each name, and a column ``versions`` that maps each column to the version of its value. Versions are stored
by column, not by name: a name that moves to another column starts there without a version.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Final, NamedTuple

from streams_app.read_store.core.column_types import ColumnType, Misfit, SupportedTypes, fitted, type_of
from streams_app.read_store.core.merge import Cell, CellChange, Value

KEY: Final = ("fold", "group_key")


class RowKey(NamedTuple):
    """The primary key of a table with a row per group: the name of the fold, and the group key as text."""

    fold: str
    group_key: str


@dataclass(slots=True)
class RowState:
    """The contents of a row, stored or to be written.

    Attributes:
        updated_ms: Time at which a value last changed, in ms of the wall clock.
    """

    values: dict[str, Value] = field(default_factory=dict)
    versions: dict[str, int] = field(default_factory=dict)
    updated_ms: int = 0

    def set_value(self, column: str, value: Value, version: int) -> None:
        self.values[column] = value
        self.versions[column] = version


class ExistingColumn(NamedTuple):
    """Properties of a column of an existing table.

    Attributes:
        declared_type: Type of the column, as the database writes it.
        is_required: Whether the column is NOT NULL.
        is_filled: Whether the database supplies a value if none is written, because the column has a default or is computed.
        is_computed: Whether the column is computed and therefore cannot be written.
    """

    declared_type: str
    is_required: bool = False
    is_filled: bool = False
    is_computed: bool = False


def row_key(change: CellChange) -> RowKey:
    """Return the key of the row that a change belongs to."""
    return RowKey(change.cell.fold, change.cell.group_key)


def rows_of(changes: Iterable[CellChange], columns: Mapping[str, str]) -> dict[RowKey, RowState]:
    """Group changes by row; return the values and versions to be written into each row.

    Args:
        changes: At most one change per cell. The name of each must have a column.
    """
    rows: dict[RowKey, RowState] = {}
    for change in changes:
        rows.setdefault(row_key(change), RowState()).set_value(columns[change.cell.name], change.value, change.version)
    return rows


def rejection_of(change: CellChange, columns: Mapping[str, str], types: Mapping[str, ColumnType]) -> str | None:
    """Return the reason why a row can never hold a change; columns without a known type are assumed to accept every value."""
    if change.cell.name not in columns:
        return f"the name {change.cell.name!r} has no column"
    column_type = types.get(columns[change.cell.name])
    value = fitted(change.value, column_type) if column_type else None
    return f"the value {value.why}" if isinstance(value, Misfit) else None


def fit_to_columns(
    changes: Iterable[CellChange], columns: Mapping[str, str], types: Mapping[str, ColumnType]
) -> tuple[list[CellChange], dict[Cell, str]]:
    """Convert the values of changes to the types of their columns.

    Returns:
        The converted changes, and the cells whose value cannot be converted, each with the reason.
    """
    converted, rejected = [], {}
    for change in changes:
        value = fitted(change.value, types[columns[change.cell.name]])
        if isinstance(value, Misfit):
            rejected[change.cell] = f"the value {value.why}"
        else:
            converted.append(replace(change, value=value))
    return converted, rejected


class RequiredColumns(NamedTuple):
    """The columns that a table with a row per group must have.

    Attributes:
        own: Declaration of each column that does not belong to a changed name, such as ``versions``. It begins with the type.
        names: Columns of the changed names.
        default_type: Type that a message suggests for a missing column of a changed name.
    """

    own: Mapping[str, str]
    names: Collection[str]
    supported: SupportedTypes
    default_type: str


def types_of(found: Mapping[str, ExistingColumn], wanted: RequiredColumns) -> dict[str, ColumnType]:
    """Return the type of each existing column of a changed name; :func:`table_faults` must have found no faults of the table."""
    types = {column: type_of(found[column].declared_type, wanted.supported) for column in wanted.names if column in found}
    return {column: column_type for column, column_type in types.items() if column_type is not None}


def table_faults(found: Mapping[str, ExistingColumn], keys: Collection[frozenset[str]], wanted: RequiredColumns) -> list[str]:
    """Return a sentence for each reason why an existing table cannot store a row per group; empty if it can.

    Args:
        keys: The columns of each unique key of the table.
    """
    faults = [*_missing(found, wanted), *_own_faults(found, wanted.own), *_name_faults(found, wanted)]
    if found.keys() >= set(KEY) and frozenset(KEY) not in keys:
        faults.append(f"it has no PRIMARY KEY ({', '.join(KEY)})")
    return faults


def _missing(found: Mapping[str, ExistingColumn], wanted: RequiredColumns) -> Iterator[str]:
    by_case = {column.lower(): column for column in found}
    declared = {**dict.fromkeys(wanted.names, wanted.default_type), **wanted.own}
    for column in (*wanted.own, *wanted.names):
        if column not in found:
            other = by_case.get(column.lower())
            hint = f"there is {other}" if other else f"ADD COLUMN {column} {declared[column]}".strip()
            yield f"it has no column {column}: {hint}"


def _own_faults(found: Mapping[str, ExistingColumn], own: Mapping[str, str]) -> Iterator[str]:
    for column, declared in own.items():
        there = found.get(column)
        if there is not None and (there.declared_type != declared.partition(" ")[0] or not there.is_required):
            yield f"its column {column} is {there.declared_type}{' NOT NULL' if there.is_required else ''}; expected {declared}"


def _name_faults(found: Mapping[str, ExistingColumn], wanted: RequiredColumns) -> Iterator[str]:
    for column, there in found.items():
        if column in wanted.names:
            if type_of(there.declared_type, wanted.supported) is None:
                possible = ", ".join(filter(None, wanted.supported.kinds))
                yield f"its column {column} is {there.declared_type}; possible are {possible}"
            if there.is_computed:
                yield f"its column {column} is computed"
            elif there.is_required:
                yield f"its column {column} is NOT NULL, but NULL is what a name has that is not known"
        elif column not in wanted.own and there.is_required and not there.is_filled:
            yield f"its column {column} is NOT NULL without a default, and nothing is written into it"
