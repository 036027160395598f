"""Conversion of values to the types of SQLite (pure), which has only numbers, text and bytes."""

from __future__ import annotations

from decimal import Decimal

from streams_app.read_store.core.merge import CarriedDecimal, JsonText, Value
from streams_app.read_store.core.values import MAX_INTEGER, MIN_INTEGER, value_of


def sqlite_value(value: Value) -> Value:
    """Convert a value to its form in SQLite: true and false to 1 and 0, JSON to text, decimals to the nearest float.

    Integers of more than 64 bits, and decimals in records whose digits no double keeps, become their digits as text, so that no
    digit is lost.
    """
    if isinstance(value, bool):
        return int(value)
    if isinstance(value, JsonText):
        return str(value)
    is_wide = isinstance(value, int) and not MIN_INTEGER <= value <= MAX_INTEGER
    if is_wide or isinstance(value, CarriedDecimal):
        return str(value)
    return float(value) if isinstance(value, Decimal) else value


def sqlite_column_value(value: Value) -> Value:
    """Convert a value for a column. A decimal number without a fraction becomes an integer, as it would in a column of numbers."""
    return sqlite_value(value_of(value) if isinstance(value, Decimal) else value)
