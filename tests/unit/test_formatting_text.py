"""External text on one line: what is escaped, what is quoted, what is truncated."""

from __future__ import annotations

import json

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

from streams_app.codec import member_of
from streams_app.formatting import cut, escaped, group_value, json_line, shown, shown_group

NASTY = ["[/x]", "[red]x[/red]", ":smile:", "a\nb", "a\r", "\x1b[31mred", "\x9b2J", "\u202eabc", "a\u2028b", "\x7f", "漢字" * 9]
scalars = st.one_of(st.text(), st.sampled_from(NASTY), st.integers(-(2**53), 2**53), st.booleans(), st.floats(-(2**53), 2**53))
groups = st.one_of(scalars.map(lambda one: (one,)), st.lists(scalars, min_size=2, max_size=3).map(tuple))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("account_1", "account_1"),
        ("é t", "é t"),
        ("[/x]", "[/x]"),
        ("C:\\new", "C:\\new"),
        ("", '""'),
        (" a", '" a"'),
        ("a ", '"a "'),
        ("a  b", '"a  b"'),
        ("a\nb", '"a\\nb"'),
        ('"a"', '"\\"a\\""'),
        ("\\\x1b", '"\\\\\\u001b"'),
        ("\u202ex", '"\\u202ex"'),
        ("\U000e0041", '"\\udb40\\udc41"'),
    ],
)
def test_ambiguous_name_is_quoted(text: str, expected: str) -> None:
    assert expected == shown(text)


@pytest.mark.parametrize(
    ("group", "expected"),
    [
        (("1",), '"1"'), ((1,), "1"), (("true",), '"true"'), ((True,), "true"), (("null",), "null"), (("1.0",), '"1.0"'),
        (('["a",1]',), '"[\\"a\\",1]"'), (("a", 1), '["a",1]'), (("a\nb", "\u202e"), '["a\\nb","\\u202e"]'),
    ],
)  # fmt: skip
def test_number_and_text_of_the_same_digits_look_different(group: tuple[object, ...], expected: str) -> None:
    assert expected == shown_group(member_of(group))


@given(groups, groups)
def test_two_groups_never_look_the_same(one: tuple[object, ...], other: tuple[object, ...]) -> None:
    members = member_of(one), member_of(other)

    assert (members[0] == members[1]) is (shown_group(members[0]) == shown_group(members[1]))


@given(groups)
def test_every_group_is_one_printable_line(group: tuple[object, ...]) -> None:
    assert shown_group(member_of(group)).isprintable()


@given(st.binary())
def test_invalid_utf8_is_one_printable_line(junk: bytes) -> None:
    assert shown_group(b"s" + junk).isprintable()
    assert json_line(group_value(b"s" + junk)).isprintable()


@given(groups)
def test_json_output_has_the_group_with_its_type(group: tuple[object, ...]) -> None:
    member = member_of(group)
    value = json.loads(json_line({"key": group_value(member)}))["key"]

    assert member == member_of(tuple(value) if isinstance(value, list) else (value,))


@given(st.recursive(scalars, lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner)))
def test_json_stays_json_when_escaped(value: object) -> None:
    text = orjson.dumps(value).decode()

    assert escaped(text).isprintable()
    assert orjson.loads(text) == json.loads(escaped(text))


@pytest.mark.parametrize(
    ("text", "width", "expected"),
    [
        ("account_1234567890", 18, "account_1234567890"), ("account_1234567890", 11, "accou…67890"), ("account_1", 2, "a…"),
        ("account_1", 1, "…"), ("account_1", 0, ""), ("漢字漢字漢字", 7, "漢…字"),
    ],
)  # fmt: skip
def test_long_key_is_shortened_in_its_middle(text: str, width: int, expected: str) -> None:
    assert expected == cut(text, width)


@given(st.text(), st.integers(0, 40))
def test_shortened_text_never_exceeds_its_width(text: str, width: int) -> None:
    assert cell_len(cut(shown(text), width)) <= width
