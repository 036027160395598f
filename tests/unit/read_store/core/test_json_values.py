"""JSON of a database as values: numbers keep every digit."""

from __future__ import annotations

from decimal import Decimal

import pytest

from streams_app.read_store.core.merge import JsonText, Value
from streams_app.read_store.core.values import json_text, json_value
from streams_app.read_store.sqlite.values import sqlite_value


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("1", 1), ("1.0", 1.0), ("0.1", 0.1), ("1e400", Decimal("1e400")), ("9" * 30, 10**30 - 1),
        ("0.12345678901234567890123", Decimal("0.12345678901234567890123")), ("9" * 5000, Decimal("9" * 5000)),
        ("true", True), ("null", None), ('"a"', "a"), ('"1"', "1"), ('" "', " "),
        ('{"a": [1.0, 1e400, 12345678901234567890123]}', JsonText('{"a":[1.0,1e400,12345678901234567890123]}')),
        ('{"a": "\\ud800"}', JsonText('{"a": "\\ud800"}')), ("[" * 100_000, JsonText("[" * 100_000)),
    ],
    ids=lambda given: str(given)[:40],
)  # fmt: skip
def test_database_json_is_a_value_with_all_its_digits(text: str, expected: Value) -> None:
    found = json_value(text)

    assert (type(expected), expected) == (type(found), found)


def test_number_beyond_a_double_is_exact_in_json_and_infinite_in_sqlite() -> None:
    found = json_value("1e400")

    assert ("1E+400", float("inf")) == (json_text(found), sqlite_value(found))
