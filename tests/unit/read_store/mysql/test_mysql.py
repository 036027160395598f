"""Read stores in MySQL and MariaDB: settings that are checked before a connection, texts of errors, and conversions."""

from __future__ import annotations

import sys
from decimal import Decimal
from typing import Any

import pytest
from asyncmy.errors import OperationalError

from streams_app.errors import ConfigurationError
from streams_app.read_store.core.column_types import ColumnType, type_of
from streams_app.read_store.mysql.connection import OLDEST_MYSQL, RowTooLargeError, error_text, numbers_of, parts_by_size
from streams_app.read_store.mysql.groups import TYPES, read_form, stored_form, written_form
from streams_app.read_store.mysql.source import with_lists
from streams_app.read_store.registry import open_store
from streams_app.settings import ReadStoreSettings


def settings_of(url: str, **given: Any) -> ReadStoreSettings:
    return ReadStoreSettings.model_construct(name="d", url=url, folds=("f",), shape="cells", **{"table": "t", **given})


@pytest.mark.parametrize(
    "url",
    [
        "mysql://u:s3cr/et@h/d", "mysql://h", "mysql://h/", "mysql://h:99999/d", "mysql://h:x/d", "mysql://a,,b/d", "mysql://[::1/d",
        "mysql://u:s3cr@et@h/d@x",
    ],
)  # fmt: skip
def test_invalid_url_is_a_configuration_error_without_the_password(url: str) -> None:
    with pytest.raises(ConfigurationError, match=r"read_stores\.d\.url: expected mysql://USER@HOST:PORT/DATABASE") as caught:
        open_store(settings_of(url))

    assert "s3cr" not in str(caught.value)


@pytest.mark.parametrize("query", ["?ssl-mode=verify_ca", "?sslmode=require", "?charset=latin1", "?ssl-mode="])
def test_parameter_that_would_be_ignored_is_a_configuration_error(query: str) -> None:
    with pytest.raises(ConfigurationError, match="the only parameters are ssl-mode=required and ssl-mode=disabled"):
        open_store(settings_of(f"mysql://h/d{query}"))


def test_name_of_a_table_with_a_schema_is_a_configuration_error() -> None:
    with pytest.raises(ConfigurationError, match=r"'a\.b' is not a valid name of a table"):
        open_store(settings_of("mariadb://h/d", table="a.b"))


def test_missing_driver_is_a_configuration_error_with_the_command_that_installs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in [name for name in sys.modules if name.startswith(("streams_app.read_store.mysql", "asyncmy"))]:
        monkeypatch.delitem(sys.modules, module)
    monkeypatch.setitem(sys.modules, "asyncmy", None)
    with pytest.raises(ConfigurationError, match="asyncmy is not installed; pip install asyncmy"):
        open_store(settings_of("mysql://h/d"))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Duplicate entry 'a-s3cret' for key 'likes'", "Duplicate entry for key 'likes'"),
        ("Duplicate entry 's3cret' for key 'x' for key 'likes'", "Duplicate entry for key 'likes'"),
        (
            "Incorrect string value: '\\xF0\\x9F' for column `d`.`t`.`c` at row 1",
            "Incorrect string value for column `d`.`t`.`c` at row 1",
        ),
        ("Incorrect integer value: 's3cret\nx' for column 'c' at row 1", "Incorrect integer value for column 'c' at row 1"),
        ("Incorrect datetime value: 's3cret' for column 'c' at row 1", "Incorrect datetime value for column 'c' at row 1"),
        ("Table 'd.t' doesn't exist", "Table 'd.t' doesn't exist"),
    ],
)
def test_error_text_has_no_contents_of_rows(text: str, expected: str) -> None:
    assert f"{expected} (error 1)" == error_text(OperationalError(1, text))


@pytest.mark.parametrize(("version", "is_old"), [("5.7.44-log", True), ("8.0.18", True), ("8.0.19", False), ("9.7.4-2", False)])
def test_version_of_mysql_is_compared_by_its_numbers(version: str, is_old: bool) -> None:
    assert is_old is (numbers_of(version) < OLDEST_MYSQL)


def test_rows_are_distributed_over_statements_that_fit_a_packet() -> None:
    rows = ["a" * 10, "ä" * 10, "b" * 40, "c"]

    assert [["a" * 10, "ä" * 10], ["b" * 40], ["c"]] == parts_by_size(rows, 44, 500)
    assert [rows[:2], rows[2:]] == parts_by_size(rows, 10_000, 2)
    assert [] == parts_by_size([], 10, 2)
    with pytest.raises(RowTooLargeError, match="max_allowed_packet of the server allows 43 for a row"):
        parts_by_size(rows, 43, 500)


@pytest.mark.parametrize(
    ("sql", "expected"),
    [
        ("a IN (:groups) AND b IN (:names)", "a IN ('x', 'y') AND b IN (NULL)"),
        ("':groups' \":names\" `:groups` 'it''s :names' 'it\\'s :names'", None), ("-- :groups\n# :names\n/* :groups */ 1", None),
        ("1--:groups", "1--'x', 'y'"), (":groupsx a:names ::names @:groups", "@'x', 'y'"), ("LIKE '%s' % 2", None),
    ],
)  # fmt: skip
def test_parameters_become_lists_outside_of_texts_and_comments(sql: str, expected: str | None) -> None:
    found = with_lists(sql, {"groups": ["'x'", "'y'"], "names": []})

    assert (expected or sql) == found.replace(":groupsx a:names ::names ", "")


@pytest.mark.parametrize(
    ("declared", "value", "stored", "written"),
    [
        ("decimal(12,2)", Decimal("1.005"), Decimal("1.01"), "1.01"), ("decimal(12,2)", 7, 7, 7),
        ("decimal(12,2)", 2.50, Decimal("2.50"), "2.50"),
        ("decimal(40,0)", 10**30, Decimal(10**30), "1" + "0" * 30), ("longtext", "a", '"a"', '"a"'), ("bigint", 7, 7, 7),
        ("datetime(6)", "2026-01-02T01:00:00+02:00", "2026-01-01T23:00:00+00:00", "2026-01-01 23:00:00"),
        ("datetime", "2026-12-31T23:59:59.500000+00:00", "2027-01-01T00:00:00+00:00", "2027-01-01 00:00:00"),
        ("datetime(3)", "2026-01-02T00:00:00.123456+00:00", "2026-01-02T00:00:00.123000+00:00", "2026-01-02 00:00:00.123000"),
        ("datetime", "0001-01-01T00:00:00+02:00", "0001-01-01T00:00:00+02:00", "0001-01-01 00:00:00+02:00"),
        ("text", None, None, None),
    ],
)  # fmt: skip
def test_value_is_converted_to_what_its_column_makes_of_it(declared: str, value: Any, stored: Any, written: Any) -> None:
    column = type_of(declared, TYPES)
    assert isinstance(column, ColumnType)
    found = stored_form(value, column)

    assert (stored, written) == (found, written_form(found, column))
    assert None is read_form(None, column)
