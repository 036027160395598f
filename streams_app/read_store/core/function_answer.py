"""The arguments of a user's function for current values, and the interpretation of its result (pure).

The function receives groups as they are in events: ``"account_1"``, ``17``, ``True``, or ``("a", 1)`` for two fields. In the column
``group_key``, quotes distinguish the text ``"17"`` from the number; the function receives the text without the quotes.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import date, time
from decimal import Decimal
from math import isfinite
from typing import Any, Final, TypeAlias
from uuid import UUID

import orjson

from streams_app.read_store.core.merge import CellChange
from streams_app.read_store.core.values import value_of

Scalar: TypeAlias = str | int | float | bool
Group: TypeAlias = Scalar | tuple[Scalar, ...]
Pair: TypeAlias = tuple[Group, str]
"""A group and a changed name."""

PLAIN: Final = (str, int, float, bytes, Decimal, date, time, UUID, type(None))
"""Accepted types of values, besides lists, tuples and dicts. They include bool, a subclass of int, and datetime, one of date."""


class BadAnswerError(ValueError):
    """A function returned an invalid result; the message has the reason, but no part of the result."""


class BadValueError(BadAnswerError):
    """A function returned a value that no store can hold."""


def group_of(column: str) -> Group:
    """Convert a value of the column ``group_key`` to the group as events contain it; a group of several fields becomes a tuple."""
    try:
        value = orjson.loads(column)
    except orjson.JSONDecodeError:
        return column
    return tuple(value) if type(value) is list else value


def calls_for(changes: Sequence[CellChange]) -> list[dict[Pair, CellChange]]:
    """Distribute changes over the calls of a user's function that request their values; usually, one call is enough.

    Groups that are equal in Python, such as 1 and True, need separate calls, because they would be the same key in the dict that
    the function returns.

    Returns:
        A dict for each call: the changes whose values it requests, each by its group and changed name.
    """
    calls: list[dict[Pair, CellChange]] = []
    columns: list[dict[Group, str]] = []
    for change in changes:
        column = change.cell.group_key
        group = group_of(column)
        number = next((number for number, known in enumerate(columns) if known.get(group, column) == column), len(calls))
        if number == len(calls):
            calls.append({})
            columns.append({})
        calls[number][group, change.cell.name] = change
        columns[number][group] = column
    return calls


def with_answer(asked: Mapping[Pair, CellChange], answer: object) -> list[CellChange]:
    """Return the requested changes with the values in ``answer``, the result of the user's function.

    A requested pair that the answer lacks counts as deleted: its value becomes None. A key ``(group, None)`` in the answer reports
    that the whole group was deleted.

    Args:
        asked: The changes of one call, by group and changed name, see :func:`calls_for`.

    Raises:
        BadAnswerError: The answer is not a mapping of the requested pairs to values that a store can hold.
    """
    if not isinstance(answer, Mapping):
        raise BadAnswerError(f"returned {_type(answer)}; expected a dict (group, name) → value")
    gone = _gone(asked, answer)
    unknown = [pair for pair in answer if pair not in asked and pair not in gone.values()]
    if unknown:
        raise BadAnswerError(
            f"returned {len(unknown)} pairs it was not asked for, such as {_shape(unknown[0])}; "
            f"it was asked for such as {_shape(next(iter(asked), ()))}, and groups have the type they have in events"
        )
    return [replace(change, value=_value(answer.get(pair)), is_group_gone=pair[0] in gone) for pair, change in asked.items()]


def _gone(asked: Mapping[Pair, CellChange], answer: Mapping[Any, Any]) -> dict[Group, tuple[Group, None]]:
    """Return the requested groups that the answer reports as deleted, each with the key ``(group, None)`` that reports it.

    Raises:
        BadValueError: The answer has a value for a group that it reports as deleted.
    """
    gone: dict[Group, tuple[Group, None]] = {group: (group, None) for group, _ in asked if (group, None) in answer}
    reported = [*gone.values(), *(pair for pair in asked if pair[0] in gone)]
    if any(answer.get(pair) is not None for pair in reported):
        raise BadValueError("returned a value for a group that it says is gone: (group, None) stands for all of it, with None")
    return gone


def _value(value: object) -> Any:
    if isinstance(value, (float, Decimal)) and not isfinite(value):
        raise BadValueError("returned a value that is not a finite number")
    if isinstance(value, (list, tuple, dict)):
        return value_of(_checked(list(value) if isinstance(value, tuple) else value))
    if not isinstance(value, PLAIN):
        raise BadValueError(f"returned a value of type {_type(value)}; expected number, text, bytes, date, list, dict or None")
    return value_of(value)


def _checked(value: Any) -> Any:
    try:
        json.dumps(value, allow_nan=False, default=_inner)
        # The json module accepts numbers as names of an object, and any depth; orjson does not.
        orjson.dumps(value, default=_inner)
    except (TypeError, ValueError, RecursionError) as error:
        raise BadValueError(f"returned a value that cannot be written as JSON: {error}") from error
    return value


def _inner(value: object) -> str:
    if isinstance(value, Decimal) and not value.is_finite():
        raise ValueError("it contains a number that is not finite")
    if isinstance(value, PLAIN) and not isinstance(value, bytes):
        return str(value)
    raise TypeError(f"{_type(value)} is not JSON")


def _shape(pair: object) -> str:
    """Describe a pair by the types of its items, for messages that must not contain the group itself."""
    return f"({', '.join(map(_type, pair))})" if isinstance(pair, tuple) else _type(pair)


def _type(value: object) -> str:
    return "None" if value is None else type(value).__name__
