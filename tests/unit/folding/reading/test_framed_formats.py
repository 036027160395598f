"""Folds of values that are framed by a schema registry."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from streams_app import Fold, Settings
from streams_app.codec import canonical_bytes
from streams_app.errors import ConfigurationError
from streams_app.folding.reading.reader import DecodedRange
from streams_app.folding.reading.readers import reader_of
from streams_app.schemas.cache import NotFetchedError, SchemaCache
from streams_app.schemas.framing import framed
from streams_app.settings import Limits
from streams_app.testing import FoldTester
from tests.helpers.kafka.records import Raw
from tests.helpers.schemas.schemas import avro, schema_cache

VALUE = avro(1, {"id": "a", "m": {"x": 1}})


def fold(**options: Any) -> Fold:
    return Fold(
        **({"name": "f", "source": "s", "group_key": "id", "changed": "m", "format": "avro", "quiet_period": "1m"} | options)
    )


def read(
    value: bytes | None, key: bytes | None = b"a", schemas: SchemaCache | None = None, limits: Limits | None = None, **options: Any
) -> DecodedRange:
    return reader_of(fold(**options), limits or Limits(), schemas or schema_cache()).read([Raw(7, 1_000, key, value)])


def test_avro_event_is_folded_by_its_fields() -> None:
    (event,) = read(VALUE, keep="last").events

    assert (b"a", {"x": 1}) == (canonical_bytes(event.group), event.changed)


def test_functions_receive_the_decoded_event() -> None:
    (event,) = read(VALUE, group_key=lambda event: event["id"] * 2).events

    assert b"aa" == canonical_bytes(event.group)


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        pytest.param(None, "tombstone", id="no value"),
        pytest.param(b'{"id":"a","m":["x"]}', "wrong-format", id="plain JSON"),
        pytest.param(VALUE[:-1], "wrong-format", id="body that ends early"),
        pytest.param(VALUE + b"x", "wrong-format", id="body with trailing bytes"),
        pytest.param(avro(4, "text"), "not-an-object", id="no record"),
        pytest.param(avro(3, {"id": 1}), "no-changed", id="another schema"),
        pytest.param(b"\0\xff\xff\xff\xff", "unknown-schema", id="impossible id"),
    ],
)
def test_bad_value_is_a_dead_letter(value: bytes | None, reason: str) -> None:
    reading = read(value)

    assert ([], [reason]) == (reading.events, [one.reason for one in reading.rejected])


def test_oversized_value_is_a_dead_letter_before_it_is_decoded() -> None:
    assert ["too-large"] == [one.reason for one in read(VALUE, limits=Limits(value_bytes=len(VALUE) - 1)).rejected]


def test_schema_that_was_not_fetched_is_no_dead_letter() -> None:
    with pytest.raises(NotFetchedError):
        read(VALUE, schemas=schema_cache(2))


@pytest.mark.parametrize(
    ("key", "misrouted"),
    [
        pytest.param(b"a", 0, id="plain text"),
        pytest.param(avro(4, "a"), 0, id="framed text"),
        pytest.param(avro(4, "b"), 1, id="another framed text"),
        pytest.param(avro(3, {"id": 1}), 1, id="record with another value"),
        pytest.param(b"\0\0\0\0\4\xff", 1, id="frame that cannot be decoded"),
        pytest.param(None, 1, id="no key"),
    ],
)  # fmt: skip
def test_framed_record_key_is_compared_with_the_group(key: bytes | None, misrouted: int) -> None:
    reading = read(VALUE, key)

    assert (1, misrouted) == (len(reading.events), reading.misrouted)


def test_framed_record_key_as_group_is_its_json() -> None:
    record = read(VALUE, avro(3, {"id": 1}), group_key="@key")
    text = read(VALUE, b"a", group_key="@key")

    assert ([b's{"id":1}'], [b"sa"]) == ([event.group for event in record.events], [event.group for event in text.events])
    assert (0, 0) == (record.misrouted, text.misrouted)


def test_json_schema_needs_no_schema_to_be_read() -> None:
    reading = read(framed(77, b'{"id":"a","m":["x"]}'), format="json-schema")
    broken = read(framed(77, b"{"), format="json-schema")

    assert ([b"sa"], ["not-json"]) == ([event.group for event in reading.events], [one.reason for one in broken.rejected])


def test_schemas_are_fetched_for_keys_and_for_values_that_are_not_json() -> None:
    record = Raw(7, 1_000, b"key", b"value")
    formats = ("json", "json-schema", "avro", "debezium")
    parts = {one: set(reader_of(fold(format=one), Limits(), schema_cache()).framed_parts([record])) for one in formats}

    assert {"json": set(), "json-schema": {b"key"}, "avro": {b"key", b"value"}, "debezium": {b"key", b"value"}} == parts


def test_framed_change_events_are_those_of_debezium() -> None:
    value = avro(2, {"before": {"id": 1, "cents": 5}, "after": {"id": 1, "cents": 6}, "op": "u"})
    framed_key = read(value, avro(3, {"id": 1}), format="debezium", changed="@columns", keep="last")
    plain = {"before": None, "after": {"id": 1, "cents": 7}, "op": "c"}
    unframed = read(json.dumps(plain).encode(), b'{"id":1}', format="debezium", changed="@columns", keep="last")

    assert [{"cents": 6}] == [event.changed for event in framed_key.events]
    assert [{"id": 1, "cents": 7}] == [event.changed for event in unframed.events]
    assert (0, 0) == (framed_key.misrouted, unframed.misrouted)


def test_fold_tester_takes_the_decoded_event_as_json() -> None:
    kit = FoldTester(fold())
    kit.send({"id": "a", "m": ["x"]})
    (record,) = kit.advance("2m")

    assert ["x"] == record.value["m"]


@pytest.mark.parametrize("format_", ["avro", "protobuf", "json-schema"])
def test_settings_without_a_registry_are_rejected(tmp_path: Path, format_: str) -> None:
    path = tmp_path / "streams.toml"
    path.write_text(
        f'app_id = "a"\n[folds.f]\nsource = "s"\ngroup_key = "id"\nchanged = "m"\nquiet_period = "1m"\nformat = "{format_}"\n',
        "utf-8",
    )
    with pytest.raises(ConfigurationError, match=f"fold 'f': format = \"{format_}\" needs schema_registry.url"):
        Settings.load(path, {})

    assert (
        "http://localhost:8081"
        == Settings.load(path, {"STREAMS_APP_SCHEMA_REGISTRY_URL": "http://localhost:8081"}).schema_registry.url
    )


@pytest.mark.parametrize(
    ("given", "fault"),
    [
        ({"URL": "localhost:8081"}, "schema_registry.url: is not http://HOST:PORT"),
        ({"URL": "http://a:b@localhost:8081"}, "schema_registry.url: takes no user and password"),
        ({"USERNAME": "a"}, "schema_registry: username and password_file must be set together"),
        ({"TIMEOUT": "1ms"}, "schema_registry: timeout must be between 100ms and 10m"),
        ({"CACHE_SIZE": "1"}, "schema_registry.cache_size: Input should be greater than or equal to 10"),
        ({"URI": "http://localhost"}, "no such setting, did you mean 'STREAMS_APP_SCHEMA_REGISTRY_URL'?"),
    ],
)
def test_registry_settings_are_validated(given: dict[str, str], fault: str) -> None:
    environment = {f"STREAMS_APP_SCHEMA_REGISTRY_{name}": text for name, text in given.items()}
    with pytest.raises(ConfigurationError) as caught:
        Settings.load(None, {"STREAMS_APP_APP_ID": "a", "STREAMS_APP_EVENTS_CATALOGUE": "a:b", **environment})

    assert any(fault in one for one in caught.value.faults), caught.value.faults
    assert "a:b@" not in str(caught.value)
