"""JSON as a database holds it, as a value (pure): numbers keep all their digits, whatever a double would make of them."""

from __future__ import annotations

import json
from decimal import Decimal
from math import isfinite
from typing import Any

import orjson

from streams_app.read_store.core.merge import JsonText, Value
from streams_app.read_store.core.values import MOST_DIGITS


def json_value(text: str) -> Value:
    """A number, true or false, a text; a list or an object becomes its JSON without spaces.

    What cannot be read, as it is nested too deeply or holds half a surrogate pair, stays the text that it was.
    """
    if text[:1] in ("[", "{"):
        return JsonText(_compact(text))
    try:
        return json.loads(text, parse_int=_integer, parse_float=_number)
    except ValueError:
        return JsonText(text)


def _compact(text: str) -> str:
    try:
        found: Any = json.loads(text, parse_int=orjson.Fragment, parse_float=orjson.Fragment)
        return orjson.dumps(found).decode()
    except (ValueError, TypeError, RecursionError):
        return text


def _integer(text: str) -> int | Decimal:
    return int(text) if len(text) < MOST_DIGITS else Decimal(text)


def _number(text: str) -> float | Decimal:
    number = float(text)
    return number if isfinite(number) and Decimal(repr(number)) == Decimal(text) else Decimal(text)
