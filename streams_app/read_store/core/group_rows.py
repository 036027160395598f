"""A row a group (pure): which change belongs to which row and column, and whether a table has what is needed for it.

A row has a column for each name, and beside them ``versions``: column → version of what it holds. It is kept by column and not by
name, as a name that moves to another column begins anew there.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Final, NamedTuple

from streams_app.read_store.core.column_types import ColumnKind, ColumnType, Misfit, fitted, type_of
from streams_app.read_store.core.merge import Cell, CellChange, Value

KEY: Final = ("fold", "group_key")


class RowKey(NamedTuple):
    """Primary key of a table with a row a group."""

    fold: str
    group_key: str


@dataclass(slots=True)
class RowState:
    """What is known of a row, or said about it.

    Attributes:
        values: Column → value.
        versions: Column → version of its value.
        updated_ms: When a value last changed.
    """

    values: dict[str, Value] = field(default_factory=dict)
    versions: dict[str, int] = field(default_factory=dict)
    updated_ms: int = 0

    def take(self, column: str, value: Value, version: int) -> None:
        """Writes one column."""
        self.values[column] = value
        self.versions[column] = version


class ExistingColumn(NamedTuple):
    """A column of a table that is there.

    Attributes:
        declared_type: Its type.
        is_required: It is NOT NULL.
        is_filled: The database fills it where nothing is written: a default, or computed.
        is_computed: It cannot be written at all.
    """

    declared_type: str
    is_required: bool = False
    is_filled: bool = False
    is_computed: bool = False


def row_key(change: CellChange) -> RowKey:
    """The row that a change belongs to."""
    return RowKey(change.cell.fold, change.cell.group_key)


def rows_of(changes: Iterable[CellChange], columns: Mapping[str, str]) -> dict[RowKey, RowState]:
    """Changes by row, each of a name that has a column.

    Args:
        changes: At most one a cell.
        columns: Name → column.
    """
    rows: dict[RowKey, RowState] = {}
    for change in changes:
        rows.setdefault(row_key(change), RowState()).take(columns[change.cell.name], change.value, change.version)
    return rows


def rejection_of(change: CellChange, columns: Mapping[str, str], types: Mapping[str, ColumnType]) -> str | None:
    """Why a row can never hold a change, as far as types are known; None: it can.

    Args:
        change: What is to be written.
        columns: Name → column.
        types: Column → type.
    """
    if change.cell.name not in columns:
        return f"the name {change.cell.name!r} has no column"
    known = types.get(columns[change.cell.name])
    value = fitted(change.value, known) if known else None
    return f"the value {value.why}" if isinstance(value, Misfit) else None


def fit_to_columns(
    changes: Iterable[CellChange], columns: Mapping[str, str], types: Mapping[str, ColumnType]
) -> tuple[list[CellChange], dict[Cell, str]]:
    """Changes with their values as their columns hold them; and those that cannot be held, with the reason."""
    held, rejected = [], {}
    for change in changes:
        value = fitted(change.value, types[columns[change.cell.name]])
        if isinstance(value, Misfit):
            rejected[change.cell] = f"the value {value.why}"
        else:
            held.append(replace(change, value=value))
    return held, rejected


class RequiredColumns(NamedTuple):
    """What a table of groups needs.

    Attributes:
        own: Columns beside those of names → their declaration, which begins with the type.
        names: Columns of names.
        known: Types that these may have.
        default_type: Type for one that is missing.
    """

    own: Mapping[str, str]
    names: Collection[str]
    known: Mapping[str, ColumnKind]
    default_type: str


def types_of(found: Mapping[str, ExistingColumn], wanted: RequiredColumns) -> dict[str, ColumnType]:
    """Column of a name → its type; the table is as it should be."""
    types = {column: type_of(found[column].declared_type, wanted.known) for column in wanted.names if column in found}
    return {column: known for column, known in types.items() if known is not None}


def table_faults(found: Mapping[str, ExistingColumn], keys: Collection[frozenset[str]], wanted: RequiredColumns) -> list[str]:
    """What keeps a table that is there from holding groups, all of it at once.

    Args:
        found: Its columns.
        keys: Sets of columns that are unique.
        wanted: What it needs.
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
            told = f"there is {other}" if other else f"ADD COLUMN {column} {declared[column]}".strip()
            yield f"it has no column {column}: {told}"


def _own_faults(found: Mapping[str, ExistingColumn], own: Mapping[str, str]) -> Iterator[str]:
    for column, declared in own.items():
        there = found.get(column)
        if there is not None and (there.declared_type != declared.partition(" ")[0] or not there.is_required):
            yield f"its column {column} is {there.declared_type}{' NOT NULL' if there.is_required else ''}; expected {declared}"


def _name_faults(found: Mapping[str, ExistingColumn], wanted: RequiredColumns) -> Iterator[str]:
    for column, there in found.items():
        if column in wanted.names:
            if type_of(there.declared_type, wanted.known) is None:
                yield f"its column {column} is {there.declared_type}; possible are {', '.join(filter(None, wanted.known))}"
            if there.is_computed:
                yield f"its column {column} is computed"
            elif there.is_required:
                yield f"its column {column} is NOT NULL, but NULL is what a name has that is not known"
        elif column not in wanted.own and there.is_required and not there.is_filled:
            yield f"its column {column} is NOT NULL without a default, and nothing is written into it"
