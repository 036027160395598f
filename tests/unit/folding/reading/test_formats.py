"""What a fold reads from change events of Debezium and from CloudEvents, and which of them become dead letters."""

from __future__ import annotations

import base64
import hashlib
import json
import uuid
from pathlib import Path
from typing import Any

import pytest

from streams_app import Fold, Settings
from streams_app.codec import canonical_bytes
from streams_app.errors import ConfigurationError
from streams_app.folding.core.event import FoldEvent
from streams_app.folding.reading.reader import DecodedRange
from streams_app.folding.reading.readers import reader_of
from streams_app.settings import Limits
from streams_app.testing import FoldTester
from tests.helpers.kafka.records import Raw

SOURCE = {"connector": "postgresql", "table": "orders", "lsn": 24023128}


def fold(**options: Any) -> Fold:
    return Fold(**({"name": "f", "source": "s", "group_key": "customer_id", "format": "debezium", "quiet_period": "15m"} | options))


def row(**columns: Any) -> dict[str, Any]:
    return {"id": 1, "customer_id": "c1", "status": "new", "cents": 500} | columns


def change(op: str, before: Any = None, after: Any = None, **beside: Any) -> dict[str, Any]:
    return {"before": before, "after": after, "source": SOURCE, "op": op, "ts_ms": 1_700_000_000_000, "transaction": None} | beside


def with_schema(payload: Any) -> dict[str, Any]:
    return {"schema": {"type": "struct", "fields": [], "optional": False}, "payload": payload}


def read(value: Any, declared: Fold | None = None, key: Any = None) -> DecodedRange:
    raw_key = {"id": 1} if key is None else key
    record = Raw(
        7, 1_000, raw_key if isinstance(raw_key, bytes) else json.dumps(raw_key).encode(),
        value if value is None or isinstance(value, bytes) else json.dumps(value).encode(),
    )  # fmt: skip
    return reader_of(declared or fold(), Limits()).read([record])


def names_of(value: Any, **options: Any) -> Any:
    (event,) = read(value, fold(**options)).events
    return dict(event.changed)


def fault_of(value: Any, **options: Any) -> tuple[str, str]:
    (rejected,) = read(value, fold(**options)).rejected
    return rejected.reason, rejected.detail


ALL = {"id": 1, "customer_id": "c1", "status": "new", "cents": 500}


@pytest.mark.parametrize("wrap", [lambda value: value, with_schema], ids=["bare", "with its schema"])
@pytest.mark.parametrize(
    ("given", "changed"),
    [
        pytest.param(change("u", row(), row(status="paid")), {"status": "paid"}, id="update"),
        pytest.param(change("u", row(), row()), {}, id="update that changes nothing"),
        pytest.param(change("u", row(cents=None), row()), {"cents": 500}, id="update of a null"),
        pytest.param(change("u", row(cents=1), row(cents=True)), {"cents": True}, id="update to a value of another type"),
        pytest.param(change("u", None, row()), ALL, id="update without the row before it"),
        pytest.param(change("c", None, row()), ALL, id="create"),
        pytest.param(change("r", None, row()), ALL, id="read by a snapshot"),
        pytest.param(change("d", row(), None), dict.fromkeys(ALL), id="delete"),
        pytest.param(
            change("u", row(status="x"), row(status="__debezium_unavailable_value", cents=1)), {"cents": 1}, id="unavailable value"
        ),
        pytest.param(change("u", json.dumps(row()), json.dumps(row(cents=1))), {"cents": 1}, id="documents as text, as of MongoDB"),
        pytest.param(change("u", row(note="x"), row()), {"note": None}, id="update that removes a field"),
    ],
)
def test_changed_names_of_a_change_event_are_the_columns_that_differ(given: Any, changed: Any, wrap: Any) -> None:
    reading = read(wrap(given), fold(keep="last"), key=wrap({"id": 1}))

    assert [] == reading.rejected
    assert [FoldEvent(7, 1_000, b"sc1", changed)] == reading.events


