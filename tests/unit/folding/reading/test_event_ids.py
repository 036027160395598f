"""The ids of events by which a fold ignores duplicates, whatever the format and the reader."""

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
from tests.helpers.kafka.records import Raw

KINDS: dict[str, dict[str, Any]] = {
    "names": {},
    "last": {"keep": "last"},
    "sums": {"keep": {"x": "sum"}},
    "events": {"keep": "events", "changed": ""},
    "fields": {"keep": "events", "changed": "", "fields": ["m"]},
    "by-event": {"quiet_period": {"field": "wait", "default": "1s", "at_most": "2s"}},
    "functions": {"group_key": lambda event: event["id"]},
    "decode": {"decode": json.loads},
    "cloudevents": {"format": "cloudevents"},
    "debezium": {"format": "debezium"},
    "key": {"group_key": "@key"},
}


def fold(**options: Any) -> Fold:
    given = {"name": "f", "source": "s", "group_key": "id", "changed": "m", "quiet_period": "1s", "dedupe_by": "meta.event_id"}
    return Fold(**{**given, **options})


def wrapped(event: dict[str, Any], declared: Fold) -> bytes:
    if declared.format == "cloudevents":
        return json.dumps({"specversion": "1.0", "type": "t", "source": "/s", "id": "1", "data": event}).encode()
    if declared.format == "debezium":
        return json.dumps({"op": "c", "before": None, "after": event, "source": {"lsn": 7}}).encode()
    return json.dumps(event).encode()


def event(event_id: Any) -> dict[str, Any]:
    return {"id": "a", "m": {"x": 1}, "meta": {"event_id": event_id}}


def read(declared: Fold, *values: bytes, limits: Limits | None = None, headers: Any = ()) -> DecodedRange:
    records = [Raw(offset, 1, b"a", value, headers=headers) for offset, value in enumerate(values)]
    return reader_of(declared, limits or Limits()).read(records)


def ids_of(reading: DecodedRange) -> list[bytes]:
    assert not reading.rejected
    return [event.id for event in reading.events]


@pytest.mark.parametrize("kind", KINDS)
def test_events_have_equal_ids_if_type_and_value_are_equal(kind: str) -> None:
    declared = fold(**KINDS[kind])
    different = ["e1", "1", 1, 2**70, -1, "é", "x" * 500, "\x00"]
    found = ids_of(read(declared, *(wrapped(event(one), declared) for one in different * 2)))

    assert len(different) == len(set(found))
    assert found[: len(different)] == found[len(different) :]
    assert {16} == set(map(len, found))


@pytest.mark.parametrize("kind", KINDS)
def test_event_without_an_id_of_a_valid_type_is_rejected(kind: str) -> None:
    declared = fold(**KINDS[kind])
    invalid = [None, "", True, 1.5, 1.0, ["e1"], {"e": 1}]
    values = [*(event(one) for one in invalid), {"id": "a", "m": {"x": 1}}, {"id": "a", "m": {"x": 1}, "meta": "e1"}]
    reading = read(declared, *(wrapped(one, declared) for one in values))

    assert [] == reading.events
    assert {"no-id"} == {rejected.reason for rejected in reading.rejected}
    assert "'meta.event_id' is missing or null, not a string or an integer" == reading.rejected[0].detail


@pytest.mark.parametrize("event_id", ["x" * 11, "é" * 6, 10**30], ids=["text", "utf-8", "integer"])
def test_event_with_a_long_id_is_rejected(event_id: Any) -> None:
    reading = read(fold(), json.dumps(event(event_id)).encode(), limits=Limits(key_bytes=10))

    assert ["too-large"] == [rejected.reason for rejected in reading.rejected]
    assert ids_of(read(fold(), json.dumps(event("x" * 10)).encode(), limits=Limits(key_bytes=10)))


def test_number_that_cannot_be_kept_rejects_an_event_only_as_its_id() -> None:
    reading = read(
        fold(), b'{"id":"a","m":{"x":1},"meta":{"event_id":1e999}}', b'{"id":"a","m":{"x":1},"n":1e999,"meta":{"event_id":1}}'
    )

    assert [(0, "not-json")] == [(rejected.record.offset, rejected.reason) for rejected in reading.rejected]
    assert [1] == [event.offset for event in reading.events]


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "names"])
def test_header_has_the_id_in_every_format(kind: str) -> None:
    declared = fold(**KINDS[kind] | {"dedupe_by": "header:event-id"})
    value = wrapped(event(None), declared)
    binary = bytes(range(240, 256))
    given = [[("event-id", b"e1")], [("event-id", b"e2"), ("event-id", b"e1")], [("event-id", binary)], [("other", b"e1")], []]
    found = [read(declared, value, headers=headers) for headers in (*given, [("event-id", None)], [("event-id", b"")])]
    ids = [one.events[0].id if one.events else one.rejected[0].reason for one in found]

    assert ids[0] == ids[1] != ids[2]
    assert ["no-id"] * 4 == ids[3:]


def test_fields_of_an_envelope_are_ids() -> None:
    cloud, change = (fold(format="cloudevents", dedupe_by="@id"), fold(format="debezium", dedupe_by="@source.lsn"))

    assert 1 == len(set(ids_of(read(cloud, *[wrapped(event(one), cloud) for one in (1, 2)]))))
    assert 1 == len(set(ids_of(read(change, *[wrapped(event(one), change) for one in (1, 2)]))))


def test_function_returns_the_id() -> None:
    declared = fold(dedupe_by=lambda event: event["e"] if event["e"] != "bytes" else b"\xff")
    given: list[Any] = ["e1", "e1", "bytes", None, {}]
    values = [{"id": "a", "m": {"x": 1}, "e": e} for e in given]
    reading = read(declared, *(json.dumps(value).encode() for value in values), b'{"id":"a","m":{"x":1}}')
    first, second, third = [event.id for event in reading.events]

    assert first == second != third
    assert ["user-error"] * 3 == [rejected.reason for rejected in reading.rejected]


def test_ids_of_another_setting_are_other_ids() -> None:
    value = b'{"id":"a","m":{"x":1},"one":"e1","two":"e1"}'

    assert ids_of(read(fold(dedupe_by="one"), value)) != ids_of(read(fold(dedupe_by="two"), value))


def test_fast_readers_are_not_used() -> None:
    assert [False, False] == [is_usual(fold()), is_usual_kept(fold(keep="events", changed=""))]


@pytest.mark.parametrize(
    ("options", "fault"),
    [
        ({"dedupe_by": ""}, "dedupe_by = '' names no field or header"),
        ({"dedupe_by": "a..b"}, "dedupe_by = 'a..b' names no field or header"),
        ({"dedupe_by": "header:"}, "dedupe_by = 'header:' names no field or header"),
        ({"dedupe_by": "@id"}, "dedupe_by: '@id' begins with @, which no field of plain JSON may: name a field, or header:NAME"),
        ({"max_events": 0}, "max_events must be 1 to 100000 with dedupe_by"),
        ({"max_events": 100_001}, "max_events must be 1 to 100000 with dedupe_by"),
        ({"leading": True}, "dedupe_by does not go with leading"),
        ({"dedupe_by": 7}, "dedupe_by"),
    ],
)
def test_invalid_setting_is_an_error(options: dict[str, Any], fault: str) -> None:
    with pytest.raises(ValidationError) as caught:
        fold(**options)

    assert fault in str(caught.value)


def test_number_of_events_is_limited_because_their_ids_are_stored() -> None:
    assert [10_000, 5, 0] == [fold().max_events, fold(max_events=5).max_events, fold(dedupe_by=None).max_events]
