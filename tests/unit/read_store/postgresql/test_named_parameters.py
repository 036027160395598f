"""``:groups`` and ``:names`` in a query for PostgreSQL."""

from __future__ import annotations

import pytest

from streams_app.read_store.postgresql.source import numbered


@pytest.mark.parametrize(
    ("sql", "expected", "used"),
    [
        ("a = ANY(:groups)", "a = ANY($1::text[])", ["groups"]),
        ("b = ANY(:names) AND a = ANY(:groups)", "b = ANY($1::text[]) AND a = ANY($2::text[])", ["names", "groups"]),
        (":groups :groups", "$1::text[] $1::text[]", ["groups"]),
        ("ANY(:groups::bigint[])", "ANY($1::text[]::bigint[])", ["groups"]),
        ("x::groups", "x::groups", []),
        ("':groups' \":names\" 'it''s :names'", "':groups' \":names\" 'it''s :names'", []),
        ("-- :groups\n:groups /* :names */", "-- :groups\n$1::text[] /* :names */", ["groups"]),
        ("$$ :groups $$ $a$ :names $$ $a$", "$$ :groups $$ $a$ :names $$ $a$", []),
        (":groupsx :other a[1:names]", ":groupsx :other a[1$1::text[]]", ["names"]),
    ],
)
def test_parameter_is_numbered_in_any_position(sql: str, expected: str, used: list[str]) -> None:
    assert (expected, used) == numbered(sql)