PLACEHOLDERS = {
    "text": "__debezium_unavailable_value",
    "bytes in Base64": "X19kZWJleml1bV91bmF2YWlsYWJsZV92YWx1ZQ==",
    "bytes in hexadecimal": b"__debezium_unavailable_value".hex(),
    "texts": ["__debezium_unavailable_value"],
    "bytes": ["X19kZWJleml1bV91bmF2YWlsYWJsZV92YWx1ZQ=="],
    "uuids": [str(uuid.UUID(bytes=hashlib.md5(b"__debezium_unavailable_value").digest(), version=3))],
    "integers": list(b"__debezium_unavailable_value"),
    "floats": [float(octet) for octet in b"__debezium_unavailable_value"],
    "decimals": [base64.b64encode(bytes((octet,))).decode() for octet in b"__debezium_unavailable_value"],
    "hstore as a map": {"__debezium_unavailable_value": "__debezium_unavailable_value"},
    "hstore as text": '{"__debezium_unavailable_value":"__debezium_unavailable_value"}',
    "hstores": [{"__debezium_unavailable_value": "__debezium_unavailable_value"}],
}


@pytest.mark.parametrize("before", [None, row(), row(status=["x"])], ids=["no row before", "row before", "array before"])
@pytest.mark.parametrize("value", PLACEHOLDERS.values(), ids=PLACEHOLDERS)
def test_placeholder_for_an_unchanged_value_is_no_change_in_any_type(value: Any, before: Any) -> None:
    changed = names_of(change("u", before, row(status=value, cents=7)), keep="last")

    assert "status" not in changed
    assert 7 == changed["cents"]


@pytest.mark.parametrize(
    "value",
    [
        ["x"], [], {}, {"__debezium_unavailable_value": "x"}, [1, 2], [True] * 28, "__debezium", [["__debezium_unavailable_value"]],
        list(b"__debezium_unavailable_valuf"), {"a": "__debezium_unavailable_value"},
    ],
    ids=str,
)  # fmt: skip
def test_value_that_only_resembles_the_placeholder_is_a_change(value: Any) -> None:
    assert value == names_of(change("u", row(), row(status=value)), keep="last")["status"]


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("__gone", "__gone"), ("__gone", ["__gone"]), ("hex:c3a9ff", [-61, -87, -1]), ("hex:c3a9", "é"), ("hex:c3a9ff", "w6n/"),
        ("hex:c3a9ff", "w6n_"),
    ],
)  # fmt: skip
def test_placeholder_is_the_one_of_the_settings(setting: str, value: Any) -> None:
    event = change("u", row(), row(status=value, cents=7))

    assert {"cents": 7} == names_of(event, keep="last", unavailable_value=setting)
    assert "status" in names_of(event, keep="last")
    assert "status" in names_of(change("u", row(), row(status=PLACEHOLDERS["text"])), unavailable_value=setting)


def test_column_with_the_placeholder_is_missing_in_the_event() -> None:
    assert ("no-group", "'customer_id' is missing or null, not a string, a number or a boolean") == fault_of(
        change("u", row(), row(customer_id=["__debezium_unavailable_value"]))
    )


@pytest.mark.parametrize(
    ("options", "fault"),
    [
        ({"unavailable_value": ""}, "at least one character"),
        ({"unavailable_value": "hex:"}, "at least one character"),
        ({"unavailable_value": "hex:zz"}, "non-hexadecimal"),
        ({"unavailable_value": "x", "format": "json", "changed": "m"}, 'only for format = "debezium"'),
    ],
)
def test_placeholder_that_cannot_be_one_is_a_fault_of_the_settings(options: Any, fault: str) -> None:
    with pytest.raises(ValueError, match=fault):
        fold(**options)


@pytest.mark.parametrize("key", [b'{"id":1}', b'{"schema":{},"payload":{"id":1}}'])
def test_delete_without_a_row_is_folded_by_its_key(key: bytes) -> None:
    (event,) = read(change("d"), fold(group_key="id", keep="last", close_when={"@op": ["d"]}), key=key).events

    assert (b"j1", {"id": None}, True) == (event.group, event.changed, event.closes)


