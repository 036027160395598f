"""Types of columns (pure): which values a column accepts unchanged, which are converted, and which it can never hold.

A text that contains a number fits a column of numbers, because long numbers are often quoted; a number fits a column of texts.
Ambiguous conversions are rejected: true is not a number, a number is not a time, and a fraction is not an integer.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from decimal import Context, Decimal
from enum import StrEnum
from math import isfinite
from typing import Final, NamedTuple

from streams_app.read_store.core.merge import JsonText, Value
from streams_app.read_store.core.values import integer_fault, json_fault, json_text, text_fault


class ColumnKind(StrEnum):
    """Kinds of values that a column of a table can hold."""

    JSON = "any JSON"
    ANY = "anything"
    INTEGER = "integers"
    NUMERIC = "decimal numbers"
    DOUBLE = "floats"
    TEXT = "texts"
    BOOLEAN = "true and false"
    MOMENT = "moments"


class ColumnType(NamedTuple):
    """Type of a column: the kind of its values, and their limits.

    Attributes:
        declared: The type as the database writes it, such as ``numeric(12,2)``.
        size: Maximum size of a value: the bits of an integer, the digits of a decimal number, or the characters of a text. 0 means
            that the size is not limited.
        scale: For a decimal number whose ``size`` is limited: the number of digits after the decimal point.
    """

    declared: str
    kind: ColumnKind
    size: int = 0
    scale: int = 0


@dataclass(frozen=True, slots=True)
class SupportedTypes:
    """The types of columns that a database supports.

    Attributes:
        kinds: Kind of the values of each type. A key is the name of a type without a size, such as ``numeric``.
        bits: Number of bits of those integer types that have fewer than 64, by the name of the type.
        has_sizes: Whether the database enforces the size of a type such as ``numeric(12,2)``. Otherwise no type with a size is
            supported.
    """

    kinds: Mapping[str, ColumnKind]
    bits: Mapping[str, int] = field(default_factory=dict)
    has_sizes: bool = True


@dataclass(frozen=True, slots=True)
class Misfit:
    """A value that a column can never hold.

    Attributes:
        why: The reason as a predicate, such as "is not a number"; it does not contain the value.
    """

    why: str


TYPE: Final = re.compile(r"([^()]*?)(?:\((\d+)(?:,(-?\d+))?\))?")
NUMBER: Final = re.compile(r"[+-]?(\d+(\.\d*)?|\.\d+)([eE][+-]?\d{1,4})?", re.ASCII)
MAX_DIGITS: Final = 5_000
"""Maximum length of a text that is parsed as a number: the time to parse a text grows with the square of its length."""

EXACT: Final = Context(prec=2 * MAX_DIGITS)
MAX_BITS: Final = 64


def type_of(declared: str, supported: SupportedTypes) -> ColumnType | None:
    """Return the type of a column, or None if columns of this type are not supported."""
    parts = TYPE.fullmatch(declared)
    kind = supported.kinds.get(parts[1]) if parts else None
    if parts is None or kind is None or (parts[2] and not supported.has_sizes):
        return None
    if kind is ColumnKind.INTEGER:
        return ColumnType(declared, kind, supported.bits.get(parts[1], MAX_BITS))
    return ColumnType(declared, kind, int(parts[2] or 0), int(parts[3] or 0))


def fitted(value: Value, column: ColumnType) -> Value | Misfit:
    """Convert a value to the type of a column, or return why the column can never hold it; None fits every column."""
    return None if value is None else FITTING[column.kind](value, column)


def _json(value: Value, column: ColumnType) -> Value | Misfit:
    fault = json_fault(value)
    return Misfit(fault) if fault else value


def _any(value: Value, column: ColumnType) -> Value | Misfit:
    return value


def _integer(value: Value, column: ColumnType) -> Value | Misfit:
    number = _number(value)
    if isinstance(number, Misfit):
        return number
    # Check the exponent first: int() of a short text such as 1e999999999 would use all memory.
    if number.adjusted() > MAX_BITS or not -(2 ** (column.size - 1)) <= number < 2 ** (column.size - 1):
        return Misfit(f"is beyond {column.declared}")
    whole = int(number)
    return whole if whole == number else Misfit(f"is not a whole number, as {column.declared} holds")


def _numeric(value: Value, column: ColumnType) -> Value | Misfit:
    number = _number(value)
    if isinstance(number, Misfit) or not column.size:
        return number
    # The database rounds to the scale, and then rejects a number with too many digits.
    limit = EXACT.subtract(Decimal(10).scaleb(column.size - column.scale - 1), Decimal(5).scaleb(-column.scale - 1, EXACT))
    return number if number.copy_abs() < limit else Misfit(f"is beyond {column.declared}")


def _double(value: Value, column: ColumnType) -> Value | Misfit:
    if isinstance(value, float):
        return value if isfinite(value) else Misfit("is not a finite number")
    number = _number(value)
    if isinstance(number, Misfit):
        return number
    found = float(number)
    return found if isfinite(found) else Misfit(f"is beyond {column.declared}")


def _text(value: Value, column: ColumnType) -> Value | Misfit:
    r"""Convert a value to text: bytes become hexadecimal text, ``\x00ff``, and other values that are not text become JSON."""
    if fault := integer_fault(value):
        return Misfit(fault)
    text = f"\\x{value.hex()}" if isinstance(value, bytes) else str(value) if isinstance(value, str) else json_text(value) or ""
    fault = text_fault(text)
    if fault is None and column.size and len(text) > column.size:
        fault = f"is longer than {column.declared}"
    return Misfit(fault) if fault else text


def _boolean(value: Value, column: ColumnType) -> Value | Misfit:
    """Convert a value to true or false; the texts "true" and "false" are accepted, and 1 and 0, which some databases store."""
    if value in (0, 1) and isinstance(value, int):
        return bool(value)
    return {"true": True, "false": False}.get(str(value) if isinstance(value, str) else "", Misfit("is neither true nor false"))


def _moment(value: Value, column: ColumnType) -> Value | Misfit:
    """Convert a time in ISO 8601 to one with an offset. A time without an offset is in UTC, whatever time zone the server has."""
    try:
        moment = datetime.fromisoformat(value if isinstance(value, str) else "")
    except ValueError:
        return Misfit("is not an ISO 8601 time")
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).isoformat()


def _number(value: Value) -> Decimal | Misfit:
    """Convert a number, or a text that is a number, to a decimal number; a float keeps the digits that ``repr`` shows."""
    if isinstance(value, bool) or not isinstance(value, (int, float, Decimal, str)) or isinstance(value, JsonText):
        return Misfit("is not a number")
    if isinstance(value, str) and (len(value) > MAX_DIGITS or not NUMBER.fullmatch(value)):
        return Misfit("is not a number")
    number = Decimal(repr(value) if isinstance(value, float) else value)
    return number if number.is_finite() else Misfit("is not a finite number")


FITTING: Final[Mapping[ColumnKind, Callable[[Value, ColumnType], Value | Misfit]]] = {
    ColumnKind.JSON: _json, ColumnKind.ANY: _any, ColumnKind.INTEGER: _integer, ColumnKind.NUMERIC: _numeric,
    ColumnKind.DOUBLE: _double, ColumnKind.TEXT: _text,
    ColumnKind.BOOLEAN: _boolean, ColumnKind.MOMENT: _moment,
}  # fmt: skip
