"""Folded records as the read store decodes them: bytes to changes, or a reason for rejection."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streams_app.codec import canonical_bytes, member_of
from streams_app.folding.core.record import RecordShape, SealedGroup, render
from streams_app.read_store.core.merge import Cell, CellChange
from streams_app.read_store.core.record import ExpectedRecords, RejectedRecord, group_column, group_text, parse

NAMES = ExpectedRecords("f", "metrics", ("account_id",), carries_values=False)
VALUES = ExpectedRecords("f", "metrics", ("account_id",), carries_values=True)


def record(metrics: Any = ("likes",), fold: Any = None, group: Any = "a") -> bytes:
    return json.dumps(
        {"account_id": group, "metrics": metrics, "fold": {"name": "f", "version": 7} if fold is None else fold}
    ).encode()


def test_array_of_names_is_an_ordered_change_for_each() -> None:
    expected = [CellChange(Cell("f", "a", "shares"), 7), CellChange(Cell("f", "a", "likes"), 7)]

    assert expected == parse(b"a", record(["shares", "likes"]), NAMES)


def test_object_carries_the_values() -> None:
    expected = [CellChange(Cell("f", "a", "likes"), 7, 3), CellChange(Cell("f", "a", "shares"), 7, None)]

    assert expected == parse(b"a", record({"likes": 3, "shares": None}), VALUES)


def test_record_without_names_changes_nothing() -> None:
    assert [] == parse(b"a", record([]), NAMES)
    assert [] == parse(b"a", record({}), VALUES)


def test_tombstone_changes_nothing() -> None:
    assert [] == parse(b"a", None, NAMES)


@pytest.mark.parametrize(
    ("key", "value", "expected"),
    [
        pytest.param(None, record(), "no key", id="no key"),
        pytest.param(None, None, "no key", id="neither key nor value"),
        pytest.param(b"a", b"", "empty value", id="an empty value"),
        pytest.param(b"a", b"{", "not JSON", id="broken JSON"),
        pytest.param(b"a", b'{"a":"\xff"}', "not JSON", id="invalid UTF-8"),
        pytest.param(b"a", b"[]", "not an object", id="an array"),
        pytest.param(b"a", b"{}", "no field 'fold'", id="an event of another producer"),
        pytest.param(b"a", record(fold="f"), "no field 'fold'", id="a fold that is no object"),
        pytest.param(b"a", record(fold={"name": "g", "version": 7}), "of another fold", id="another fold"),
        pytest.param(b"a", record(fold={"version": 7}), "of another fold", id="a fold without a name"),
        pytest.param(b"a", record(fold={"name": "f"}), "no usable fold.version", id="no version"),
        pytest.param(b"a", record(fold={"name": "f", "version": "7"}), "no usable fold.version", id="a version as text"),
        pytest.param(b"a", record(fold={"name": "f", "version": 7.0}), "no usable fold.version", id="a fraction"),
        pytest.param(b"a", record(fold={"name": "f", "version": True}), "no usable fold.version", id="a boolean"),
        pytest.param(b"a", record(fold={"name": "f", "version": -1}), "no usable fold.version", id="a negative version"),
        pytest.param(b"a", record(fold={"name": "f", "version": 2**63}), "no usable fold.version", id="beyond 63 bits"),
        pytest.param(b"a", record(group=None), "no usable group field (account_id)", id="no group"),
        pytest.param(b"a", record(group=["a"]), "no usable group field (account_id)", id="a group that is no scalar"),
        pytest.param(b"a", record(metrics=None), "no usable field 'metrics'", id="names null"),
        pytest.param(b"a", record(metrics="likes"), "no usable field 'metrics'", id="names a string"),
        pytest.param(b"a", record(metrics=["likes", 1]), "no usable field 'metrics'", id="a number among the names"),
    ],
)
def test_unfolded_record_is_rejected_with_a_description(key: bytes | None, value: bytes | None, expected: str) -> None:
    assert RejectedRecord(expected) == parse(key, value, NAMES)


def test_names_without_values_are_rejected_where_values_are_expected() -> None:
    assert RejectedRecord("names without values; the source is 'carried'") == parse(b"a", record(["likes"]), VALUES)


@pytest.mark.parametrize("version", [0, 4_398_046_512_181, 2**53 - 1, 2**63 - 1])
def test_version_is_parsed_exactly(version: int) -> None:
    assert [CellChange(Cell("f", "a", "likes"), version)] == parse(b"a", record(fold={"name": "f", "version": version}), NAMES)


@pytest.mark.parametrize(
    ("key", "expected"),
    [(b"account_1", "account_1"), ("Zoë".encode(), "Zoë"), (b'["a",1]', '["a",1]'), (b"", ""), (b"a\xffb", "a\\xffb")],
)
def test_group_key_is_text_for_any_bytes(key: bytes, expected: str) -> None:
    assert expected == group_text(key)


@pytest.mark.parametrize(
    ("group", "column"),
    [
        ("account_1", "account_1"), (1, "1"), ("1", '"1"'), (1.5, "1.5"), (True, "true"), ("true", '"true"'), ("null", '"null"'),
        ('"1"', '"\\"1\\""'), ('"open', '"open'), ("", ""), ("[1]", '"[1]"'), (" 1", '" 1"'),
    ],
)  # fmt: skip
def test_groups_with_the_same_text_have_different_keys(group: Any, column: str) -> None:
    (change,) = parse(b"1", record(group=group), NAMES)  # type: ignore[misc]  # nothing of it is rejected

    assert column == change.cell.group_key


scalars = st.text(max_size=5) | st.integers(-20, 20) | st.booleans() | st.floats(-1e6, 1e6)
json_texts = st.builds(json.dumps, scalars | st.lists(scalars, max_size=2))


@given(scalars | json_texts, scalars | json_texts)
def test_groups_never_share_a_read_store_key(left: Any, right: Any) -> None:
    members = member_of((left,)), member_of((right,))

    assert (members[0] == members[1]) == (group_column(members[0]) == group_column(members[1]))


@given(st.none() | st.binary(max_size=20), st.none() | st.binary(max_size=40), st.booleans())
def test_reader_survives_any_bytes(key: bytes | None, value: bytes | None, carries: bool) -> None:
    assert isinstance(parse(key, value, ExpectedRecords("f", "metrics", ("account_id",), carries)), list | RejectedRecord)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
)


@given(json_values, json_values, st.booleans())
def test_reader_survives_any_json(metrics: Any, fold: Any, carries: bool) -> None:
    for part in (fold, {"name": "f", "version": fold}, {"name": "f", "version": 1}):
        value = json.dumps({"account_id": metrics, "metrics": metrics, "fold": part}).encode()

        assert isinstance(parse(b"a", value, ExpectedRecords("f", "metrics", ("account_id",), carries)), list | RejectedRecord)


@given(st.dictionaries(st.text(max_size=6), st.integers(-5, 5), max_size=6), st.sampled_from(["names", "last"]))
def test_every_name_of_a_rendered_record_is_a_change(names: dict[str, int], keep: str) -> None:
    member = member_of(("Zoë", 1))
    sealed = SealedGroup(member, 3, 9, 5, 1, 2, "quiet", 3, 4, {name: b"%d" % value for name, value in names.items()})
    (rendered,) = render(sealed, RecordShape("f", ("a", "b"), "metrics", keep), "t", 0)
    changes = parse(rendered.key, rendered.value, ExpectedRecords("f", "metrics", ("a", "b"), keep == "last"))
    group = canonical_bytes(member).decode()

    assert [
        CellChange(Cell("f", group, name), sealed.version, names[name] if keep == "last" else None) for name in sorted(names)
    ] == changes


def test_carried_value_too_deep_to_be_stored_is_rejected_and_not_raised() -> None:
    deep = b"[" * 300 + b"]" * 300
    value = b'{"g": "x", "c": {"a": ' + deep + b'}, "fold": {"name": "f", "version": 1}}'

    assert RejectedRecord("a value is nested too deeply") == parse(
        b"x", value, ExpectedRecords("f", "c", ("g",), carries_values=True)
    )