def test_delete_without_a_row_is_folded_by_a_record_key_that_is_text() -> None:
    (event,) = read(change("d"), fold(group_key="@key"), key=b"doc-1").events

    assert (b"sdoc-1", []) == (event.group, list(event.changed))


def test_delete_without_a_row_and_without_a_key_is_a_dead_letter() -> None:
    (rejected,) = read(change("d"), key=b"").rejected

    assert "wrong-format" == rejected.reason


LONG = [
    ("12345678901234567.89", "12345678901234567.90"), ("18446744073709551617", "18446744073709551618"),
    ("1.00000000000000000001", "1.00000000000000000002"), ("-9223372036854775809", "-9223372036854775810"), ("1e-400", "2e-400"),
    ("9007199254740993.0", "9007199254740992.0"), ("1" * 400, "1" * 399 + "2"),
]  # fmt: skip


@pytest.mark.parametrize(("before", "after"), LONG)
@pytest.mark.parametrize("nested", ["%s", "[%s]", '{"a":%s}'])
def test_numbers_that_a_double_cannot_hold_are_compared_exactly(before: str, after: str, nested: str) -> None:
    for old, new, names in ((before, after, ["n"]), (after, after, [])):
        rows = [f'{{"id":1,"customer_id":"c","n":{nested % value}}}' for value in (old, new)]
        raw = f'{{"op":"u","before":{rows[0]},"after":{rows[1]}}}'

        assert names == list(names_of(raw.encode()))


@pytest.mark.parametrize(
    "value",
    [
        pytest.param(None, id="tombstone"),
        pytest.param(with_schema(None), id="tombstone with a schema"),
        pytest.param({"status": "BEGIN", "id": "571:53195829", "event_count": None, "data_collections": None}, id="begin"),
        pytest.param({"status": "END", "id": "571:53195832", "event_count": 2, "ts_ms": 1, "data_collections": []}, id="end"),
        pytest.param(with_schema({"status": "BEGIN", "id": "571"}), id="begin with a schema"),
        pytest.param({"ts_ms": 1_700_000_000_000}, id="heartbeat"),
        pytest.param(with_schema({"ts_ms": 1_700_000_000_000}), id="heartbeat with a schema"),
    ],
)
def test_tombstone_heartbeat_and_transaction_metadata_are_skipped_without_a_dead_letter(value: Any) -> None:
    reading = read(value)

    assert ([], []) == (reading.events, reading.rejected)


@pytest.mark.parametrize(
    ("value", "detail"),
    [
        pytest.param(change("u"), "op 'u' and no row: after, and the row is null or missing", id="update"),
        pytest.param(change("u", row(), None), "op 'u' and no row: after", id="update with the row before it alone"),
        pytest.param(change("d", None, row()), "op 'd' and no row: before, and a deleted row is null or missing", id="delete"),
        pytest.param(change("t"), "op 't' and no row", id="truncate"),
        pytest.param({"op": "m", "message": {"prefix": "p"}}, "op 'm' and no row", id="logical message"),
        pytest.param({"before": None, "after": row()}, "it has no op", id="no op"),
        pytest.param(row(), "it has no op", id="a row alone"),
        pytest.param(row(status="BEGIN", op="u"), "op 'u' and no row", id="row with the fields of a transaction"),
        pytest.param({}, "it has no op", id="empty object"),
        pytest.param(with_schema("text"), "it has no op", id="payload that is no object"),
        pytest.param(change("u", "text", "text"), "op 'u' and no row", id="text that is no document"),
    ],
)
def test_change_event_without_a_row_is_a_dead_letter_that_says_so(value: Any, detail: str) -> None:
    reason, found = fault_of(value)

    assert "wrong-format" == reason
    assert detail in found


def test_group_column_that_the_row_lacks_is_taken_from_the_record_key() -> None:
    reading = read(change("u", None, {"status": "paid"}), key=with_schema({"customer_id": "c9"}))

    assert [b"c9"] == [canonical_bytes(event.group) for event in reading.events]


