"""Conversion of values to the types of SQLite (pure), which has only numbers, text and bytes."""

from __future__ import annotations

from decimal import Decimal
from math import inf

from streams_app.read_store.core.merge import JsonText, Value
from streams_app.read_store.core.values import MAX_INTEGER, MIN_INTEGER, value_of


def sqlite_value(value: Value) -> Value:
    """Convert a value to its form in SQLite: true and false to 1 and 0, JSON to text, decimals to the nearest float.

    Integers of more than 64 bits also become floats. SQLite's own JSON functions convert in the same way, so that a carried value
    equals a value that SQL returns.
    """
    if isinstance(value, bool):
        return int(value)
    if isinstance(value, JsonText):
        return str(value)
    is_whole = isinstance(value, int) and MIN_INTEGER <= value <= MAX_INTEGER
    return _float(value) if isinstance(value, (int, Decimal)) and not is_whole else value


def _float(value: int | Decimal) -> float:
    try:
        return float(value)
    except OverflowError:  # only for an integer; a large decimal number becomes infinite without an error
        return inf if value > 0 else -inf


def sqlite_column_value(value: Value) -> Value:
    """Convert a value for a column. A decimal number without a fraction becomes an integer, as it would in a column of numbers."""
    return sqlite_value(value_of(value) if isinstance(value, Decimal) else value)
