"""A value that is nested too deeply ends in an error of this project, and never in the end of the process.

Each case runs in a process of its own, because a decoder without a limit ends it by SIGSEGV.
"""

from __future__ import annotations

import asyncio
import base64
import os
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import orjson
import pytest
from pydantic import BaseModel

from streams_app import Event, Fold, QuietPeriod, Received, subscriber
from streams_app.clock import SystemClock
from streams_app.delivery.batch import TP
from streams_app.demo.replay import EventReplay
from streams_app.depth import MAX_DEPTH, TooDeepError, check_depth
from streams_app.envelopes import Format
from streams_app.errors import BadEventError
from streams_app.folding.reading.readers import reader_of
from streams_app.journal.core.entry import row_of
from streams_app.journal.core.usual import UsualKeys
from streams_app.journal.reading.decoding import EntryDecoder
from streams_app.journal.reading.entries import Entry
from streams_app.live.core.record_effects import ViewRule
from streams_app.operations.live_import import _parse_line
from streams_app.schemas.cache import SchemaCache, SchemaEntry
from streams_app.schemas.framing import FIRST_MESSAGE, framed
from streams_app.schemas.schema import SchemaDefinition, parsed
from streams_app.schemas.values import ValueReader
from streams_app.settings import JournalSettings, Limits, LiveView, Settings
from streams_app.subscribers.execution.decoding import decode_of
from streams_app.tuning.columns import Columns
from streams_app.tuning.file import LineReader
from streams_app.tuning.read_counts import ReadCounts
from tests.helpers.kafka.records import Raw

JSON_LEVELS = 1_024
"""Number of levels that orjson reads, the largest limit of all."""

DEEP = 10 * JSON_LEVELS

NODE = b'{"type":"record","name":"N","fields":[{"name":"id","type":"string"},{"name":"m","type":["null","N"]}]}'
PROTO = b'syntax = "proto3"; message N { string id = 1; N m = 2; }'
LIMITS = Limits()


def json_of(levels: int, field: str = "m") -> bytes:
    return b'{"id":"a","%b":%b%b}' % (field.encode(), b"[" * levels, b"]" * levels)


def avro_of(levels: int) -> bytes:
    return framed(1, b"\2a\2" * levels + b"\2a\0")


def protobuf_of(levels: int) -> bytes:
    content = b"\n\1a"
    for _ in range(levels):
        content = b"\x12" + varint(len(content)) + content
    return framed(2, FIRST_MESSAGE + content)


def varint(number: int) -> bytes:
    rest, digits = number, bytearray()
    while rest > 127:
        digits.append(rest & 127 | 128)
        rest >>= 7
    return bytes([*digits, rest])


def schemas() -> SchemaCache:
    cache = SchemaCache(10)
    cache.keep(1, SchemaEntry("AVRO", parsed(SchemaDefinition("AVRO", NODE.decode()))))
    cache.keep(2, SchemaEntry("PROTOBUF", parsed(SchemaDefinition("PROTOBUF", PROTO.decode()))))
    cache.keep(3, SchemaEntry("JSON", parsed(SchemaDefinition("JSON", "{}"))))
    return cache


VALUES: dict[str, tuple[Format, Callable[[int], bytes]]] = {
    "json": ("json", json_of),
    "an unread field of json": ("json", partial(json_of, field="unread")),
    "json-schema": ("json-schema", lambda levels: framed(3, json_of(levels))),
    "avro": ("avro", avro_of),
    "protobuf": ("protobuf", protobuf_of),
    "debezium": ("debezium", lambda levels: b'{"op":"u","before":%b,"after":%b}' % (json_of(levels), json_of(levels))),
    "debezium as text": (
        "debezium",
        lambda levels: b'{"op":"u","before":%b,"after":%b}' % ((orjson.dumps(json_of(levels).decode()),) * 2),
    ),
    "debezium in Avro": ("debezium", avro_of),
    "cloudevents": ("cloudevents", lambda levels: b'{"specversion":"1.0","type":"n.changed","data":%b}' % json_of(levels)),
    "cloudevents in Base64": (
        "cloudevents",
        lambda levels: b'{"specversion":"1.0","type":"n.changed","data_base64":"%b"}' % base64.b64encode(json_of(levels)),
    ),
}


def in_a_process(function: Callable[[], object]) -> str:
    """Run a function in a forked process; return the text of its result, or of how the process ended."""
    reading, writing = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # threads of this process are no concern of the function
        pid = os.fork()
    if pid == 0:
        try:
            os.write(writing, str(function()).encode()[:60_000])
        except BaseException as error:
            os.write(writing, f"{type(error).__name__}: {str(error)[:1_000]}".encode())
        finally:
            os._exit(0)
    os.close(writing)
    with open(reading, "rb") as file:
        found = file.read().decode()
    _, status = os.waitpid(pid, 0)
    return found or f"ended with status {status}"


def read_by(options: dict[str, Any], declared: Format, value: bytes, key: bytes = b"a") -> str:
    given = {"name": "f", "source": "s", "group_key": "id", "changed": "m", "quiet_period": "1m", "format": declared}
    fold = Fold(**(given | options))
    reading = reader_of(fold, LIMITS, schemas()).read([Raw(0, 1, key, value)])
    for event in reading.events:
        str(event)[:10]
    return ", ".join(one.reason for one in reading.rejected) or "folded"


