"""Bodies of Avro, Protobuf and JSON as JSON, and back."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any
from uuid import UUID

import pytest

from streams_app.envelopes import Format
from streams_app.errors import BadEventError
from streams_app.schemas.cache import NotFetchedError, SchemaCache, SchemaEntry
from streams_app.schemas.framing import framed
from streams_app.schemas.protobuf import BUILT_IN_FILES
from streams_app.schemas.schema import SchemaDefinition, parsed

MONEY = {"type": "record", "name": "Money", "namespace": "shop", "fields": [{"name": "cents", "type": "long"}]}
ORDER = {
    "type": "record", "name": "Order", "namespace": "shop", "fields": [
        {"name": "id", "type": "string"},
        {"name": "price", "type": ["null", "shop.Money"], "default": None},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}, "default": 0},
        {"name": "rate", "type": {"type": "bytes", "logicalType": "decimal", "precision": 6, "scale": 2}},
        {"name": "key", "type": {"type": "string", "logicalType": "uuid"}, "default": "00000000-0000-0000-0000-000000000000"},
        {"name": "raw", "type": "bytes"},
        {"name": "tags", "type": {"type": "map", "values": "int"}, "default": {}},
    ],
}  # fmt: skip
UUID_TEXT = "12345678-1234-5678-1234-567812345678"
EVENT = {
    "id": "o1", "price": {"cents": 2**60}, "at": datetime(2026, 1, 1, tzinfo=UTC), "rate": Decimal("12.50"),
    "key": UUID(UUID_TEXT), "raw": b"\0\xff", "tags": {"a": 1},
}  # fmt: skip
JSON = {
    "id": "o1", "price": {"cents": 2**60}, "at": "2026-01-01T00:00:00+00:00", "rate": "12.50", "key": UUID_TEXT, "raw": "AP8=",
    "tags": {"a": 1},
}  # fmt: skip

PROTO_MONEY = 'syntax = "proto3"; package shop; message Money { int64 cents = 1; }'
PROTO_ORDER = """
syntax = "proto3";
import "shop/money.proto";
import "google/protobuf/timestamp.proto";
message Order {
  string id = 1; shop.Money price = 2; google.protobuf.Timestamp at = 3; map<string, uint64> tags = 4; repeated int64 many = 5;
  optional string note = 6; bytes raw = 7; State state = 8;
  enum State { NEW = 0; PAID = 1; }
  message Line { int32 number = 1; }
}
message Other { bool is_so = 1; }
"""


def definition(schema_type: str) -> SchemaDefinition:
    if schema_type == "AVRO":
        return SchemaDefinition("AVRO", json.dumps(ORDER), {"shop.Money": json.dumps(MONEY)})
    if schema_type == "PROTOBUF":
        return SchemaDefinition("PROTOBUF", PROTO_ORDER, {"shop/money.proto": PROTO_MONEY})
    return SchemaDefinition("JSON", '{"type": "object"}')


def cache(*types: str) -> SchemaCache:
    """Return a cache with schemas 1, 2, and so on."""
    made = SchemaCache(10)
    for number, schema_type in enumerate(types, start=1):
        made.keep(number, SchemaEntry(schema_type, parsed(definition(schema_type))))
    return made


def decoded(value: bytes, declared: Format, schemas: SchemaCache) -> Any:
    return json.loads(schemas.json(value, declared))


def test_avro_value_is_json_with_times_in_iso_and_decimals_as_text_and_bytes_in_base64() -> None:
    schema = parsed(definition("AVRO"))

    assert JSON == decoded(framed(1, schema.encode(EVENT)), "avro", cache("AVRO"))


def test_avro_event_must_fit_its_schema() -> None:
    schema = parsed(definition("AVRO"))
    least = {name: EVENT[name] for name in ("id", "rate", "raw")}

    assert {"price": None, "tags": {}} == {name: schema.decode(schema.encode(least))[name] for name in ("price", "tags")}
    for event in ({"id": "o1"}, {**EVENT, "id": 1}, {**EVENT, "unknown": 1}):
        with pytest.raises(Exception, match=r".+"):
            schema.encode(event)


def test_protobuf_message_is_json_by_the_names_of_its_schema_with_whole_numbers() -> None:
    schema = parsed(definition("PROTOBUF"))
    event = {
        "id": "o1",
        "price": {"cents": 2**60},
        "at": EVENT["at"],
        "tags": {"a": 2**63},
        "many": [1, 2**40],
        "raw": b"\0\xff",
        "state": "PAID",
    }

    assert {
        "id": "o1", "price": {"cents": 2**60}, "at": "2026-01-01T00:00:00Z", "tags": {"a": 2**63}, "many": [1, 2**40],
        "raw": "AP8=", "state": "PAID",
    } == decoded(framed(1, schema.encode(event)), "protobuf", cache("PROTOBUF"))  # fmt: skip
    assert {"id": "", "tags": {}, "many": [], "raw": "", "state": "NEW"} == schema.decode(b"\0")
    with pytest.raises(Exception, match="no field named"):
        schema.encode({"unknown": 1})


@pytest.mark.parametrize(("body", "event"), [(b"\2\2\x08\x01", {"is_so": True}), (b"\4\0\0\x08\x07", {"number": 7})])
def test_indexes_choose_the_message_of_a_protobuf_schema(body: bytes, event: Any) -> None:
    assert event == parsed(definition("PROTOBUF")).decode(body)


@pytest.mark.parametrize(
    ("schema_type", "body"),
    [
        ("AVRO", b""),
        ("AVRO", b"\x04o1\x00\x00\x00"),
        ("AVRO", b"\x04o1" + b"\0" * 50),
        ("AVRO", b"\x04o1\x09"),
        ("AVRO", b"\x04\xff\xfe\x00"),
        ("PROTOBUF", b""),
        ("PROTOBUF", b"\2\6"),
        ("PROTOBUF", b"\0\xff"),
    ],
)
def test_body_not_conforming_to_its_schema_is_a_dead_letter(schema_type: str, body: bytes) -> None:
    declared: Format = "avro" if schema_type == "AVRO" else "protobuf"
    with pytest.raises(BadEventError, match="wrong-format: the body cannot be decoded by schema 1"):
        cache(schema_type).json(framed(1, body), declared)


def test_json_body_is_passed_on_and_needs_no_schema() -> None:
    assert b'{"id":1}' == cache().json(framed(77, b'{"id":1}'), "json-schema")
    assert b'{"id":1}' == cache("JSON").json(framed(1, b'{"id":1}'), "debezium")


def test_uncached_schema_must_be_fetched() -> None:
    with pytest.raises(NotFetchedError) as caught:
        cache("AVRO").json(framed(2, b""), "avro")

    assert 2 == caught.value.schema_id


def test_schema_that_the_registry_does_not_have_makes_dead_letters() -> None:
    schemas = SchemaCache(10)
    schemas.keep(1, SchemaEntry("", None, detail="no schema 1"))
    with pytest.raises(BadEventError) as caught:
        schemas.json(framed(1, b""), "avro")

    assert ("unknown-schema", "no schema 1") == (caught.value.reason, caught.value.detail)


def test_schema_of_another_type_than_the_format_is_a_dead_letter_with_that_reason() -> None:
    with pytest.raises(BadEventError, match="schema 1 is of type PROTOBUF, and the format is avro"):
        cache("PROTOBUF").json(framed(1, b"\0"), "avro")


def test_least_recently_used_schema_is_evicted_unless_it_is_wanted() -> None:
    schemas, entry = SchemaCache(2), SchemaEntry("", None)
    schemas.keep(1, entry)
    schemas.keep(2, entry)
    schemas.missing([1])
    schemas.keep(3, entry)
    first = schemas.missing([1, 2, 3])
    schemas.keep(4, entry, wanted=[1, 3])

    assert ([2], []) == (first, schemas.missing([1, 3, 4]))


@pytest.mark.parametrize(
    "given",
    [
        SchemaDefinition("AVRO", "nonsense"),
        SchemaDefinition("AVRO", '{"type": "record", "name": "R", "fields": [{"name": "m", "type": "shop.Money"}]}'),
        SchemaDefinition("PROTOBUF", "nonsense {"),
        SchemaDefinition("PROTOBUF", 'syntax = "proto3"; import "missing.proto";'),
        SchemaDefinition("PROTOBUF", 'syntax = "proto3";', {"../outside.proto": ""}),
        SchemaDefinition("THRIFT", ""),
    ],
)
def test_invalid_schema_is_an_error(given: SchemaDefinition) -> None:
    with pytest.raises(Exception, match=r".+"):
        parsed(given)


IMPORTING = """
syntax = "proto3";
import "confluent/meta.proto";
import "confluent/type/decimal.proto";
import "google/protobuf/any.proto";
import "google/protobuf/timestamp.proto";
import "google/type/date.proto";
import "google/type/money.proto";

