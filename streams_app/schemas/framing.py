"""Reads and writes the frame of a value, which contains the id of its schema (pure).

Source: Confluent's documentation, "Formats, Serializers, and Deserializers", section "Wire format".
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from streams_app.errors import BadEventError

MAGIC: Final = b"\0"
HEAD_BYTES: Final = 5
"""Length of a frame, in bytes: the zero byte and the four bytes of the id."""

MAX_ID: Final = 2**31 - 1
"""Largest id: registries use signed 32-bit integers."""

MAX_INDEXES: Final = 32
"""Maximum number of message indexes: the depth at which a Protobuf message type may be nested in others."""


def is_framed(value: bytes | None) -> bool:
    """Return whether a value is at least as long as a frame and begins with its zero byte; JSON never begins with a zero byte."""
    return value is not None and len(value) >= HEAD_BYTES and value[:1] == MAGIC


def schema_id(value: bytes) -> int:
    """Return the schema id in the frame of a value, for which :func:`is_framed` must be True."""
    return int.from_bytes(value[1:HEAD_BYTES], "big")


def unframed(value: bytes) -> tuple[int, bytes]:
    """Split a framed value into schema id and body.

    Raises:
        BadEventError: The reason is ``wrong-format`` if the value has no frame, or ``unknown-schema`` if the id is out of range.
    """
    if not is_framed(value):
        raise BadEventError("wrong-format", "the value does not begin with a zero byte and the four bytes of a schema id")
    if (number := schema_id(value)) > MAX_ID:
        raise BadEventError("unknown-schema", f"no schema can have the id {number}")
    return number, value[HEAD_BYTES:]


def framed(number: int, body: bytes) -> bytes:
    """Return a frame with the schema id ``number``, followed by a body."""
    return MAGIC + number.to_bytes(4, "big") + body


def schema_ids(values: Iterable[bytes | None]) -> set[int]:
    """Return the schema ids of all framed values. Ids that are out of range are left out."""
    return {number for value in values if value is not None and is_framed(value) and (number := schema_id(value)) <= MAX_ID}


def message_indexes(body: bytes) -> tuple[Sequence[int], bytes]:
    """Split the body of a Protobuf value into the message indexes and the encoded message.

    The indexes identify the type of the message in its schema: the first index selects a type at the top level of the schema, each
    further index selects a type nested in the previous one.

    Raises:
        ValueError: The body ends within the indexes, or the number of indexes is invalid.
    """
    count, at = zigzag(body, 0, INDEX_BYTES, BROKEN)
    if count == 0:
        return (0,), body[at:]
    if not 0 < count <= MAX_INDEXES:
        raise ValueError(f"{count} message indexes")
    indexes = []
    for _ in range(count):
        index, at = zigzag(body, at, INDEX_BYTES, BROKEN)
        indexes.append(index)
    return indexes, body[at:]


INDEX_BYTES: Final = 5
BROKEN: Final = "broken message indexes"

FIRST_MESSAGE: Final = b"\0"
"""The encoded message indexes of the first message type of a schema."""


def zigzag(body: bytes, at: int, max_bytes: int, fault: str) -> tuple[int, int]:
    """Decode the variable-length integer at a position, which is in zigzag encoding; return it and the position after it.

    Raises:
        ValueError: The body ends within the integer, or it has more than ``max_bytes``; the text is ``fault``.
    """
    number = shift = 0
    while True:
        if at >= len(body) or shift >= 7 * max_bytes:
            raise ValueError(fault)
        byte = body[at]
        at += 1
        number |= (byte & 0x7F) << shift
        if byte < 0x80:  # noqa: PLR2004  # the last byte has no continuation bit
            return (number >> 1) ^ -(number & 1), at
        shift += 7