FOLDS: dict[str, dict[str, Any]] = {
    "names": {},
    "last": {"keep": "last"},
    "events": {"keep": "events", "changed": ""},
    "aggregates": {"keep": {"*": "max"}},
    "a quiet period": {"quiet_period": QuietPeriod(field="m", default="1m", at_most="1h")},
    "the record key": {"group_key": "@key"},
    "functions": {"group_key": lambda event: event["id"], "changed": lambda event: {"x": event.get("m")}, "keep": "last"},
}
REASONS = {"not-json", "wrong-format", "no-value", "no-changed", "user-error"}


@pytest.mark.parametrize(("declared", "value"), VALUES.values(), ids=VALUES)
def test_fold_rejects_a_value_that_is_nested_too_deeply(declared: Format, value: Callable[[int], bytes]) -> None:
    def reasons() -> str:
        return "; ".join(read_by(options, declared, value(DEEP)) for options in FOLDS.values())

    found = in_a_process(reasons).split("; ")

    assert (len(FOLDS), set()) == (len(found), {*found} - REASONS)


@pytest.mark.parametrize("key", [avro_of(DEEP), json_of(DEEP), b'{"schema":1,"payload":%b}' % json_of(500)])
@pytest.mark.parametrize("group_key", ["id", "@key"])
def test_fold_reads_a_record_key_that_is_nested_too_deeply(group_key: str, key: bytes) -> None:
    change = b'{"op":"c","after":{"id":"a","m":["x"]}}'

    assert in_a_process(partial(read_by, {"group_key": group_key}, "debezium", change, key)) in {"folded", "no-group", "too-large"}


def shown_by(view: LiveView, value: bytes) -> str:
    return type(ViewRule(view, LIMITS.value_bytes, schemas()).effect_of(0, Raw(0, 1, b"a", value), 1)).__name__


@pytest.mark.parametrize(("declared", "value"), VALUES.values(), ids=VALUES)
def test_view_rejects_a_value_that_is_nested_too_deeply(declared: Format, value: Callable[[int], bytes]) -> None:
    view = LiveView(name="v", kind="list", source="s", page="id", expiry="1m", format=declared, only={"m": [1, 2]})

    assert in_a_process(partial(shown_by, view, value(DEEP))).startswith("BadEventError: ")


@pytest.mark.parametrize(("declared", "value"), VALUES.values(), ids=VALUES)
def test_journal_stores_a_value_that_is_nested_too_deeply_without_a_key(declared: Format, value: Callable[[int], bytes]) -> None:
    journal = JournalSettings(name="j", source="s", key="id", keep="1d", format=declared)

    def keys() -> str:
        record = Raw(0, 1, b"a", value(DEEP))
        return f"{UsualKeys(journal, LIMITS).of(record)!r} {row_of(record, journal, LIMITS, ValueReader(declared, schemas()))[1]}"

    assert in_a_process(keys) in {"None not-json", "None wrong-format"}


def decoder_of(declared: Format) -> EntryDecoder:
    journal = JournalSettings(name="j", source="s", key="id", keep="1d", format=declared)
    settings = Settings(app_id="a", journals=[journal], schema_registry={"url": "http://127.0.0.1:9"})
    decoder = EntryDecoder(settings, journal, SystemClock())
    if decoder._registry is not None:
        for number, entry in schemas()._entries.items():
            decoder._registry.keep(number, entry)
    return decoder


@pytest.mark.parametrize(("declared", "value"), VALUES.values(), ids=VALUES)
def test_journal_reader_says_why_it_cannot_decode_a_value(declared: Format, value: Callable[[int], bytes]) -> None:
    decoder = decoder_of(declared)
    entry = Entry("0-1", 1, value(DEEP), (), 0, 0, None)

    assert in_a_process(lambda: orjson.dumps(asyncio.run(decoder.decoded(entry)).as_json())).startswith("b'{")


def test_journal_reader_does_not_show_json_that_it_could_not_write() -> None:
    decoder = decoder_of("json-schema")
    entry = asyncio.run(decoder.decoded(Entry("0-1", 1, framed(3, json_of(500)), (), 0, 0, None)))

    assert "nested more than" in entry.undecoded
    assert orjson.dumps(entry.as_json())


class Loose(msgspec.Struct, frozen=True):
    id: str
    m: Any = None


class Model(BaseModel):
    id: str
    m: Any = None


def handled(payload: type[Any], declared: Format, value: bytes) -> str:
    changed: Event[Any, Any] = Event("n.changed", payload, description="Changed.", keyed_by=None, format=declared)

    @subscriber(changed, idempotent="yes", description="Writes.")
    def write(event: Received[Any]) -> None:
        """Do nothing."""

    record = SimpleNamespace(key=b"a", value=value, headers=[], offset=0, timestamp=1)
    return type(decode_of(write, LIMITS, None, schemas=schemas())(TP("s", 0), record, 1)).__name__


