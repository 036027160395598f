"""Values for typed columns: which fit, how they are converted, and which can never be stored."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import pytest

from streams_app.read_store.core.column_types import ColumnKind, Misfit, fitted, type_of
from streams_app.read_store.core.merge import JsonText
from streams_app.read_store.postgresql.groups import TYPES as POSTGRESQL
from streams_app.read_store.sqlite.groups import TYPES as SQLITE


def fit(value: Any, type_name: str) -> Any:
    column_type = type_of(type_name, POSTGRESQL)
    assert column_type is not None
    return fitted(value, column_type)


@pytest.mark.parametrize("type_name", POSTGRESQL.kinds)
def test_null_fits_every_column(type_name: str) -> None:
    assert None is fit(None, type_name)


@pytest.mark.parametrize(
    ("type_name", "value", "expected"),
    [
        ("bigint", 7, 7), ("bigint", -(2**63), -(2**63)), ("bigint", 2**63 - 1, 2**63 - 1), ("bigint", 3.0, 3),
        ("bigint", Decimal("3E+2"), 300), ("bigint", "9007199254740993", 9007199254740993), ("bigint", "-1.0", -1),
        ("integer", 2**31 - 1, 2**31 - 1),
        ("numeric", 7, Decimal(7)), ("numeric", 0.1, Decimal("0.1")), ("numeric", "1e3", Decimal("1E+3")),
        ("numeric", Decimal("1.10"), Decimal("1.10")), ("numeric", 2**70, Decimal(2**70)),
        ("numeric(5,2)", 999.994, Decimal("999.994")), ("numeric(5,2)", Decimal("-999.99"), Decimal("-999.99")),
        ("numeric(5,0)", 99999, Decimal(99999)), ("numeric(2,-2)", 9900, Decimal(9900)),
        ("double precision", 7, 7.0), ("double precision", "1.5", 1.5), ("double precision", Decimal("0.1"), 0.1),
        ("text", "a", "a"), ("text", 7, "7"), ("text", 1.5, "1.5"), ("text", True, "true"),
        ("text", JsonText('{"a":1}'), '{"a":1}'),
        ("text", b"\x00\xff", "\\x00ff"), ("text", 'a"\\', 'a"\\'), ("character varying(3)", "äöü", "äöü"),
        ("boolean", True, True), ("boolean", 0, False), ("boolean", 1, True), ("boolean", "false", False),
        ("jsonb", {"a": 1}, {"a": 1}), ("jsonb", "a", "a"), ("jsonb", 2**70, 2**70),
        ("timestamp with time zone", "2026-11-23T10:00:00.5+02:00", "2026-11-23T10:00:00.500000+02:00"),
        ("timestamp with time zone", "2026-11-23T10:00:00Z", "2026-11-23T10:00:00+00:00"),
        ("timestamp with time zone", "2026-11-23 10:00", "2026-11-23T10:00:00+00:00"),
        ("timestamp with time zone", "2026-11-23", "2026-11-23T00:00:00+00:00"),
    ],
)  # fmt: skip
def test_value_is_converted_to_its_column_type(type_name: str, value: Any, expected: Any) -> None:
    found = fit(value, type_name)

    assert (type(expected), expected) == (str if isinstance(found, str) else type(found), found)


@pytest.mark.parametrize(
    ("type_name", "value", "why"),
    [
        ("bigint", 2**63, "is beyond bigint"), ("bigint", -(2**63) - 1, "is beyond bigint"),
        ("bigint", 1.5, "is not a whole number"),
        ("bigint", True, "is not a number"), ("bigint", "seven", "is not a number"), ("bigint", "", "is not a number"),
        ("bigint", " 7", "is not a number"), ("bigint", "0x10", "is not a number"), ("bigint", "1_000", "is not a number"),
        ("bigint", "٣", "is not a number"), ("bigint", JsonText("[1]"), "is not a number"), ("bigint", b"1", "is not a number"),
        ("bigint", float("inf"), "is not a finite number"), ("bigint", "1e9999", "is beyond bigint"),
        ("bigint", "1" * 5_001, "is not a number"), ("integer", 2**31, "is beyond integer"),
        ("numeric", float("inf"), "is not a finite number"), ("numeric", "NaN", "is not a number"),
        ("numeric(5,2)", 999.995, "is beyond numeric(5,2)"), ("numeric(5,2)", -1000, "is beyond numeric(5,2)"),
        ("numeric(2,-2)", 9950, "is beyond numeric(2,-2)"),
        ("double precision", float("inf"), "is not a finite number"), ("double precision", 10**400, "is beyond double precision"),
        ("double precision", "1e400", "is beyond double precision"), ("double precision", "a", "is not a number"),
        pytest.param("text", 10**5000, "is an integer of more than 4000 digits", id="long in text"),
        pytest.param("jsonb", 10**5000, "is an integer of more than 4000 digits", id="long in jsonb"),
        pytest.param("bigint", 10**5000, "is beyond bigint", id="long in bigint"),
        pytest.param("boolean", 10**5000, "is neither true nor false", id="long in boolean"),
        ("text", "a\0", "holds U+0000"), ("text", "\ud800", "holds an unpaired surrogate"),
        ("character varying(3)", "abcd", "is longer than character varying(3)"),
        ("boolean", 2, "is neither true nor false"), ("boolean", "yes", "is neither true nor false"),
        ("boolean", 1.0, "is neither true nor false"),
        ("jsonb", "\0", "holds U+0000"), ("jsonb", float("inf"), "is not a finite number"),
        ("timestamp with time zone", 1700000000000, "is not an ISO 8601 time"),
        ("timestamp with time zone", "yesterday", "is not an ISO 8601 time"),
        ("timestamp with time zone", "2026-02-30", "is not an ISO 8601 time"),
    ],
)  # fmt: skip
def test_value_no_column_can_store_is_reported_without_being_shown(type_name: str, value: Any, why: str) -> None:
    found = fit(value, type_name)

    assert isinstance(found, Misfit)
    assert found.why.startswith(why)


@pytest.mark.parametrize(
    ("type_name", "kind", "size", "scale"),
    [
        ("bigint", ColumnKind.INTEGER, 64, 0), ("integer", ColumnKind.INTEGER, 32, 0), ("numeric", ColumnKind.NUMERIC, 0, 0),
        ("numeric(12,2)", ColumnKind.NUMERIC, 12, 2), ("numeric(3,-1)", ColumnKind.NUMERIC, 3, -1),
        ("character varying", ColumnKind.TEXT, 0, 0),
        ("character varying(9)", ColumnKind.TEXT, 9, 0),
    ],
)  # fmt: skip
def test_column_type_is_parsed_from_the_database_description(type_name: str, kind: ColumnKind, size: int, scale: int) -> None:
    assert (type_name, kind, size, scale) == type_of(type_name, POSTGRESQL)


@pytest.mark.parametrize(
    "type_name", ["uuid", "bigint[]", "date", "timestamp without time zone", "json", "money", "", "BIGINT", "a(b)c"]
)
def test_column_type_that_no_value_fits_is_none(type_name: str) -> None:
    assert None is type_of(type_name, POSTGRESQL)


@pytest.mark.parametrize(
    ("type_name", "kind"),
    [
        ("", ColumnKind.ANY),
        ("BIGINT", ColumnKind.INTEGER),
        ("REAL", ColumnKind.DOUBLE),
        ("TEXT", ColumnKind.TEXT),
        ("BOOLEAN", ColumnKind.BOOLEAN),
    ],
)
def test_declared_sqlite_type_must_be_unambiguous(type_name: str, kind: ColumnKind) -> None:
    found = type_of(type_name, SQLITE)

    assert found is not None
    assert kind == found.kind
    assert [None] * 4 == [type_of(other, SQLITE) for other in ("JSON", "DATETIME", "VARCHAR(3)", "NUMERIC(5,2)")]
