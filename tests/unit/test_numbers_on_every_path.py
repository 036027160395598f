"""A number keeps its value on every path from an event to a record and to a read store, whatever its size and digits."""

from __future__ import annotations

import json
from collections.abc import Callable
from decimal import Decimal
from fractions import Fraction
from typing import Any

import pytest

from streams_app import Fold, LiveView
from streams_app.formatting import json_line
from streams_app.health.http import json_reply
from streams_app.live.core.record_effects import Put
from streams_app.read_store.core.merge import Cell
from streams_app.read_store.core.record import ExpectedRecords, parse
from streams_app.read_store.core.values import json_text
from streams_app.read_store.opensearch.documents import Shape
from streams_app.read_store.sqlite.values import sqlite_value
from streams_app.testing import FoldTester, ViewTester

NUMBERS = [
    "0", "1.5", "0.1", "-0.5", "1e22", "18446744073709551615", "18446744073709551616", "18446744073709551618",
    "-9223372036854775809", "12345678901234567.89", "-12345678901234567.90", "1.00000000000000000001", "9007199254740993.0",
    "5e-300", "1.2345678901234567890e-250", "123456789.10000000000000000000", "2.7976931348623157e307", "1" * 309, "-" + "7" * 900,
    "0." + "3" * 100,
]  # fmt: skip


def folded(event: str, **options: Any) -> FoldTester:
    kit = FoldTester(Fold(**({"name": "f", "source": "s", "group_key": "id", "changed": "c", "quiet_period": "5s"} | options)))
    kit.send(event.encode())
    kit.advance("20s")
    assert [] == kit.dead_letters
    return kit


def of_columns(**options: Any) -> Callable[[str], Any]:
    def found(number: str) -> Any:
        event = f'{{"op":"u","before":{{"id":1,"d":7.5}},"after":{{"id":1,"d":{number}}},"source":{{}}}}'
        return folded(event, format="debezium", changed="@columns", **options).records[0].value["changed"]["d"]

    return found


def of_changed(keep: Any) -> Callable[[str], Any]:
    return lambda number: folded(f'{{"id":1,"c":{{"d":{number}}}}}', keep=keep).records[0].value["c"]["d"]


def of_events(**options: Any) -> Callable[[str], Any]:
    return lambda number: (
        folded(f'{{"id":1,"d":{number}}}', keep="events", changed="", **options).records[0].value["events"][0]["d"]
    )


def of_function(number: str) -> Any:
    options = {"keep": "last", "changed": lambda event: event["c"], "changed_as": "c"}
    return folded(f'{{"id":1,"c":{{"d":{number}}}}}', **options).records[0].value["c"]["d"]


PATHS: dict[str, Callable[[str], Any]] = {
    "last": of_changed("last"),
    "max": of_changed({"d": "max"}),
    "min": of_changed({"*": "min"}),
    "sum": of_changed({"d": "sum"}),
    "changed columns": of_columns(keep="last"),
    "sum of columns": of_columns(keep={"d": "sum", "*": "count"}),
    "events": of_events(),
    "fields of events": of_events(fields=["d"]),
    "function": of_function,
}


@pytest.mark.parametrize("number", NUMBERS, ids=lambda number: number[:24])
@pytest.mark.parametrize("path", PATHS)
def test_number_in_a_record_has_the_value_of_the_event(path: str, number: str) -> None:
    found = PATHS[path](number)

    assert Decimal(number) == Decimal(repr(found) if isinstance(found, float) else found)


@pytest.mark.parametrize("number", NUMBERS, ids=lambda number: number[:24])
@pytest.mark.parametrize("nested", ["%s", "[1,%s]", '{"a":{"b":%s}}'])
def test_number_in_a_nested_value_keeps_its_value(nested: str, number: str) -> None:
    event = f'{{"id":1,"c":{{"d":{nested % number}}}}}'
    raw: list[bytes] = []
    kit = FoldTester(Fold(name="f", source="s", group_key="id", changed="c", keep="last", quiet_period="5s"))
    kit.follow(kit.now_ms, lambda record: raw.append(record.value))
    kit.send(event.encode())
    kit.flush()
    exact: dict[str, Any] = {"parse_int": Decimal, "parse_float": Decimal}

    assert json.loads(event, **exact)["c"] == json.loads(raw[0], **exact)["c"]