@pytest.mark.parametrize(
    ("group_key", "key", "misrouted"),
    [
        pytest.param("id", {"id": 1}, 0, id="group by the key"),
        pytest.param(("customer_id", "id"), with_schema({"id": 1}), 0, id="finer than the key"),
        pytest.param("customer_id", {"id": 1}, 1, id="key that varies within a group"),
        pytest.param("customer_id", {"id": 1, "customer_id": "c1"}, 1, id="one column of the key"),
        pytest.param("id", b"1", 0, id="key that is the group"),
        pytest.param("id", b"2", 1, id="key in another format"),
        pytest.param("id", {"id": 2}, 1, id="key of another row"),
        pytest.param("@key", {"id": 1}, 0, id="group by the whole key"),
    ],
)
def test_event_is_misrouted_unless_its_group_determines_the_columns_of_its_key(group_key: Any, key: Any, misrouted: int) -> None:
    reading = read(change("u", row(), row(cents=1)), fold(group_key=group_key), key=key)

    assert (1, misrouted) == (len(reading.events), reading.misrouted)


@pytest.mark.parametrize(
    "key", [b'{"id":1}', {"schema": {"type": "struct"}, "payload": {"id": 1}}], ids=["bare", "with its schema"]
)
def test_record_key_as_group_has_no_schema(key: Any) -> None:
    reading = read(change("u", row(), row(cents=1)), fold(group_key="@key"), key=key)

    assert ([b's{"id":1}'], 0) == ([event.group for event in reading.events], reading.misrouted)


@pytest.mark.parametrize(("key", "detail"), [(b"", "the record has no key"), (b"\xff", "the record key is not UTF-8")])
def test_event_without_a_usable_record_key_is_a_dead_letter_if_the_key_is_the_group(key: bytes, detail: str) -> None:
    (rejected,) = read(change("u", row(), row(cents=1)), fold(group_key="@key"), key=key).rejected

    assert ("no-group", detail) == (rejected.reason, rejected.detail)


def test_fields_of_the_envelope_are_read_with_an_at_sign() -> None:
    declared = fold(group_key=("@source.table", "id"), close_when={"@op": ["d"]})
    events = [read(value, declared).events[0] for value in (change("u", row(), row(cents=1)), change("d", row()))]

    assert [(b'j["orders",1]', False), (b'j["orders",1]', True)] == [(event.group, event.closes) for event in events]


def test_functions_receive_the_row() -> None:
    declared = fold(
        group_key=lambda event: event["customer_id"].upper(),
        changed=lambda event: [name for name in event["@columns"] if name != "cents"],
        source_filter=lambda event: event["@op"] == "u",
    )
    update = read(change("u", row(), row(cents=1, status="paid")), declared)
    create = read(change("c", None, row()), declared)

    assert [(b"sC1", ["status"])] == [(event.group, list(event.changed)) for event in update.events]
    assert ([], []) == (create.events, create.rejected)


def cloud_event(data: Any, **attributes: Any) -> dict[str, Any]:
    head = {"specversion": "1.0", "type": "order.paid", "source": "/shop", "id": "e1", "subject": "c7"}
    return head | attributes | {"data": data}


CLOUD = {"format": "cloudevents", "changed": "m"}


@pytest.mark.parametrize(
    ("value", "group_key", "group"),
    [
        pytest.param(cloud_event({"id": "a", "m": "x"}), "id", b"a", id="field of data and not the attribute"),
        pytest.param(cloud_event({"c": {"id": 3}, "m": "x"}), "c.id", b"3", id="dotted path in data"),
        pytest.param(cloud_event({"m": "x"}), "@subject", b"c7", id="attribute"),
        pytest.param(cloud_event({"m": "x"}), ("@source", "@type"), b'["/shop","order.paid"]', id="attributes"),
        pytest.param(
            {**cloud_event(None), "data_base64": "eyJpZCI6ImIiLCJtIjoieCJ9"}, "id", b"b", id="data in Base64"
        ),
    ],
)  # fmt: skip
def test_fields_of_a_cloud_event_are_those_of_its_data(value: Any, group_key: Any, group: bytes) -> None:
    reading = read(value, fold(**CLOUD, group_key=group_key))

    assert [(group, ["x"])] == [(canonical_bytes(event.group), list(event.changed)) for event in reading.events]


