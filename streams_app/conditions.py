"""Conditions on the values of an event, as in ``only = {status = ["open", "new"]}``: the setting, and its test of events (pure)."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Final

from pydantic import BeforeValidator

from streams_app.codec import at_path

MAX_VALUES: Final = 1_000
"""Maximum number of accepted values of one field."""


def parsed_conditions(given: Any) -> dict[str, tuple[Any, ...]]:
    """Convert conditions to a dict that has a tuple of accepted values for each field.

    Raises:
        ValueError: They have another form.
    """
    if not isinstance(given, Mapping) or not all(isinstance(field, str) for field in given):
        raise ValueError('expected fields and their values, as in {status = "open"} or {status = ["open", "new"]}')
    found = {}
    for field, values in given.items():
        listed = tuple(values) if isinstance(values, list | tuple) else (values,)
        if not listed or not all(isinstance(value, str | int | float | bool) for value in listed):
            raise ValueError(f"{field!r} must be a string, number or boolean, or a list of them")
        if len(listed) > MAX_VALUES:
            raise ValueError(f"{field!r} lists {len(listed)} values, at most {MAX_VALUES} are allowed")
        if any(isinstance(value, float) and not math.isfinite(value) for value in listed):
            raise ValueError(f"{field!r} must be a finite number: no event has another one")
        if not all(field.split(".")):
            raise ValueError(f"{field!r} is not a field or dotted path")
        found[field] = listed
    return found


Conditions = Annotated[dict[str, tuple[Any, ...]], BeforeValidator(parsed_conditions)]
"""Accepted values of each field. An event matches if each of these fields has one of its accepted values."""

Condition = tuple[list[str], frozenset[tuple[bool, Any]]]
"""Path of a field, and the accepted values. A flag in each value distinguishes True from 1."""


def conditions_of(given: Mapping[str, Sequence[Any]]) -> list[Condition]:
    """Prepare conditions for :func:`matches`."""
    return [(field.split("."), frozenset((type(value) is bool, value) for value in values)) for field, values in given.items()]


def matches(conditions: Sequence[Condition], event: Any) -> bool:
    """Return whether an event matches; numbers are equal if their values are, and a missing field has no accepted value."""
    return all(is_accepted(at_path(event, path), values) for path, values in conditions)


def is_accepted(value: Any, values: frozenset[tuple[bool, Any]]) -> bool:
    """Return whether a value is one of the accepted ones of a :data:`Condition`; an array or an object never is."""
    return not isinstance(value, dict | list) and (type(value) is bool, value) in values
