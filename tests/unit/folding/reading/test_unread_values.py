"""A value that cannot be represented rejects an event only if the fold reads it, whatever the format and the reader."""

from __future__ import annotations

import base64
import json
from typing import Any, NamedTuple

import pytest
from google.protobuf import message_factory

from streams_app import Fold, QuietPeriod
from streams_app.envelopes import Format
from streams_app.folding.reading.readers import reader_of
from streams_app.reasons import Reason
from streams_app.schemas.cache import SchemaCache, SchemaEntry
from streams_app.schemas.framing import FIRST_MESSAGE, framed
from streams_app.schemas.protobuf import ProtobufSchema
from streams_app.schemas.schema import SchemaDefinition, parsed
from streams_app.settings import Limits
from tests.helpers.kafka.records import Raw

DAY = {"type": "int", "logicalType": "date"}
EVENT = {
    "type": "record",
    "name": "Event",
    "fields": [
        {"name": "id", "type": "string"},
        {"name": "m", "type": {"type": "map", "values": "int"}},
        {"name": "bad", "type": ["null", DAY]},
    ],
}
CHANGE = {
    "type": "record",
    "name": "Change",
    "fields": [{"name": "before", "type": EVENT}, {"name": "after", "type": "Event"}, {"name": "op", "type": "string"}],
}
PROTO = """
syntax = "proto3";
import "google/protobuf/timestamp.proto";
message Event { string id = 1; map<string, int32> m = 2; google.protobuf.Timestamp bad = 3; }
"""
AVRO, AVRO_CHANGE = (parsed(SchemaDefinition("AVRO", json.dumps(schema))) for schema in (EVENT, CHANGE))
PROTOBUF = ProtobufSchema(SchemaDefinition("PROTOBUF", PROTO))
SCHEMAS = SchemaCache(10)
SCHEMAS.keep(1, SchemaEntry("AVRO", AVRO))
SCHEMAS.keep(2, SchemaEntry("AVRO", AVRO_CHANGE))
SCHEMAS.keep(3, SchemaEntry("PROTOBUF", PROTOBUF))
SCHEMAS.keep(4, SchemaEntry("JSON", parsed(SchemaDefinition("JSON", "{}"))))

PLAIN = b'{"id":"a","m":{"x":1},"bad":1e400}'
YEAR_10000 = b"\x82\x83\xe6\x02"  # 2 932 897 days after 1970 in the encoding of Avro
DATE = {"id": "a", "m": {"x": 1}, "bad": 5}


def avro_of_year_10000(schema: Any, number: int, event: Any) -> bytes:
    encoded = schema.encode(event)
    assert b"\x02\x0a" in encoded
    return framed(number, encoded.replace(b"\x02\x0a", b"\x02" + YEAR_10000))


def protobuf_of_year_10000() -> bytes:
    message: Any = message_factory.GetMessageClass(PROTOBUF._file.message_types_by_name["Event"])(id="a", m={"x": 1})
    message.bad.seconds = 10**12
    return framed(3, FIRST_MESSAGE + message.SerializeToString())


class Case(NamedTuple):
    """An event with a field ``bad`` that cannot be represented.

    Attributes:
        format: Format of the event.
        value: The event.
        reason: Reason of its dead letter if the field is read.
    """

    format: Format
    value: bytes
    reason: Reason


CHANGED_ROW = b'{"op":"u","before":{"id":"a","m":{"x":0},"bad":1e400},"after":%b}' % PLAIN
CASES = {
    "json": Case("json", PLAIN, "not-json"),
    "json-schema": Case("json-schema", framed(4, PLAIN), "not-json"),
    "avro": Case("avro", avro_of_year_10000(AVRO, 1, DATE), "wrong-format"),
    "protobuf": Case("protobuf", protobuf_of_year_10000(), "wrong-format"),
    "debezium": Case("debezium", CHANGED_ROW, "not-json"),
    "debezium in Avro": Case(
        "debezium",
        avro_of_year_10000(AVRO_CHANGE, 2, {"before": DATE | {"m": {"x": 0}}, "after": DATE, "op": "u"}),
        "wrong-format",
    ),
    "cloudevents": Case("cloudevents", b'{"specversion":"1.0","type":"t","data":%b}' % PLAIN, "not-json"),
    "cloudevents in Base64": Case(
        "cloudevents", b'{"specversion":"1.0","type":"t","data_base64":"%b"}' % base64.b64encode(PLAIN), "not-json"
    ),
}

READERS: dict[str, dict[str, Any]] = {
    "names": {},
    "a nested group": {"group_key": ["id", "m.x"]},
    "details": {"close_when": {"bad": [1]}},
    "last": {"keep": "last"},
    "aggregates": {"keep": {"*": "sum"}},
    "fields of events": {"keep": "events", "changed": "", "fields": ["id", "m"]},
    "a quiet period": {"quiet_period": QuietPeriod(field="wait", default="1m", at_most="1h")},
}