@pytest.mark.parametrize("payload", [Loose, Model])
@pytest.mark.parametrize(("declared", "value"), VALUES.values(), ids=VALUES)
def test_subscriber_rejects_a_value_that_is_nested_too_deeply(
    declared: Format, value: Callable[[int], bytes], payload: type[Any]
) -> None:
    assert in_a_process(partial(handled, payload, declared, value(DEEP))).startswith("BadEventError: ")


def nested(levels: int) -> Any:
    value: Any = {"id": "a", "m": None}
    for _ in range(levels):
        value = {"id": "a", "m": value}
    return value


@pytest.mark.parametrize(("schema_type", "text"), [("AVRO", NODE), ("PROTOBUF", PROTO), ("JSON", b"{}")])
def test_event_that_is_nested_too_deeply_is_not_encoded(schema_type: str, text: bytes) -> None:
    schema = parsed(SchemaDefinition(schema_type, text.decode()))

    assert "Error: " in in_a_process(lambda: schema.encode(nested(DEEP)))


DEEP_SCHEMAS = {
    "AVRO": b'{"type":"array","items":' * DEEP + b'"int"' + b"}" * DEEP,
    "PROTOBUF": b'syntax = "proto3";' + b"message M {" * DEEP + b"}" * DEEP,
}


@pytest.mark.parametrize(("schema_type", "text"), DEEP_SCHEMAS.items(), ids=DEEP_SCHEMAS)
def test_schema_that_is_nested_too_deeply_cannot_be_used(schema_type: str, text: bytes) -> None:
    assert "Error: " in in_a_process(lambda: parsed(SchemaDefinition(schema_type, text.decode())))


def test_value_as_deep_as_a_deep_schema_is_rejected() -> None:
    text = b'{"type":"array","items":' * 500 + b'"int"' + b"}" * 500
    schema = parsed(SchemaDefinition("AVRO", text.decode()))

    assert in_a_process(lambda: schema.decode(b"\2" * 500 + b"\0" * 501)).startswith("TooDeepError: ")


def test_avro_array_of_items_without_bytes_is_limited() -> None:
    schema = parsed(SchemaDefinition("AVRO", '{"type":"array","items":"null"}'))

    assert [None] * 3 == schema.decode(b"\6\0")
    assert "items without bytes" in in_a_process(lambda: schema.decode(b"\xfe\xff\xff\xff\xff\xff\x0f\0"))


def lines_of(path: Path) -> list[bytes]:
    path.write_bytes(b"\n".join([json_of(DEEP), json_of(500, "at"), json_of(500), b'{"id":"a","m":["x"],"at":1700000000000}']))
    return path.read_bytes().splitlines()


def test_tune_skips_lines_that_are_nested_too_deeply(tmp_path: Path) -> None:
    lines_of(path := tmp_path / "events.jsonl")
    fold = Fold(name="f", source="s", group_key="id", changed="m", quiet_period="1m")
    tally = ReadCounts()

    def read() -> str:
        LineReader(fold, LIMITS, Columns(now_ms=10**13), tally, time="at").read(path)
        return str(sum(tally.rejected.values()))

    assert "3" == in_a_process(read)


def test_replay_of_the_demo_sends_lines_that_are_nested_too_deeply_as_they_are(tmp_path: Path) -> None:
    lines = lines_of(path := tmp_path / "events.jsonl")

    def replay() -> str:
        return str([one.value for one in EventReplay(path, group_key="id", rate=1).until(10**15)] == lines)

    assert "True" == in_a_process(replay)


@pytest.mark.parametrize("levels", [300, 500, DEEP])
def test_line_of_an_import_that_is_nested_too_deeply_is_a_fault(levels: int) -> None:
    line = b'{"key":null,"time":1,"value":%b}' % json_of(levels)

    assert in_a_process(lambda: _parse_line(line, "t")).startswith("ValueError: ")


@pytest.mark.parametrize(("declared", "value"), VALUES.values(), ids=VALUES)
def test_no_depth_raises_another_error_than_that_of_a_bad_event(declared: Format, value: Callable[[int], bytes]) -> None:
    rules = [LiveView(name="v", kind="list", source="s", page="id", expiry="1m", format=declared)]
    journal = JournalSettings(name="j", source="s", key="id", keep="1d", format=declared)

    def read_all() -> str:
        for levels in [*(99, 100, 101, 240, 241, 254, 255), *range(950, 1_030, 4)]:
            event = value(levels)
            for options in (FOLDS["last"], FOLDS["events"]):
                read_by(options, declared, event)
            row_of(Raw(0, 1, b"a", event), journal, LIMITS, ValueReader(declared, schemas()))
            for step in (partial(shown_by, rules[0]), partial(handled, Loose, declared), partial(handled, Model, declared)):
                try:
                    step(event)
                except BadEventError:
                    continue
        return "read"

    assert "read" == in_a_process(read_all)


def test_depth_is_counted_in_objects_and_arrays() -> None:
    check_depth(nested(MAX_DEPTH - 1))
    with pytest.raises(TooDeepError):
        check_depth(nested(MAX_DEPTH))
