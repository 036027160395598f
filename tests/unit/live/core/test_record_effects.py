"""What a record means to a live view, and which records it cannot show."""

from __future__ import annotations

import json
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streams_app.errors import BadEventError
from streams_app.live.core.model import contents_by_page
from streams_app.live.core.operations import MAX_EVENTS, MAX_PAGES, view_batches
from streams_app.live.core.record_effects import Put, Removal, ViewRule, definition_of
from streams_app.live.core.state import Item
from streams_app.settings import LiveView
from streams_app.testing.views import SentEvent
from tests.helpers.schemas.schemas import avro, schema_cache

NOW_MS = 1_700_000_000_000


def view(**more: Any) -> LiveView:
    given: dict[str, Any] = {
        "name": "v",
        "kind": "count",
        "source": "s",
        "page": "p.id",
        "item": "i",
        "expiry": "1h",
        "public": True,
    }
    return LiveView(**given | more)


def sent(value: Any, *, offset: int = 7, at_ms: int = NOW_MS - 5, **headers: str) -> SentEvent:
    raw = value if value is None or isinstance(value, bytes) else orjson.dumps(value)
    return SentEvent(offset, at_ms, raw, headers=[(name, text.encode()) for name, text in headers.items()])


def decision_of(declared: LiveView, value: Any, **more: Any) -> Put | Removal | None:
    return ViewRule(declared, 1_000).effect_of(3, sent(value, **more), NOW_MS)


@pytest.mark.parametrize(
    ("page", "name"), [("7", "7"), (7, "7"), (7.0, "7"), (7.5, "7.5"), (True, "true"), ("a b", "a b"), ("ü", "ü")]
)
def test_page_is_any_scalar_and_numbers_become_text(page: Any, name: str) -> None:
    assert Put(name, Item("x", NOW_MS - 5)) == decision_of(view(), {"p": {"id": page}, "i": "x"})


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (b"{", "not-json"),
        (b"[1]", "not-an-object"),
        (b'{"p": {"id": 1e999}, "i": 1}', "not-json"),
        ({"i": "x"}, "no-page"),
        ({"p": 1, "i": "x"}, "no-page"),
        ({"p": {"id": None}, "i": "x"}, "no-page"),
        ({"p": {"id": ""}, "i": "x"}, "no-page"),
        ({"p": {"id": {}}, "i": "x"}, "no-page"),
        ({"p": {"id": [1]}, "i": "x"}, "no-page"),
        ({"p": {"id": "ü" * 257}, "i": "x"}, "no-page"),
        ({"p": {"id": 1}}, "no-item"),
        ({"p": {"id": 1}, "i": None}, "no-item"),
        ({"p": {"id": 1}, "i": {"a": 1}}, "no-item"),
        ({"p": {"id": 1}, "i": "x" * 513}, "no-item"),
        ({"p": {"id": 1}, "i": "x", "more": "x" * 1_000}, "too-large"),
    ],
)
def test_unusable_record_has_its_reason(value: Any, reason: str) -> None:
    with pytest.raises(BadEventError) as caught:
        decision_of(view(), value)

    assert reason == caught.value.reason


def test_oversized_payload_is_too_large_and_suggests_a_fix() -> None:
    listed = ViewRule(view(kind="list"), 10_000)
    with pytest.raises(BadEventError, match="set payload to the fields that are shown"):
        listed.effect_of(0, sent({"p": {"id": 1}, "i": "x", "text": "x" * 1_000}), NOW_MS)


@pytest.mark.parametrize("value", [None, b""])
def test_tombstone_is_ignored(value: bytes | None) -> None:
    assert decision_of(view(), value) is None


@pytest.mark.parametrize(
    ("only", "remove", "headers", "value", "expected"),
    [
        ({"@type": "made"}, {}, {"ce_type": "made"}, b'{"p":{"id":1},"i":1}', "put"),
        ({"@type": "made"}, {}, {"ce_type": "other"}, b"not even JSON", "other"),
        ({"@type": "made"}, {}, {}, b"not even JSON", "other"),
        ({"@type": ["made", "more"]}, {"@type": "gone"}, {"ce_type": "gone"}, b'{"p":{"id":1},"i":1}', "removed"),
        ({"k": 1}, {}, {}, b'{"p":{"id":1},"i":1,"k":1}', "put"),
        ({"k": 1}, {}, {}, b'{"p":{"id":1},"i":1,"k":1.0}', "put"),
        ({"k": 1}, {}, {}, b'{"p":{"id":1},"i":1,"k":true}', "other"),
        ({"k": 1}, {}, {}, b'{"p":{"id":1},"i":1,"k":"1"}', "other"),
        ({"k": 1}, {}, {}, b'{"p":{"id":1},"i":1,"k":[1]}', "other"),
        ({"k": 1}, {}, {}, b"{}", "other"),
        ({"k": 1, "a.b": [True, "x"]}, {}, {}, b'{"p":{"id":1},"i":1,"k":1,"a":{"b":true}}', "put"),
        ({"k": 1, "a.b": [True, "x"]}, {}, {}, b'{"p":{"id":1},"i":1,"k":1,"a":{"b":false}}', "other"),
        ({}, {"gone": True}, {}, b'{"p":{"id":1},"i":1,"gone":true}', "removed"),
        ({}, {"gone": True}, {}, b'{"p":{"id":1},"i":1}', "put"),
    ],
)
def test_conditions_select_records(only: Any, remove: Any, headers: dict[str, str], value: bytes, expected: str) -> None:
    found = decision_of(view(only=only, remove=remove), value, **headers)

    assert expected == {Put: "put", Removal: "removed", type(None): "other"}[type(found)]


