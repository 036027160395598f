"""The frame of a value names the schema by which it was written."""

from __future__ import annotations

import pytest

from streams_app.errors import BadEventError
from streams_app.schemas.framing import framed, is_framed, message_indexes, schema_ids, unframed


def test_frame_holds_the_id_in_four_bytes_after_a_zero_byte() -> None:
    value = framed(258, b"body")

    assert b"\0\0\0\1\2body" == value
    assert (258, b"body") == unframed(value)


@pytest.mark.parametrize("value", [b"", b"\0", b"\0\0\0\0", b'{"a":1}', b"\1\0\0\0\1body"])
def test_value_without_a_frame_is_rejected(value: bytes) -> None:
    with pytest.raises(BadEventError, match="wrong-format: the value does not begin with a zero byte"):
        unframed(value)

    assert not is_framed(value)


def test_impossible_schema_id_is_a_dead_letter_and_is_not_fetched() -> None:
    value = b"\0\x80\0\0\0body"
    with pytest.raises(BadEventError, match="unknown-schema: no schema can have the id 2147483648"):
        unframed(value)

    assert set() == schema_ids([value])


def test_schema_ids_come_only_from_framed_values() -> None:
    assert {1, 2} == schema_ids([None, b"", b"{}", framed(1, b""), framed(2, b"x"), framed(1, b"y")])


@pytest.mark.parametrize(
    ("body", "indexes"),
    [(b"\0rest", [0]), (b"\2\2rest", [1]), (b"\4\2\0rest", [1, 0]), (b"\2\xac\x02rest", [150])],
    ids=["first message", "second message", "nested message", "index of two bytes"],
)
def test_indexes_identify_a_message(body: bytes, indexes: list[int]) -> None:
    found, rest = message_indexes(body)

    assert (indexes, b"rest") == (list(found), rest)


@pytest.mark.parametrize("body", [b"", b"\2", b"\2\xff", b"\x80" * 9, b"\1\0", b"\xfe\x03", b"\2\xff\xff\xff\xff\xff\x01"])
def test_invalid_indexes_are_an_error(body: bytes) -> None:
    with pytest.raises(ValueError, match="message indexes"):
        message_indexes(body)