@pytest.mark.parametrize("number", NUMBERS, ids=lambda number: number[:24])
def test_number_in_a_live_view_keeps_its_value(number: str) -> None:
    view = LiveView(name="v", kind="list", source="s", page="p", payload=("d",), expiry="1h")
    put = ViewTester(view).send(b'{"p":"a","d":%b}' % number.encode())

    assert isinstance(put, Put)
    assert Decimal(number) == json.loads(put.item.payload, parse_int=Decimal, parse_float=Decimal)["d"]


@pytest.mark.parametrize("number", NUMBERS, ids=lambda number: number[:24])
@pytest.mark.parametrize("nested", ["%s", '{"a":[%s]}'])
def test_number_of_a_record_keeps_its_value_in_a_read_store_or_is_rejected(nested: str, number: str) -> None:
    record = f'{{"id":"g","c":{{"d":{nested % number}}},"fold":{{"name":"f","version":7}}}}'.encode()
    (change,) = parse(b"g", record, ExpectedRecords("f", "c", ("id",), carries_values=True))  # type: ignore[misc]  # not rejected
    stored = sqlite_value(change.value)
    exact: dict[str, Any] = {"parse_int": Decimal, "parse_float": Decimal}
    expected = json.loads(nested % number, **exact)
    is_rejected = Shape("cells", {}).rejection(change) is not None

    assert Cell("f", "g", "d") == change.cell
    assert expected == json.loads(json_text(change.value) or "", **exact)
    assert expected == json.loads(repr(stored) if isinstance(stored, int | float) else str(stored), **exact)
    assert is_rejected == (Fraction(number).denominator > 1 and Decimal(number) != Decimal(repr(float(number))))


def test_sum_beyond_a_double_is_shown_by_the_test_kit() -> None:
    kit = FoldTester(Fold(name="f", source="s", group_key="id", changed="c", keep={"d": "sum"}, quiet_period="5s"))
    for number in (b"1e308", b"1.7e308"):
        kit.send(b'{"id":1,"c":{"d":%b}}' % number)
    (record,) = kit.flush()

    assert int(1e308) + int(1.7e308) == record.value["c"]["d"]
    assert 309 == len(str(record.value["c"]["d"]))


@pytest.mark.parametrize(
    ("number", "reason", "detail"),
    [
        ("1e309", "not-json", "a number beyond a double (1e309)"),
        ("9" * 4_001, "not-json", "more than 4000 digits"),
        ("1.2345e-320", "no-value", "more than 300 digits after the point"),
    ],
    ids=["too large", "too many digits", "too small for a sum"],
)
def test_number_that_cannot_be_kept_is_a_dead_letter_that_says_so(number: str, reason: str, detail: str) -> None:
    kit = FoldTester(Fold(name="f", source="s", group_key="id", changed="c", keep={"d": "sum"}, quiet_period="5s"))
    kit.send(b'{"id":1,"c":{"d":%b}}' % number.encode())
    (rejected,) = kit.dead_letters

    assert reason == rejected.reason
    assert detail in rejected.detail


@pytest.mark.parametrize("number", ["12345678901234567.89", "1.00000000000000000001", "18446744073709551617"])
@pytest.mark.parametrize("keep", ["names", "last", "events"])
def test_group_key_that_no_double_holds_is_rejected_by_every_reader(keep: str, number: str) -> None:
    options = {"keep": keep} | ({} if keep == "events" else {"changed": "c"})
    kit = FoldTester(Fold(name="f", source="s", group_key="id", quiet_period="5s", **options))  # type: ignore[arg-type]  # a table
    kit.send(b'{"id":%b,"c":{"d":1}}' % number.encode())

    assert ["no-group"] == [one.reason for one in kit.dead_letters]


def test_group_key_with_many_zeros_is_the_short_number() -> None:
    for keep in ("names", "last"):
        kit = FoldTester(Fold(name="f", source="s", group_key="id", changed="c", keep=keep, quiet_period="5s"))
        kit.send(b'{"id":1.00000000000000000000,"c":{"d":1}}')

        assert [b"1"] == kit.open_groups


def test_number_is_printed_and_served_with_its_digits() -> None:
    row = {"decoded": {"d": Decimal("12345678901234567.89"), "big": 2**70}}

    assert '{"decoded":{"d":12345678901234567.89,"big":1180591620717411303424}}' == json_line(row)
    assert json_line(row).encode() == json_reply(row).body
