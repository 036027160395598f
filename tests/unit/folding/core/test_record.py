"""The folded record: its documented value, its id and version, and how one that is too large is split."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import msgpack
import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from streams_app.codec import member_of
from streams_app.folding.core.names import shared_names
from streams_app.folding.core.record import MAX_RECORD_BYTES, FoldedRecord, RecordShape, Renderer, SealedGroup, fold_id, render

SHAPE = RecordShape("account-metrics", ("account_id",), "metrics", "names")
LAST = replace(SHAPE, keep="last")
SEALED = SealedGroup(
    member=b"saccount_1",
    first_offset=1041,
    last_offset=1077,
    events=4,
    first_event_ms=1_700_000_000_000,
    last_event_ms=1_700_000_009_000,
    reason="quiet",
    due_ms=1_700_000_900_000,
    partitions=4,
    names={"likes": b"", "shares": b"", "comments": b"", "impressions": b""},
)
ID = "account-metrics:post-metric-updated:3:1041-1077"


def of_renderer(renderer: Renderer, entries: list[SealedGroup]) -> list[list[FoldedRecord]]:
    """Return the records of each entry."""
    found: list[list[FoldedRecord]] = [[] for _ in entries]
    for position, *fields in renderer.records(entries):
        found[position].append(FoldedRecord(*fields))
    return found


def rendered(sealed: SealedGroup, shape: RecordShape = SHAPE) -> list[FoldedRecord]:
    return render(sealed, shape, "post-metric-updated", 3)


def only(sealed: SealedGroup, shape: RecordShape = SHAPE) -> dict[str, Any]:
    (record,) = rendered(sealed, shape)
    value: dict[str, Any] = orjson.loads(record.value)
    return value


def test_value_has_the_documented_layout() -> None:
    (record,) = rendered(SEALED)

    assert (
        b'{"account_id":"account_1","metrics":["comments","impressions","likes","shares"],'
        b'"fold":{"id":"account-metrics:post-metric-updated:3:1041-1077","name":"account-metrics","reason":"quiet","events":4,'
        b'"first_event_ms":1700000000000,"last_event_ms":1700000009000,"version":4398046512181}}'
    ) == record.value


def test_time_beyond_the_precision_of_lua_is_still_an_integer() -> None:
    packed = msgpack.packb([*SEALED[:4], 0.0, 2.0**63, "quiet", *SEALED[7:9], {"likes": b""}])
    (record,) = of_renderer(Renderer(SHAPE, "events", 3), [SealedGroup.unpack(packed)])[0]

    assert b'"first_event_ms":0,"last_event_ms":9223372036854775808,' in record.value


def test_fold_id_is_stored_beside_the_value() -> None:
    (record,) = rendered(SEALED)

    assert ID.encode() == record.fold_id


def test_fold_id_depends_on_the_source_only() -> None:
    assert "f:topic:7:0-0" == fold_id("f", "topic", 7, 0, 0)


@pytest.mark.parametrize(
    ("group", "expected"),
    [
        (("account_1",), b"account_1"),
        (("1",), b"1"),
        ((1,), b"1"),
        ((True,), b"true"),
        (("{}\n\x00",), b"{}\n\x00"),
        (("Zoë",), "Zoë".encode()),
        (("a", 1), b'["a",1]'),
    ],
)
def test_record_key_is_the_group_key_without_its_type_prefix(group: tuple[Any, ...], expected: bytes) -> None:
    fields = ("a", "b")[: len(group)]
    (record,) = rendered(SEALED._replace(member=member_of(group)), replace(SHAPE, group_fields=fields))

    assert expected == record.key


@pytest.mark.parametrize(
    ("group", "fields", "expected"),
    [
        (("account_1",), ("account_id",), {"account_id": "account_1"}),
        (("1",), ("account_id",), {"account_id": "1"}),
        ((1,), ("account_id",), {"account_id": 1}),
        ((True,), ("account_id",), {"account_id": True}),
        (("a", 1), ("tenant", "account.id"), {"tenant": "a", "account.id": 1}),
        (("k",), ("key",), {"key": "k"}),
    ],
)
def test_group_fields_are_at_the_top_level_under_their_source_names(
    group: tuple[Any, ...], fields: tuple[str, ...], expected: dict[str, Any]
) -> None:
    value = only(SEALED._replace(member=member_of(group)), replace(SHAPE, group_fields=fields))

    assert [*expected, "metrics", "fold"] == list(value)
    assert json.dumps(expected) == json.dumps({field: value[field] for field in fields})


@given(st.sets(st.text(max_size=8), max_size=20))
def test_names_are_sorted(names: set[str]) -> None:
    assert sorted(names) == only(SEALED._replace(names=dict.fromkeys(names, b"")))["metrics"]


def test_changed_field_keeps_its_source_name() -> None:
    assert ["likes"] == only(SEALED._replace(names={"likes": b""}), replace(SHAPE, changed="what"))["what"]


def test_keep_last_carries_the_last_value_of_each_name_sorted() -> None:
    names = {"b": b'{"x":[1,null]}', "a": b"7", "d": b"null", "c": b'"text"'}
    metrics = only(SEALED._replace(names=names), LAST)["metrics"]

    assert [("a", 7), ("b", {"x": [1, None]}), ("c", "text"), ("d", None)] == list(metrics.items())


def test_keep_last_renders_null_for_a_name_without_a_value() -> None:
    assert {"likes": None} == only(SEALED._replace(names={"likes": b""}), LAST)["metrics"]


@pytest.mark.parametrize("reason", ["quiet", "max_hold", "max_events", "max_changed", "flush"])
def test_reason_is_copied_into_the_record(reason: str) -> None:
    assert reason == only(SEALED._replace(reason=reason))["fold"]["reason"]


def test_group_without_names_yields_a_record_without_names() -> None:
    assert [] == only(SEALED._replace(names={}))["metrics"]
    assert {} == only(SEALED._replace(names={}), LAST)["metrics"]


@pytest.mark.parametrize("partitions", [1, 4, 8_000, 8_191])
def test_version_is_exact_as_a_double(partitions: int) -> None:
    version = SEALED._replace(partitions=partitions, last_offset=2**40 - 1).version

    assert version < 2**53
    assert partitions * 2**40 + 2**40 - 1 == version


@given(st.tuples(st.integers(1, 8_191), st.integers(0, 2**40 - 1)), st.tuples(st.integers(1, 8_191), st.integers(0, 2**40 - 1)))
def test_version_grows_with_the_newest_offset_and_more_with_the_partition_count(
    left: tuple[int, int], right: tuple[int, int]
) -> None:
    versions = [SEALED._replace(partitions=count, last_offset=offset).version for count, offset in (left, right)]

    assert (left < right) == (versions[0] < versions[1])
    assert (left == right) == (versions[0] == versions[1])


@pytest.mark.parametrize("shape", [SHAPE, LAST])
def test_record_at_the_limit_is_whole_and_one_more_byte_splits_it(shape: RecordShape) -> None:
    names = {"a": b"1", "b": b"2"}
    (small,) = rendered(SEALED._replace(names=names), shape)
    room = MAX_RECORD_BYTES - len(small.value)
    whole = rendered(SEALED._replace(names={"a": b"1", "b" * (room + 1): b"2"}), shape)
    split = rendered(SEALED._replace(names={"a": b"1", "b" * (room + 2): b"2"}), shape)

    assert [MAX_RECORD_BYTES] == [len(record.value) for record in whole]
    assert [ID] == [record.fold_id.decode() for record in whole]
    assert [f"{ID}#1", f"{ID}#2"] == [record.fold_id.decode() for record in split]


def test_single_name_beyond_the_limit_stays_one_record() -> None:
    assert [ID] == [record.fold_id.decode() for record in rendered(SEALED._replace(names={"a" * (MAX_RECORD_BYTES + 1): b""}))]


sizes = st.lists(st.integers(1, 400_000), min_size=2, max_size=12)


@given(sizes, st.sampled_from(["names", "last"]))
@settings(max_examples=25, deadline=None)
def test_split_record_keeps_each_name_once_and_stays_below_the_limit(lengths: list[int], keep: str) -> None:
    values = {f"name-{position:02}": orjson.dumps("ä" * (length // 2)) for position, length in enumerate(lengths)}
    names = values if keep == "last" else {name + value.decode(): b"" for name, value in values.items()}
    records = rendered(SEALED._replace(names=names), replace(SHAPE, keep=keep))
    decoded = [orjson.loads(record.value) for record in records]
    found = [item for value in decoded for item in (value["metrics"].items() if keep == "last" else value["metrics"])]
    expected = [(name, orjson.loads(value)) for name, value in names.items()] if keep == "last" else sorted(names)
    ids = [ID] if len(records) == 1 else [f"{ID}#{number}" for number in range(1, len(records) + 1)]

    assert expected == found
    assert ids == [record.fold_id.decode() for record in records]
    assert ids == [value["fold"]["id"] for value in decoded]
    assert {(b"account_1", SEALED.version)} == {
        (record.key, value["fold"]["version"]) for record, value in zip(records, decoded, strict=True)
    }
    assert all(len(record.value) <= MAX_RECORD_BYTES for record in records)


def test_rendering_is_independent_of_name_order() -> None:
    assert rendered(SEALED) == rendered(SEALED._replace(names=dict(reversed(SEALED.names.items()))))


def test_sealed_group_is_unpacked_from_script_output() -> None:
    names = {name.encode(): b"" for name in SEALED.names}
    packed = msgpack.packb([
        SEALED.member, 1041, 1077, 4, 1_700_000_000_000, 1_700_000_009_000, b"quiet", 1_700_000_900_000, 4, names,
    ], use_bin_type=False)  # fmt: skip

    assert SEALED == SealedGroup.unpack(packed)


@pytest.mark.parametrize("names", [{}, SEALED.names, {"likes": b"12", "shares": b""}])
def test_sealed_names_are_a_map_or_consecutive_pairs(names: dict[str, bytes]) -> None:
    pairs = [part for item in names.items() for part in item]

    assert [SEALED._replace(names=names)] * 2 == [
        SealedGroup.unpack(msgpack.packb([*SEALED[:9], packed_names], use_bin_type=False)) for packed_names in (names, pairs)
    ]


def test_sealed_group_without_names_is_unpacked_from_an_empty_lua_table() -> None:
    packed = msgpack.packb([b"sa", 1.0, 2.0, 2, 3, 4, b"flush", 5, 1, {}], use_bin_type=False)

    assert SealedGroup(b"sa", 1, 2, 2, 3, 4, "flush", 5, 1, {}) == SealedGroup.unpack(packed)


texts = st.text(st.characters(codec="utf-8"), max_size=5) | st.sampled_from(["%", "%b", '"', "\\", "{", "a", "b"])


@given(
    texts,
    st.lists(st.one_of(texts, st.integers(-5, 5), st.booleans()), min_size=1, max_size=2),
    st.lists(st.dictionaries(texts, st.just(b"1"), max_size=40), min_size=1, max_size=3),
    st.sampled_from(["names", "last"]),
)
def test_renderer_and_render_write_the_same_bytes(text: str, fields: list[Any], sets: list[dict[str, bytes]], keep: str) -> None:
    shape = RecordShape(f"f-{text}", tuple(f"{text}{number}" for number in range(len(fields))), f"m{text}", keep)
    names_of_entries = [shared_names(names) if keep == "names" else names for names in sets]
    entries = [SEALED._replace(member=member_of(tuple(fields)), names=names) for names in names_of_entries]

    assert [render(sealed, shape, "t", 3) for sealed in entries] == of_renderer(Renderer(shape, "t", 3), entries)


def test_renderer_splits_oversized_records() -> None:
    sealed = SEALED._replace(names=shared_names([f"{number}{'n' * 40_000}" for number in range(30)]))
    entries = [sealed, SEALED]

    assert [render(entry, SHAPE, "t", 3) for entry in entries] == of_renderer(Renderer(SHAPE, "t", 3), entries)
