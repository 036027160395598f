"""Events within values of every format, as live views and journals read them."""

from __future__ import annotations

import base64
from typing import Any, NamedTuple

import orjson
import pytest

from streams_app.envelopes import Format
from streams_app.errors import BadEventError, BeyondDoubleError
from streams_app.schemas.cache import NotFetchedError
from streams_app.schemas.values import ValueReader
from tests.helpers.schemas.schemas import avro, schema_cache

CLOUD = b'{"specversion":"1.0","type":"made","id":"1","source":"s","data":{"id":7}}'
CHANGED = b'{"op":"u","before":{"id":7,"cents":1},"after":{"id":7,"cents":2}}'


class Record(NamedTuple):
    key: bytes | None
    value: bytes | None


@pytest.mark.parametrize(
    ("declared", "value", "found"),
    [
        ("json", b'{"id":7}', {"id": 7}),
        ("cloudevents", CLOUD, {"id": 7, "@type": "made"}),
        ("debezium", CHANGED, {"id": 7, "cents": 2, "@op": "u", "@columns": {"cents": 2}}),
        ("debezium", avro(2, orjson.loads(CHANGED)), {"id": 7, "cents": 2, "@op": "u", "@columns": {"cents": 2}}),
        ("avro", avro(1, {"id": "a", "m": {"x": 1}}), {"id": "a", "m": {"x": 1}}),
        ("json-schema", b'\0\0\0\0\x63{"id":7}', {"id": 7}),
    ],
)
def test_event_is_extracted_from_the_value(declared: Format, value: bytes, found: dict[str, Any]) -> None:
    event = ValueReader(declared, schema_cache()).event(None, value)

    assert event is not None
    assert found == {name: event[name] for name in found}


def test_framed_record_key_supplies_a_missing_column_of_the_row() -> None:
    value = b'{"op":"c","before":null,"after":{"cents":2}}'

    assert 9 == (ValueReader("debezium", schema_cache()).event(avro(3, {"id": 9}), value) or {})["id"]
    assert "id" not in (ValueReader("debezium", schema_cache()).event(b"\0\0\0\0\3", value) or {})


@pytest.mark.parametrize(
    ("declared", "value", "reason"),
    [
        ("avro", b'{"id":7}', "wrong-format"),
        ("avro", b"\0\xff\xff\xff\xff", "unknown-schema"),
        ("protobuf", avro(1, {"id": "a", "m": {}}), "wrong-format"),
        ("avro", avro(4, "text"), "not-an-object"),
        ("debezium", b'{"id":7}', "wrong-format"),
        ("cloudevents", b'{"id":7}', "wrong-format"),
    ],
)
def test_value_of_another_format_is_rejected(declared: Format, value: bytes, reason: str) -> None:
    with pytest.raises(BadEventError, match=reason) as caught:
        ValueReader(declared, schema_cache()).event(None, value)

    assert not isinstance(caught.value, BeyondDoubleError)


def test_number_beyond_a_double_does_not_affect_the_rest_of_the_event() -> None:
    with pytest.raises(BeyondDoubleError) as caught:
        ValueReader("cloudevents").event(None, CLOUD.replace(b"7", b'7,"n":1e999'))

    assert (7, "made") == (caught.value.rest["id"], caught.value.rest["@type"])


def test_number_beyond_a_double_in_base64_does_not_affect_the_rest_of_the_event() -> None:
    value = b'{"specversion":"1.0","type":"made","data_base64":"%b"}' % base64.b64encode(b'{"id":7,"n":1e999}')
    with pytest.raises(BeyondDoubleError) as caught:
        ValueReader("cloudevents").event(None, value)

    assert (7, "made") == (caught.value.rest["id"], caught.value.rest["@type"])


def test_heartbeat_is_no_event() -> None:
    assert ValueReader("debezium").event(None, b'{"ts_ms":1}') is None


def test_schema_is_fetched_before_a_value_is_read_and_only_if_one_is_needed() -> None:
    record = Record(b"key", avro(1, {"id": "a", "m": {}}))
    with pytest.raises(NotFetchedError):
        ValueReader("avro", schema_cache(2)).event(*record)  # type: ignore[arg-type]  # its value is not None

    framed: dict[Format, list[bytes | None]] = {
        "json": [], "json-schema": [], "avro": [record.value], "cloudevents": [record.value], "debezium": [record.value, b"key"],
    }  # fmt: skip
    assert framed == {declared: list(ValueReader(declared).framed_parts([record])) for declared in framed}
