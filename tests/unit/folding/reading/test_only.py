"""Events that do not match ``only`` are skipped, whatever the format and the reader."""

from __future__ import annotations

import json
from typing import Any

import pytest
from pydantic import ValidationError

from streams_app import Fold
from streams_app.folding.reading.fast import is_usual, is_usual_kept
from streams_app.folding.reading.reader import DecodedRange
from streams_app.folding.reading.readers import reader_of
from streams_app.settings import Limits
from streams_app.testing import FoldTester
from tests.helpers.kafka.records import Raw

ONLY = {"status": ["open", 7, True], "job.kind": "import"}
KINDS: dict[str, dict[str, Any]] = {
    "names": {},
    "last": {"keep": "last"},
    "sums": {"keep": {"x": "sum"}},
    "events": {"keep": "events", "changed": ""},
    "fields": {"keep": "events", "changed": "", "fields": ["status"]},
    "closing": {"close_when": {"status": ["open"]}},
    "functions": {"group_key": lambda event: event["id"]},
    "filter": {"source_filter": lambda event: True},
    "decode": {"decode": json.loads},
    "cloudevents": {"format": "cloudevents"},
    "debezium": {"format": "debezium"},
    "key": {"group_key": "@key"},
}


def fold(**options: Any) -> Fold:
    given = {"name": "f", "source": "s", "group_key": "id", "changed": "m", "quiet_period": "1s", "only": ONLY}
    return Fold(**{**given, **options})


def wrapped(event: dict[str, Any], declared: Fold) -> bytes:
    if declared.format == "cloudevents":
        return json.dumps({"specversion": "1.0", "type": "t", "source": "/s", "id": "1", "data": event}).encode()
    if declared.format == "debezium":
        return json.dumps({"op": "c", "before": None, "after": event, "source": {}}).encode()
    return json.dumps(event).encode()


def read(declared: Fold, *values: bytes) -> DecodedRange:
    return reader_of(declared, Limits()).read([Raw(offset, 1, b"a", value) for offset, value in enumerate(values)])


@pytest.mark.parametrize("kind", KINDS)
def test_event_is_folded_if_each_field_has_one_of_its_values(kind: str) -> None:
    declared = fold(**KINDS[kind])
    event = {"id": "a", "m": {"x": 1}, "job": {"kind": "import"}}
    matching: list[dict[str, Any]] = [{**event, "status": status} for status in ("open", 7, 7.0, True)]
    others: list[dict[str, Any]] = [
        {**event, "status": status} for status in ("new", 1, False, None, "7", ["open"], {"open": 1}, 2**60, 0.5)
    ]
    others += [event, {**event, "status": "open", "job": {"kind": "export"}}, {**event, "status": "open", "job": None}]
    reading = read(declared, *(wrapped(one, declared) for one in matching + others))

    assert ([0, 1, 2, 3], []) == ([event.offset for event in reading.events], reading.rejected)


@pytest.mark.parametrize("kind", KINDS)
def test_skipped_event_is_not_rejected_for_what_the_fold_does_not_need(kind: str) -> None:
    declared = fold(**KINDS[kind])
    skipped = {"id": None, "m": 1, "x": "y" * 600, "status": "other", "job": {"kind": "import"}}
    reading = read(declared, wrapped(skipped, declared))

    assert ([], [], 0) == (reading.events, reading.rejected, reading.misrouted)


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "decode"])
def test_event_that_cannot_be_decoded_is_rejected(kind: str) -> None:
    reading = read(fold(**KINDS[kind]), b"{", b"[]", b"x" * 2_000_000)

    assert ["not-json", "not-an-object", "too-large"] == [rejected.reason for rejected in reading.rejected]


@pytest.mark.parametrize("kind", ["names", "last", "events", "filter"])
def test_number_that_cannot_be_kept_does_not_reject_a_skipped_event(kind: str) -> None:
    reading = read(
        fold(**KINDS[kind]), b'{"id":"a","m":{"x":1e999},"status":"other"}', b'{"id":"a","m":{"x":1e999},"status":1e999}'
    )

    assert ([], []) == (reading.events, reading.rejected)


def test_operations_of_debezium_are_chosen() -> None:
    declared = fold(format="debezium", only={"@op": ["u", "d"]})
    changes = [
        {"op": "c", "before": None, "after": {"id": "a", "m": "x"}},
        {"op": "d", "before": {"id": "b", "m": "x"}, "after": None},
    ]

    assert [b"sb"] == [event.group for event in read(declared, *(json.dumps(one).encode() for one in changes)).events]


def test_skipped_event_neither_opens_a_group_nor_extends_its_quiet_period() -> None:
    kit = FoldTester(fold(only={"kind": "like"}, quiet_period="10s"))
    kit.send({"id": "a", "m": ["x"], "kind": "like"})
    kit.advance("8s")
    kit.send({"id": "a", "m": ["y"], "kind": "view"})
    kit.send({"id": "b", "m": ["y"], "kind": "view"})
    (record,) = kit.advance("3s")

    assert ["x"] == record.value["m"]
    assert [] == kit.advance("1h") + kit.dead_letters


def test_fast_readers_are_not_used() -> None:
    assert [False, False] == [is_usual(fold()), is_usual_kept(fold(keep="events", changed=""))]
    assert is_usual(fold(only={}))


@pytest.mark.parametrize(
    ("only", "fault"),
    [
        ("open", "expected fields and their values"),
        (["status"], "expected fields and their values"),
        ({1: "open"}, "expected fields and their values"),
        ({"status": None}, "'status' must be a string, number or boolean, or a list of them"),
        ({"status": []}, "'status' must be a string, number or boolean, or a list of them"),
        ({"status": ["open", {}]}, "'status' must be a string, number or boolean, or a list of them"),
        ({"status": float("nan")}, "'status' must be a finite number"),
        ({"status": list(range(1_001))}, "'status' lists 1001 values, at most 1000 are allowed"),
        ({"a..b": 1}, "'a..b' is not a field or dotted path"),
        ({"": 1}, "'' is not a field or dotted path"),
        ({"@op": "c"}, "'@op' begins with @, which no field of plain JSON may"),
    ],
)
def test_invalid_condition_is_an_error_of_the_settings(only: Any, fault: str) -> None:
    with pytest.raises(ValidationError) as caught:
        fold(only=only)

    assert fault in str(caught.value)