READS: dict[str, dict[str, Any]] = {
    "the group": {"group_key": "bad"},
    "a part of the group": {"group_key": ["id", "bad"]},
    "the names": {"changed": "bad"},
    "the whole event": {"keep": "events", "changed": ""},
    "a field of the event": {"keep": "events", "changed": "", "fields": ["bad"]},
    "a function": {"source_filter": lambda event: True},
    "a function for the group": {"group_key": lambda event: event["id"]},
}


def read(case: Case, options: dict[str, Any]) -> Any:
    fold = Fold(
        **({"name": "f", "source": "s", "group_key": "id", "changed": "m", "quiet_period": "1m"} | options), format=case.format
    )
    return reader_of(fold, Limits(), SCHEMAS).read([Raw(0, 1, b"a", case.value)])


@pytest.mark.parametrize("options", READERS.values(), ids=READERS)
@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_value_that_is_not_read_rejects_nothing(case: Case, options: dict[str, Any]) -> None:
    reading = read(case, options)

    assert ([], 1) == (reading.rejected, len(reading.events))


@pytest.mark.parametrize("options", READS.values(), ids=READS)
@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_value_that_is_read_rejects_the_event_and_the_detail_names_its_field(case: Case, options: dict[str, Any]) -> None:
    (rejected,) = read(case, options).rejected

    assert case.reason == rejected.reason
    assert "bad" in rejected.detail


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_quiet_period_that_cannot_be_represented_is_no_duration(case: Case) -> None:
    (rejected,) = read(case, {"quiet_period": QuietPeriod(field="bad", default="1m", at_most="1h")}).rejected

    assert "no-value" == rejected.reason
    assert "'bad' is not a duration" in rejected.detail


@pytest.mark.parametrize("keep", ["last", {"*": "sum"}, {"y": "max", "*": "last"}])
def test_changed_value_that_is_kept_rejects_the_event_and_the_detail_names_it(keep: Any) -> None:
    (rejected,) = read(Case("json", b'{"id":"a","m":{"x":1,"y":[1e400]}}', "not-json"), {"keep": keep}).rejected

    assert ("not-json", "'m.y[0]' is a number beyond a double (1e400)") == (rejected.reason, rejected.detail)


def test_changed_column_that_cannot_be_represented_is_a_name_and_rejects_only_its_value() -> None:
    value = b'{"op":"u","before":{"id":"a","n":1e400,"s":1},"after":{"id":"a","n":1e401,"s":1}}'
    case = Case("debezium", value, "not-json")
    (event,) = read(case, {"changed": "@columns"}).events
    (rejected,) = read(case, {"changed": "@columns", "keep": "last"}).rejected

    assert ["n"] == list(event.changed)
    assert "'@columns.n' is a number beyond a double (1e401)" == rejected.detail


@pytest.mark.parametrize(
    ("base", "logical_type", "number", "expected"),
    [
        ("int", "date", -800_000, None),
        ("int", "date", 2_932_897, None),
        ("int", "time-millis", -1, None),
        ("int", "time-millis", 86_400_000, None),
        ("int", "time-millis", 86_399_999, "23:59:59.999000"),
        ("long", "time-micros", -1, None),
        ("long", "time-micros", 86_400_000_000, None),
        ("long", "timestamp-millis", 2**62, None),
        ("long", "timestamp-millis", 0, "1970-01-01T00:00:00+00:00"),
        ("long", "timestamp-micros", -(2**62), None),
        ("long", "local-timestamp-millis", 2**62, None),
    ],
)
def test_avro_time_is_exact_or_rejects_what_reads_it(base: str, logical_type: str, number: int, expected: str | None) -> None:
    fields = [{"name": "id", "type": "string"}, {"name": "m", "type": {"type": base, "logicalType": logical_type}}]
    schema = {"type": "record", "name": "E", "fields": fields}
    stored = schema | {"fields": [fields[0], {"name": "m", "type": base}]}
    schemas = SchemaCache(10)
    schemas.keep(1, SchemaEntry("AVRO", parsed(SchemaDefinition("AVRO", json.dumps(schema)))))
    value = framed(1, parsed(SchemaDefinition("AVRO", json.dumps(stored))).encode({"id": "a", "m": number}))
    fold = Fold(name="f", source="s", group_key="id", keep="events", fields=["m"], quiet_period="1m", format="avro")
    reading = reader_of(fold, Limits(), schemas).read([Raw(0, 1, b"a", value)])
    fault = f"'m' is a value that does not fit its type in the schema ({number})"

    assert [expected] * (expected is not None) == [json.loads(event.json)["m"] for event in reading.events]
    assert [("wrong-format", fault)] * (expected is None) == [(one.reason, one.detail) for one in reading.rejected]