message Order {
  option (confluent.message_meta) = { doc: "An order.", tags: ["PII"] };
  string id = 1 [(confluent.field_meta) = { params: [{ key: "a", value: "b" }] }];
  google.type.Money price = 2;
  google.type.Date day = 3;
  confluent.type.Decimal total = 4;
  google.protobuf.Timestamp at = 5;
  google.protobuf.Any part = 6;
}
"""


def test_protobuf_schema_can_import_what_every_client_has_built_in() -> None:
    schema = parsed(SchemaDefinition("PROTOBUF", IMPORTING))
    event = {
        "id": "o1", "price": {"currency_code": "EUR", "units": 5, "nanos": 0}, "day": {"year": 2026, "month": 11, "day": 29},
        "total": {"value": "AQ==", "precision": 3, "scale": 2}, "at": "2026-11-29T00:00:00Z",
    }  # fmt: skip

    assert event == schema.decode(schema.encode(event))


@pytest.mark.parametrize(
    "name",
    sorted(
        str(path.relative_to(folder))
        for folder in BUILT_IN_FILES
        for pattern in ("google/type/*.proto", "confluent/**/*.proto")
        for path in folder.glob(pattern)
    ),
)
def test_each_built_in_file_can_be_imported(name: str) -> None:
    assert parsed(SchemaDefinition("PROTOBUF", f'syntax = "proto3"; import "{name}"; message M {{ string id = 1; }}'))