@pytest.mark.parametrize(("at_ms", "time_ms"), [(NOW_MS + 1, NOW_MS), (NOW_MS - 1, NOW_MS - 1), (-1, NOW_MS), (0, 0)])
def test_time_is_that_of_the_record_and_never_in_the_future(at_ms: int, time_ms: int) -> None:
    put = decision_of(view(), {"p": {"id": 1}, "i": 1}, at_ms=at_ms)

    assert isinstance(put, Put)
    assert time_ms == put.item.time_ms


@pytest.mark.parametrize(("event", "item"), [({"fold": {"id": "f:t:0:1-2"}}, "f:t:0:1-2"), ({"fold": {}}, "3-7"), ({}, "3-7")])
def test_item_defaults_to_the_fold_id_or_the_record_position(event: dict[str, Any], item: str) -> None:
    put = decision_of(view(item=""), {"p": {"id": 1}, **event})

    assert isinstance(put, Put)
    assert item == put.item.item


def test_payload_has_the_named_fields_or_the_whole_event_on_one_line() -> None:
    value = b'{"p": {"id": 1},\n "i": 1, "title": "a"}'
    chosen = decision_of(view(kind="list", payload=["title", "a.b"]), value)
    whole = decision_of(view(kind="list"), value)

    assert isinstance(chosen, Put)
    assert isinstance(whole, Put)
    assert (b'{"title":"a","a.b":null}', b'{"p":{"id":1},"i":1,"title":"a"}') == (chosen.item.payload, whole.item.payload)


def test_definition_covers_the_state_but_not_its_presentation() -> None:
    same = [view(kind="list"), view(kind="list", show=3, dead_letters="d"), view(kind="list", max_items=1_000)]
    others = [
        view(),
        *(view(kind="list", **one) for one in ({"expiry": "2h"}, {"item": ""}, {"only": {"a": 1}}, {"payload": ["a"]})),
    ]

    assert 1 == len(set(map(definition_of, same)))
    assert 6 == len(set(map(definition_of, [same[0], *others])))


# Parts


EVENTS = st.lists(
    st.builds(
        lambda page, item, age_ms, gone: ({"p": {"id": page}, "i": item, "gone": gone, "t": age_ms}, NOW_MS - age_ms),
        st.sampled_from("ab"), st.sampled_from("xyz"), st.integers(0, 20), st.booleans(),
    ),
    max_size=30,
)  # fmt: skip


@given(EVENTS)
def test_batch_has_the_same_effect_as_its_records_one_by_one(events: list[tuple[dict[str, Any], int]]) -> None:
    rule = ViewRule(view(kind="list", remove={"gone": True}), 1_000)
    records = [sent(event, offset=offset, at_ms=at_ms) for offset, (event, at_ms) in enumerate(events)]
    (part,) = view_batches(rule, 0, records, len(records), NOW_MS)
    combined: list[Put | Removal] = []
    for page, removed, puts in part.changes:
        combined += [Removal(page, item) for item in removed]
        combined += [Put(page, item) for item in puts]

    decisions = [rule.effect_of(0, record, NOW_MS) for record in records]
    assert contents_by_page(decisions, 0, 1, 100) == contents_by_page(combined, 0, 1, 100)


def test_range_is_split_before_a_batch_has_too_many_events_or_pages() -> None:
    rule = ViewRule(view(item=""), 1_000)
    many = [sent({"p": {"id": 1}}, offset=2 * n) for n in range(MAX_EVENTS + 1)]
    wide = [sent({"p": {"id": n}}, offset=n) for n in range(MAX_PAGES + 1)]

    assert [2 * MAX_EVENTS - 2, 2 * MAX_EVENTS + 9] == [
        part.to for part in view_batches(rule, 0, many, 2 * MAX_EVENTS + 10, NOW_MS)
    ]
    assert [MAX_PAGES - 1, MAX_PAGES] == [part.to for part in view_batches(rule, 0, wide, MAX_PAGES + 1, NOW_MS)]