def test_attributes_alone_can_be_folded() -> None:
    declared = fold(format="cloudevents", group_key="@subject", changed="@type")

    assert [["order.paid"]] == [list(event.changed) for event in read(cloud_event(None), declared).events]


@pytest.mark.parametrize(
    ("value", "reason", "detail"),
    [
        pytest.param({"id": "a", "m": "x"}, "wrong-format", "it has no specversion", id="plain JSON"),
        pytest.param(cloud_event([1]), "not-an-object", "data is a JSON list", id="data that is an array"),
        pytest.param({**cloud_event(None), "data_base64": "%"}, "wrong-format", "data_base64 is not Base64", id="no Base64"),
        pytest.param({**cloud_event(None), "data_base64": "fw=="}, "not-json", "", id="Base64 of no JSON"),
        pytest.param(cloud_event({"m": "x"}), "no-group", "'id'", id="an attribute is not a field of data"),
        pytest.param(None, "tombstone", "", id="no value"),
        pytest.param(b"{", "not-json", "", id="no JSON"),
        pytest.param([cloud_event({"id": "a", "m": "x"})], "not-an-object", "", id="a batch"),
    ],
)
def test_bad_cloud_event_is_a_dead_letter(value: Any, reason: str, detail: str) -> None:
    found = fault_of(value, **CLOUD, group_key="id")

    assert reason == found[0]
    assert detail in found[1]


def test_number_beyond_a_double_that_no_fold_reads_does_not_matter_in_a_cloud_event() -> None:
    value = json.dumps(cloud_event({"id": "a", "m": "x", "n": 0})).replace('"n": 0', '"n": 1e999').encode()

    assert 1 == len(read(value, fold(**CLOUD, group_key="id")).events)


def test_fold_of_change_events_works_in_the_test_kit() -> None:
    kit = FoldTester(fold(keep="last", changed_as="columns"))
    kit.send(change("c", None, row()), key=b'{"id":1}')
    kit.send(change("u", row(), row(status="paid")), key=b'{"id":1}')
    kit.send(change("d", row(id=2)), key=b'{"id":2}')
    kit.send(None, key=b'{"id":2}')
    kit.send(change("t"))
    (record,) = kit.advance("16m")

    assert {"id": None, "customer_id": None, "status": None, "cents": None} == record.value["columns"]
    assert ("c1", 3) == (record.value["customer_id"], record.value["fold"]["events"])
    assert ["wrong-format"] == [dead_letter.reason for dead_letter in kit.dead_letters]


TOML = """
app_id = "shop"

[folds.orders]
source = "shop.public.orders"
format = "debezium"
group_key = "customer_id"
quiet_period = "5s"
"""


def test_fold_of_change_events_needs_no_changed_in_toml(tmp_path: Path) -> None:
    path = tmp_path / "streams.toml"
    path.write_text(TOML, "utf-8")
    (declared,) = Settings.load(path, {}).folds

    assert ("debezium", "changed") == (declared.format, declared.changed_field)


@pytest.mark.parametrize(
    ("given", "fault"),
    [
        ('format = "xml"', "folds.orders.format: Input should be"),
        ('format = "json"', "folds.orders.changed: is required"),
        ('format = "cloudevents"', "folds.orders.changed: is required"),
        ('format = "json"\nchanged = "m"\ngroup_key = "@op"', "'@op' begins with @ and is not @key"),
        ('format = "json"\nchanged = "m"\nchanged_as = "x"', "changed_as = 'x' is only for a function"),
    ],
)
def test_settings_name_what_is_wrong_with_a_format(tmp_path: Path, given: str, fault: str) -> None:
    path = tmp_path / "streams.toml"
    text = TOML.replace('format = "debezium"', given)
    path.write_text(text.replace('group_key = "customer_id"\n', "") if "group_key" in given else text, "utf-8")

    with pytest.raises(ConfigurationError) as caught:
        Settings.load(path, {})

    assert any(fault in one for one in caught.value.faults), caught.value.faults


def test_format_and_decode_exclude_each_other() -> None:
    with pytest.raises(ValueError, match="format = 'debezium' and decode exclude each other"):
        fold(decode=lambda value: {})
