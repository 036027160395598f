"""The parameters of the SQL query of a source, and the conversion of the rows that it returns to values of changes (pure)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from decimal import Decimal
from typing import Any, Final

import orjson

from streams_app.codec import MAX_SAFE_INTEGER, TEXT_TAG
from streams_app.errors import TryAgainError
from streams_app.read_store.core.errors import SourceFailedError
from streams_app.read_store.core.merge import CellChange, JsonText, Value
from streams_app.read_store.core.record import group_column, group_of_column, group_text
from streams_app.read_store.core.values import value_of

COLUMNS: Final = 3

MAX_RETURNED: Final = 5
"""Maximum number of names of a group that a message lists."""


def typed_groups(changes: Sequence[CellChange]) -> list[Any]:
    """Return the distinct groups of changes, as the parameter ``:groups`` for a database that distinguishes numbers from text."""
    columns = dict.fromkeys(change.cell.group_key for change in changes)
    return [group for column in columns for group in _typed(column)]


def plain_groups(changes: Sequence[CellChange]) -> list[str]:
    """Return the distinct groups of changes, each as text; the groups 7 and "7" are both the text ``7``, which is returned once."""
    return list(dict.fromkeys(_plain(change.cell.group_key) for change in changes))


def names_of(changes: Sequence[CellChange]) -> list[str]:
    """Return the distinct changed names of the changes."""
    return list(dict.fromkeys(change.cell.name for change in changes))


def with_values(changes: Sequence[CellChange], rows: Iterable[Sequence[Any]], setting: str) -> list[CellChange]:
    """Return the changes with the values that a query returned for them; :mod:`.source` describes the rows.

    Args:
        changes: Changes of one fold.
        rows: Rows of group, name and value. Rows without a group, or with a value but no name, are ignored.

    Raises:
        SourceFailedError: Two rows have the same group and name, or a group that is reported as deleted also has a row with a name.
        TryAgainError: A row does not have three columns.
    """
    pairs = _pairs(rows, setting)
    same_text = _by_text(pairs)

    def row_of(column: str, name: str | None) -> tuple[str, str | None] | None:
        return (column, name) if (column, name) in pairs else same_text.get((_plain(column), name))

    found = []
    is_absent = bool(pairs)
    for change in changes:
        _, column, name = change.cell
        row, is_gone = row_of(column, name), row_of(column, None) is not None
        is_absent = is_absent and row is None and not is_gone
        found.append(replace(change, value=None if row is None else pairs[row], is_group_gone=is_gone))
    return _with_returned_names(found, pairs) if is_absent else found


def _with_returned_names(changes: Sequence[CellChange], pairs: Iterable[tuple[str, str | None]]) -> list[CellChange]:
    """Return changes for which a query returned no row, with the names that it returned for their groups instead."""
    names: dict[str, list[str]] = {}
    for column, name in pairs:
        if name is not None:
            names.setdefault(_plain(column), []).append(name)
    return [replace(one, returned=tuple(sorted(names.get(_plain(one.cell.group_key), ()))[:MAX_RETURNED])) for one in changes]


def check_columns(count: int, setting: str) -> None:
    """Check that a query returns three columns: group, name and value."""
    if count != COLUMNS:
        raise TryAgainError(f"{setting} returns {count} columns; expected group, name, value")


def _pairs(rows: Iterable[Sequence[Any]], setting: str) -> dict[tuple[str, str | None], Value]:
    pairs: dict[tuple[str, str | None], Value] = {}
    for row in rows:
        check_columns(len(row), setting)
        group, name, value = row
        if group is None or (name is None and value is not None):
            continue  # a group or a name is never NULL
        pair = (_column(value_of(group)), None if name is None else _text(value_of(name)))
        if pair in pairs:
            # Either row may be right; a wrong value would be worse than a late one.
            raise _contradiction(setting, "returns several rows for one group and name; aggregate them (GROUP BY)")
        pairs[pair] = value_of(value)
    gone = {_plain(group) for group, name in pairs if name is None}
    if both := sorted({_plain(group) for group, name in pairs if name is not None and _plain(group) in gone}):
        named = f"group {both[0]!r}" + (f" and {len(both) - 1} more" if both[1:] else "")
        raise _contradiction(
            setting, f"returns for {named} a row without a name, which says that it is gone, beside rows of its names"
        )
    return pairs


def _contradiction(setting: str, why: str) -> SourceFailedError:
    return SourceFailedError(f"{setting} {why}", why, is_data_error=False)


def _column(value: Value) -> str:
    """Convert a group that a query returned to the text that the column ``group_key`` has for this group."""
    is_text = isinstance(value, str) and not isinstance(value, JsonText)
    return group_column(TEXT_TAG + str(value).encode()) if is_text else _text(value)


def _typed(column: str) -> list[Any]:
    """Return the query parameters for a group. A number has two, itself and its text, because SQLite distinguishes them."""
    group = group_of_column(column)
    return [group] if isinstance(group, str) else [group, column]


def _plain(column: str) -> str:
    """Convert a value of the column ``group_key`` to text without quotes, which is the same for a number and its text."""
    group = group_of_column(column)
    return group if isinstance(group, str) else column


def _by_text(pairs: Iterable[tuple[str, str | None]]) -> dict[tuple[str, str | None], tuple[str, str | None]]:
    """Index pairs of group and name by the group as text and the name, so that the group 7 is found if the source returns "7".

    If several pairs have the same text and name, they are omitted, because any of them could be meant.
    """
    found: dict[tuple[str, str | None], list[tuple[str, str | None]]] = {}
    for column, name in pairs:
        found.setdefault((_plain(column), name), []).append((column, name))
    return {text: same[0] for text, same in found.items() if len(same) == 1}


def _text(value: Value) -> str:
    """Convert a name, or a group that is not text, to text. A number is written as in JSON, because the group key is JSON."""
    if isinstance(value, str):
        return str(value)
    if isinstance(value, Decimal):
        value = float(value)
    if isinstance(value, float) and value.is_integer() and abs(value) <= MAX_SAFE_INTEGER:
        value = int(value)  # the canonical group key has no 1.0
    return group_text(value) if isinstance(value, bytes) else orjson.dumps(value).decode()
