"""What a fold takes from raw records, and why it rejects one."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streams_app.codec import canonical_bytes, member_of
from streams_app.delivery.batch import SourceRecord
from streams_app.events.headers import ERASURE
from streams_app.fold import Fold
from streams_app.folding.core.event import FoldEvent
from streams_app.folding.reading.reader import DecodedRange, EventReader, RangeFaults, decode_all
from streams_app.folding.reading.readers import reader_of
from streams_app.settings import Limits
from tests.helpers.kafka.records import Raw

LIMITS = Limits(value_bytes=200, key_bytes=10, names_per_event=3, name_bytes=8)


def fold(**values: Any) -> Fold:
    return Fold(**({"name": "f", "source": "s", "group_key": "id", "changed": "m", "quiet_period": "15m"} | values))


def read(records: Sequence[SourceRecord], declared: Fold | None = None, limits: Limits = LIMITS) -> DecodedRange:
    return EventReader(declared or fold(), limits).read(records, decode_all(records, limits))


def read_value(value: bytes | None, key: bytes | None = b"a", **declared: Any) -> DecodedRange:
    return read([Raw(7, 1_000, key, value)], fold(**declared))


def reasons(reading: RangeFaults) -> list[str]:
    return [rejected.reason for rejected in reading.rejected]


def padded(size: int) -> bytes:
    empty = b'{"id":"a","m":"x","pad":""}'
    return empty[:-2] + b"." * (size - len(empty)) + b'"}'


REJECTED = [
    pytest.param(None, "tombstone", id="no value"),
    pytest.param(b"", "tombstone", id="an empty value"),
    pytest.param(b"{", "not-json", id="a broken object"),
    pytest.param(b'{"id":"\xff","m":"x"}', "not-json", id="invalid UTF-8"),
    pytest.param(b"[1]", "not-an-object", id="an array"),
    pytest.param(b'"a"', "not-an-object", id="a string"),
    pytest.param(b"null", "not-an-object", id="JSON null"),
    pytest.param(b'{"m":"x"}', "no-group", id="group field missing"),
    pytest.param(b'{"id":null,"m":"x"}', "no-group", id="group field null"),
    pytest.param(b'{"id":["a"],"m":"x"}', "no-group", id="group field an array"),
    pytest.param(b'{"id":{"a":1},"m":"x"}', "no-group", id="group field an object"),
    pytest.param(b'{"id":9007199254740993,"m":"x"}', "no-group", id="group field beyond 2^53"),
    pytest.param(b'{"id":"a"}', "no-changed", id="changed field missing"),
    pytest.param(b'{"id":"a","m":null}', "no-changed", id="changed field null"),
    pytest.param(b'{"id":"a","m":1}', "no-changed", id="changed field a number"),
    pytest.param(b'{"id":"a","m":true}', "no-changed", id="changed field a boolean"),
    pytest.param(b'{"id":"a","m":["x",1]}', "no-changed", id="a number among the items"),
    pytest.param(b'{"id":"a","m":[["x"]]}', "no-changed", id="an array among the items"),
    pytest.param(b'{"id":"a","m":[null]}', "no-changed", id="null among the items"),
    pytest.param(padded(201), "too-large", id="value one byte beyond its limit"),
    pytest.param(b"[" * 201, "too-large", id="too large is found before it is decoded"),
    pytest.param(b'{"id":"12345678901","m":"x"}', "too-large", id="group key one byte beyond its limit"),
    pytest.param('{"id":"ääääää","m":"x"}'.encode(), "too-large", id="the limit of the group key counts bytes"),
    pytest.param(b'{"id":12345678901,"m":"x"}', "too-large", id="group key a number of too many digits"),
    pytest.param(b'{"id":"a","m":"123456789"}', "too-large", id="name one byte beyond its limit"),
    pytest.param('{"id":"a","m":["ok","äääää"]}'.encode(), "too-large", id="the limit of a name counts bytes"),
    pytest.param(b'{"id":"a","m":["1","2","3","4"]}', "too-many-names", id="one item too many"),
    pytest.param(b'{"id":"a","m":{"1":1,"2":1,"3":1,"4":1}}', "too-many-names", id="one key too many"),
]


@pytest.mark.parametrize(("value", "reason"), REJECTED)
def test_bad_event_is_rejected_with_its_reason_and_keeps_its_record(value: bytes | None, reason: str) -> None:
    record = Raw(7, 1_000, b"a", value)
    reading = read([record])

    assert [] == reading.events
    assert [(record, reason)] == [(rejected.record, rejected.reason) for rejected in reading.rejected]
    assert reading.rejected[0].record is record
    assert "" != reading.rejected[0].detail


@pytest.mark.parametrize(
    ("value", "group", "names"),
    [
        pytest.param(padded(200), b"a", ["x"], id="value of exactly its limit"),
        pytest.param(b'{"id":"1234567890","m":"x"}', b"1234567890", ["x"], id="group key of exactly its limit"),
        pytest.param('{"id":"äääää","m":"x"}'.encode(), "äääää".encode(), ["x"], id="group key of ten bytes in five characters"),
        pytest.param(b'{"id":1234567890,"m":"x"}', b"1234567890", ["x"], id="number of exactly the key's limit"),
        pytest.param(b'{"id":"a","m":"12345678"}', b"a", ["12345678"], id="name of exactly its limit"),
        pytest.param('{"id":"a","m":"ääää"}'.encode(), b"a", ["ääää"], id="name of eight bytes in four characters"),
        pytest.param(b'{"id":"a","m":["1","2","3"]}', b"a", ["1", "2", "3"], id="as many names as allowed"),
        pytest.param(b'{"id":"a","m":["1","1","2","2","3"]}', b"a", ["1", "2", "3"], id="a name twice counts once"),
        pytest.param(b'{"id":"a","m":[]}', b"a", [], id="an empty array"),
        pytest.param(b'{"id":"a","m":{}}', b"a", [], id="an empty object"),
    ],
)
def test_event_at_a_limit_is_folded(value: bytes, group: bytes, names: list[str]) -> None:
    reading = read_value(value)

    assert [] == reading.rejected
    assert [(group, names)] == [(canonical_bytes(event.group), list(event.changed)) for event in reading.events]


@pytest.mark.parametrize(
    ("changed", "names"),
    [
        pytest.param({"likes": 7, "shares": None}, {"likes": 7, "shares": None}, id="the keys of an object, with its values"),
        pytest.param(["likes", "shares"], {"likes": None, "shares": None}, id="the items of an array"),
        pytest.param("likes", {"likes": None}, id="a string itself"),
        pytest.param({"a": {"b": [1]}}, {"a": {"b": [1]}}, id="values of any shape"),
        pytest.param(["{}", "a\nb", "\x00"], {"{}": None, "a\nb": None, "\x00": None}, id="names of any characters"),
    ],
)
def test_names_come_from_the_changed_field(changed: Any, names: dict[str, Any]) -> None:
    reading = read_value(json.dumps({"id": "a", "m": changed}).encode())

    assert [FoldEvent(7, 1_000, b"sa", names)] == reading.events


@pytest.mark.parametrize("keep", ["names", "last"])
@pytest.mark.parametrize("by", ["field", "function"])
def test_changed_field_may_be_a_dotted_path(keep: str, by: str) -> None:
    group_key = "id" if by == "field" else lambda event: event["id"]
    declared = fold(changed="payload.after", keep=keep, group_key=group_key)
    values: list[dict[str, Any]] = [
        {"payload": {"after": {"a": 1}}},
        {"payload": {"after": ["b"]}},
        {"payload": ["after"]},
        {"payload.after": ["c"], "payload": {"after": ["d"]}},
        {"payload.after": None, "payload": {"after": ["d"]}},
    ]
    records = [Raw(number, 1_000, b"a", json.dumps({"id": "a", **value}).encode()) for number, value in enumerate(values)]
    reading = RangeFaults()
    found = [event[3] for event in reader_of(declared, Limits()).events(records, decode_all(records, Limits()), reading)]

    assert [["a"], ["b"], ["c"]] == [list(names) for names in found if isinstance(names, dict)]
    assert ["no-changed"] * 2 == reasons(reading)


@pytest.mark.parametrize("changed", ["a.", ".a", "a..b"])
def test_path_with_an_empty_step_is_rejected(changed: str) -> None:
    with pytest.raises(ValueError, match="changed holds an empty path"):
        fold(changed=changed)


@pytest.mark.parametrize(
    ("group_key", "event", "expected"),
    [
        pytest.param("id", {"id": 1}, (1,), id="a number"),
        pytest.param("id", {"id": "1"}, ("1",), id="the same as text"),
        pytest.param("id", {"id": True}, (True,), id="a boolean"),
        pytest.param("a.b", {"a": {"b": "x"}}, ("x",), id="a dotted path"),
        pytest.param("a.b.c", {"a": {"b": {"c": 1}}}, (1,), id="a longer path"),
        pytest.param(("t", "id"), {"t": "x", "id": 1}, ("x", 1), id="several fields"),
        pytest.param(("id", "t"), {"t": "x", "id": 1}, (1, "x"), id="in the declared order"),
        pytest.param(("t", "a.b"), {"t": "x", "a": {"b": 1}}, ("x", 1), id="a path among several"),
        pytest.param(("id",), {"id": "x"}, ("x",), id="a list of one field is that field"),
    ],
)
def test_group_is_read_from_the_declared_fields(group_key: Any, event: dict[str, Any], expected: tuple[Any, ...]) -> None:
    reading = read_value(json.dumps({**event, "m": "x"}).encode(), group_key=group_key)

    assert [member_of(expected)] == [event.group for event in reading.events]


def test_field_whose_name_is_the_whole_path_takes_precedence() -> None:
    reading = read_value(json.dumps({"a.b": "exact", "a": {"b": "path"}, "m": "x"}).encode(), group_key="a.b")

    assert [member_of(("exact",))] == [event.group for event in reading.events]


@pytest.mark.parametrize(
    ("group_key", "event"),
    [
        ("a.b", {"a": {}}),
        ("a.b", {"a": "text"}),
        ("a.b", {"a": ["b"]}),
        ("a.b", {"a": None}),
        ("a.b", {"a.b": None, "a": {"b": "a field of that very name precedes the path"}}),
        ("a.b.c", {"a.b": {"c": "a part of the path is no name"}}),
        (("t", "id"), {"t": "x"}),
        (("t", "id"), {"t": "x", "id": None}),
        (("t", "id"), {"t": "x", "id": {}}),
    ],
)
def test_unresolvable_path_yields_no_group(group_key: Any, event: dict[str, Any]) -> None:
    reading = read_value(json.dumps({**event, "m": "x"}).encode(), group_key=group_key)

    assert ["no-group"] == reasons(reading)


@pytest.mark.parametrize(
    ("group_key", "event", "expected"),
    [
        ("id", {}, "'id' is missing or null, not a string, a number or a boolean"),
        ("id", {"id": ["a"]}, "'id' is a JSON list, not a string, a number or a boolean"),
        ("id", {"id": 2**53 + 1}, "'id' is an integer beyond 2^53"),
        ("a.b", {"a": {}}, "'a.b' is missing or null, not a string, a number or a boolean"),
        (("t", "id"), {"t": "x", "id": {}}, "'id' is a JSON dict, not a string, a number or a boolean"),
        (("t", "id"), {"id": "x"}, "'t' is missing or null, not a string, a number or a boolean"),
    ],
)
def test_event_without_its_group_is_reported_with_the_field(group_key: Any, event: dict[str, Any], expected: str) -> None:
    reading = read_value(json.dumps({**event, "m": "x"}).encode(), group_key=group_key)

    assert [("no-group", expected)] == [(rejected.reason, rejected.detail) for rejected in reading.rejected]


def test_record_key_can_be_the_group() -> None:
    reading = read_value(b'{"m":"x"}', key="Zoë".encode(), group_key="@key")

    assert ["s" + "Zoë"] == [event.group.decode() for event in reading.events]
    assert 0 == reading.misrouted


@pytest.mark.parametrize(
    ("key", "reason"),
    [(None, "no-group"), (b"", "no-group"), (b"\xff\xfe", "no-group"), (b"12345678901", "too-large")],
)
def test_unusable_record_key_is_rejected_as_group(key: bytes | None, reason: str) -> None:
    assert [reason] == reasons(read_value(b'{"m":"x"}', key=key, group_key="@key"))


@pytest.mark.parametrize("value", [None, b""])
def test_tombstone_is_skipped_if_the_fold_ignores_tombstones(value: bytes | None) -> None:
    reading = read_value(value, tombstones="ignore")

    assert DecodedRange() == reading


@pytest.mark.parametrize("declared", [{}, {"group_key": "@key"}, {"group_key": lambda event: "g"}, {"format": "cloudevents"}])
def test_tombstone_of_forget_is_skipped_whatever_the_fold_does_with_tombstones(declared: dict[str, Any]) -> None:
    records = [Raw(7, 1_000, b"a", None, (("trace", b"x"), (ERASURE, b"1"))), Raw(8, 1_000, b"a", b"", ((ERASURE, b"1"),))]
    one = fold(**declared)
    reading = reader_of(one, LIMITS).read(records, decode_all(records, LIMITS))

    assert ([], [8]) == (reading.events, [rejected.record.offset for rejected in reading.rejected])


def test_json_null_is_not_ignored_as_a_tombstone() -> None:
    assert ["not-an-object"] == reasons(read_value(b"null", tombstones="ignore"))


def test_events_whose_record_key_is_not_their_group_are_folded_and_counted() -> None:
    value = b'{"id":"a","m":"x"}'
    reading = read([Raw(offset, 0, key, value) for offset, key in enumerate([b"a", b"b", b"a", None, b""])])

    assert 5 == len(reading.events)
    assert (3, True) == (reading.misrouted, reading.misrouted_example in {1, 3, 4})


def test_number_is_routed_by_its_canonical_bytes() -> None:
    assert 0 == read_value(b'{"id":1.0,"m":"x"}', key=b"1").misrouted
    assert 1 == read_value(b'{"id":1.0,"m":"x"}', key=b"1.0").misrouted


def test_rejected_event_is_not_counted_as_misrouted() -> None:
    assert 0 == read_value(b'{"id":"a"}', key=b"other").misrouted


def test_record_without_a_timestamp_has_a_negative_one() -> None:
    assert [-1] == [event.timestamp_ms for event in read([Raw(0, None, b"a", b'{"id":"a","m":"x"}')]).events]


def test_repeated_name_is_still_validated() -> None:
    reader = EventReader(fold(), LIMITS)
    records = [Raw(offset, 0, b"a", value) for offset, value in enumerate([
        b'{"id":"a","m":["ok"]}', b'{"id":"a","m":["ok","123456789"]}', b'{"id":"a","m":["123456789"]}',
    ])]  # fmt: skip
    readings = [reader.read([record], decode_all([record], LIMITS)) for record in records]

    assert [[], ["too-large"], ["too-large"]] == [reasons(reading) for reading in readings]


def test_one_decoding_serves_several_folds() -> None:
    records = [Raw(0, 0, b"a", b'{"id":"a","m":"x","n":["y"]}'), Raw(1, 0, b"a", b"{"), Raw(2, 0, b"a", b'{"id":"a","n":"z"}')]
    decoded = decode_all(records, LIMITS)
    first, second = (EventReader(fold(changed=field), LIMITS).read(records, decoded) for field in ("m", "n"))

    assert ([0], ["not-json", "no-changed"]) == ([event.offset for event in first.events], reasons(first))
    assert ([0, 2], ["not-json"]) == ([event.offset for event in second.events], reasons(second))


@given(st.lists(st.none() | st.binary(max_size=30) | st.builds(lambda value: json.dumps(value).encode(), st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["id", "m", "a"]), inner, max_size=3),
))), st.sampled_from(["id", ("id", "a"), "a.id", "@key"]))  # fmt: skip
def test_every_record_is_folded_or_rejected_independently(values: list[bytes | None], group_key: Any) -> None:
    records = [Raw(offset, offset, b"a", value) for offset, value in enumerate(values)]
    reading = read(records, fold(group_key=group_key))
    seen = [event.offset for event in reading.events], [rejected.record.offset for rejected in reading.rejected]

    assert list(range(len(values))) == sorted(seen[0] + seen[1])
    assert (sorted(seen[0]), sorted(seen[1])) == seen


def test_value_too_deep_to_be_stored_is_rejected_and_not_raised() -> None:
    records = [Raw(7, value=b'{"id": "x", "m": {"a": ' + b"[" * 300 + b"]" * 300 + b"}}")]

    reading = read(records, fold(keep="last"), Limits())

    assert ["no-value"] == reasons(reading)
    assert reading.rejected[0].record is records[0]