def test_range_without_records_is_a_batch_that_moves_the_fence() -> None:
    (part,) = view_batches(ViewRule(view(), 1_000), 0, [], 12, NOW_MS)

    assert (11, []) == (part.to, part.changes)


def test_rejected_records_are_kept_and_counted() -> None:
    records = [sent(b"{", offset=0), sent({"p": {"id": 1}, "i": 1}, offset=1)]
    (part,) = view_batches(ViewRule(view(), 1_000), 0, records, 2, NOW_MS)

    assert ["not-json"] == [one.reason for one in part.rejected]
    assert {"refused": 1, "put": 1} == dict(part.counts)


@pytest.mark.parametrize(
    ("raw", "name"),
    [
        (b"1e22", "10000000000000000000000"),
        (b"-12345678901234567890", "-12345678901234567890"),
        (b"12345678901234567.89", "12345678901234567.89"),
        (b"18446744073709551615", "18446744073709551615"),
        (b"-0.0", "0"),
    ],
)
def test_page_may_be_a_number_beyond_64_bits(raw: bytes, name: str) -> None:
    put = decision_of(view(), b'{"p": {"id": %b}, "i": "x"}' % raw)

    assert Put(name, Item("x", NOW_MS - 5)) == put


def test_header_without_a_value_is_no_type() -> None:
    record = SentEvent(7, NOW_MS - 5, b'{"p": {"id": 1}, "i": "x"}', headers=[("ce_type", None)])

    assert Put("1", Item("x", NOW_MS - 5)) == ViewRule(view(), 1_000).effect_of(3, record, NOW_MS)
    assert ViewRule(view(only={"@type": "made"}), 1_000).effect_of(3, record, NOW_MS) is None


@pytest.mark.parametrize("payload", [[], ["deep"]])
def test_too_deeply_nested_payload_is_rejected(payload: list[str]) -> None:
    raw = b'{"p": {"id": 1}, "i": "x", "deep": ' + b"[" * 300 + b"]" * 300 + b"}"

    with pytest.raises(BadEventError, match="cannot be written as JSON") as caught:
        decision_of(view(kind="list", payload=payload), raw)
    assert "too-large" == caught.value.reason


def test_fold_id_too_long_for_an_item_is_rejected() -> None:
    with pytest.raises(BadEventError, match=r"the field of fold\.id has 600 bytes") as caught:
        decision_of(view(item=""), {"p": {"id": 1}, "fold": {"id": "x" * 600}})
    assert "no-item" == caught.value.reason


json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**30), 10**30) | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from(["id", "x"]), inner, max_size=2),
    max_leaves=4,
)


@given(p=json_values, i=json_values, header=st.none() | st.binary(max_size=4), kind=st.sampled_from(["count", "list"]))
def test_any_record_is_shown_or_rejected(p: Any, i: Any, header: bytes | None, kind: str) -> None:
    record = SentEvent(7, NOW_MS, json.dumps({"p": p, "i": i}).encode(), headers=[("ce_type", header)])
    try:
        found = ViewRule(view(kind=kind), 1_000).effect_of(3, record, NOW_MS)
    except BadEventError:
        return
    assert isinstance(found, Put)


def change(op: str, **sides: Any) -> bytes:
    return orjson.dumps({"op": op, "source": {"table": "news"}, "before": None, "after": None} | sides)


def test_deleted_row_is_removed_and_a_heartbeat_is_ignored() -> None:
    declared = view(format="debezium", page="project", item="id", remove={"@op": "d"})
    row = {"project": 7, "id": 1}

    assert Put("7", Item("1", NOW_MS - 5)) == decision_of(declared, change("c", after=row))
    assert Removal("7", "1") == decision_of(declared, change("d", before=row))
    assert decision_of(declared, b'{"ts_ms": 1}') is None


def test_cloud_event_has_its_type_in_the_value_and_its_payload_in_data() -> None:
    declared = view(kind="list", format="cloudevents", page="p", item="@id", only={"@type": "made"})
    event = {"specversion": "1.0", "type": "made", "id": "e1", "data": {"p": 7, "title": "Shot"}}

    assert Put("7", Item("e1", NOW_MS - 5, b'{"p":7,"title":"Shot"}')) == decision_of(declared, event, ce_type="other")
    assert decision_of(declared, event | {"type": "gone"}, ce_type="made") is None


def test_framed_value_is_decoded_by_its_schema() -> None:
    declared = view(kind="list", format="avro", page="id", item="id", payload=["m.x"])
    record = SentEvent(7, NOW_MS, avro(1, {"id": "a", "m": {"x": 3}}))

    assert Put("a", Item("a", NOW_MS, b'{"m.x":3}')) == ViewRule(declared, 1_000, schema_cache()).effect_of(3, record, NOW_MS)


def test_format_is_part_of_the_definition_unless_it_is_plain_json() -> None:
    assert "format" not in definition_of(view())
    assert definition_of(view(format="debezium")) != definition_of(view(format="cloudevents"))
