"""Blocks: rows of one key, or of neighbouring keys, as one member of a sorted set (pure).

A member is ``key 0x00 | last offset | codec | raw length | CRC-32C | payload``, numbers big endian, a 0x00 within the key
written as ``0x00 0xFF``. Members of one score are in the order of their bytes, which is the order of (key, last offset): the first
member at or behind (key, offset) is the one that holds the next row of the key, if there is any. The terminator cannot be mistaken
for an escaped byte, because an offset is below 2^63 and so never begins with 0xFF. The checksum covers everything but itself.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from typing import Any, Final

import cramjam
import msgpack
from crc32c import crc32c

from streams_app.journal.core.entry import Row

PLAIN: Final = 0
"""Codec: rows of the key, as msgpack."""

COMPRESSED: Final = 1
"""Codec: the same in zstd."""

SEVERAL_KEYS: Final = 2
"""Codec: rows of one or more keys in zstd, each as :class:`.Row` with its key in front; the member has the last of them."""

COMPRESSED_FROM: Final = 1_000
"""Smaller blocks are left as they are: zstd would not make them smaller."""

MOST_CHUNK_EVENTS: Final = 2_000
"""Events that one append takes, at most."""

MOST_CHUNK_KEYS: Final = 500
"""Keys that one append takes, at most: each is a block, which takes Redis as long as ten events more in another block."""

MOST_CHUNK_BYTES: Final = 256_000
"""Received bytes after which an append takes no further event."""

MOST_RAW_BYTES: Final = 32_000_000
"""No block says that it holds more; one that does is damaged, and is not decompressed."""

BLOCK_OVERHEAD: Final = 100
"""Bytes that Redis takes for a member of a large sorted set, beside the member: measured, 95 to 110."""

_FIELDS: Final = len(Row._fields)
_OFFSET: Final = struct.Struct(">Q")
_REST: Final = struct.Struct(">BII")  # codec, raw length, checksum
_HEAD: Final = struct.Struct(">BI")  # what the checksum covers of that
_CHECKSUM: Final = struct.Struct(">I")


ShortRow = tuple[Any, ...]
"""A :class:`.Row` without its key, and without headers if there are none."""


class DamagedBlockError(ValueError):
    """A block does not hold what was written."""


def escaped(key: bytes) -> bytes:
    """A key and its terminator, as members begin with it."""
    return key.replace(b"\0", b"\0\xff") + b"\0"


def position(key: bytes, offset: int) -> bytes:
    """Where (key, offset) stands in the order of members."""
    return escaped(key) + _OFFSET.pack(offset)


def scan_position(after: bytes) -> bytes:
    """Return a short position that sorts right after a member, whose payload may have a megabyte.

    Args:
        after: A member, or a position, which is returned unchanged.
    """
    try:
        _, _, at = _parsed(after)
    except DamagedBlockError:
        return after
    head = after[: at + _REST.size]
    if len(head) < at + _REST.size:
        return after
    # Members with the same head have the same payload: the next head follows them.
    fields = int.from_bytes(head[at - _OFFSET.size :], "big") + 1
    return head[: at - _OFFSET.size] + fields.to_bytes(_OFFSET.size + _REST.size, "big")


def short_of(row: Row) -> ShortRow:
    """A row as the blocks of its key have it."""
    return row[1:] if row.headers else row[1:4]


def encode(rows: Sequence[Row], level: int = 1) -> bytes:
    """One member that holds rows.

    Args:
        rows: At least one; sorted by (key, offset).
        level: Of zstd.
    """
    if rows[0].key != rows[-1].key:
        return encode_packed(rows[-1].key, rows[-1].offset, packed(rows), level)
    return _of_key(rows[0].key, [short_of(row) for row in rows], level)


def encode_packed(key: bytes, last_offset: int, raw: bytes, level: int) -> bytes:
    """One member that holds rows of one or more keys.

    Args:
        key: Of the last row.
        last_offset: Of the last row.
        raw: The rows as :func:`packed` returns them.
        level: Of zstd.
    """
    return _member(key, last_offset, SEVERAL_KEYS, len(raw), bytes(cramjam.zstd.compress(raw, level)))


def packed(rows: Sequence[Sequence[Any]]) -> bytes:
    """Rows as a block holds them before it is compressed."""
    found: bytes = msgpack.packb(rows, use_bin_type=True)
    return found


def encode_by_key(rows: Mapping[bytes, Sequence[ShortRow]], level: int = 1) -> list[bytes]:
    """One member for each key of a chunk.

    Args:
        rows: Key → its rows, in the order of their offsets.
        level: Of zstd.
    """
    return [_of_key(key, of_key, level) for key, of_key in rows.items()]


def decode(member: bytes) -> list[Row]:
    """The rows of a member, sorted by (key, offset).

    Raises:
        DamagedBlockError: It is not what was written; what it claims to hold is not allocated before that is known.
    """
    return list(map(Row._make, tuples_of(member)))


def rows_of_key(member: bytes, key: bytes) -> list[Row]:
    """Return the rows of one key in a member, in the order of their offsets; the others cost hardly more than their decompression.

    Raises:
        DamagedBlockError: As :func:`decode`.
    """
    return [Row._make(row) for row in tuples_of(member) if row[0] == key]


def tuples_of(member: bytes) -> list[tuple[Any, ...]]:
    """As :func:`decode`, but plain tuples of what a :class:`.Row` has, which take a third of the time.

    Raises:
        DamagedBlockError: As :func:`decode`.
    """
    key, last_offset, codec, raw = _opened(member)
    try:
        found = msgpack.unpackb(raw, use_list=False)
        if codec == SEVERAL_KEYS:
            rows = list(found)
        else:
            rows = [(key, *row) if len(row) == _FIELDS - 1 else (key, *row, ()) for row in found]
        is_whole = set(map(len, rows)) == {_FIELDS}
    except (ValueError, TypeError) as error:
        raise DamagedBlockError(f"the block cannot be decoded: {error}") from error
    if not is_whole or rows[-1][:2] != (key, last_offset):
        raise DamagedBlockError("the block does not end with the row that it names")
    return rows


def raw_of(member: bytes) -> bytes:
    """What :func:`packed` returned for the rows of a member that :func:`encode_packed` made.

    Raises:
        DamagedBlockError: It is not what was written.
    """
    *_, codec, raw = _opened(member)
    if codec != SEVERAL_KEYS:
        raise DamagedBlockError(f"the codec of the block is {codec}")
    return raw


def last_of(member: bytes) -> tuple[bytes, int]:
    """Key and offset of the last row of a member, without decoding it.

    Raises:
        DamagedBlockError: It has no key and offset.
    """
    return _parsed(member)[:2]


def raw_length(member: bytes) -> int:
    """How many bytes a member says that it holds; 0 of one that says nothing."""
    try:
        *_, at = _parsed(member)
    except DamagedBlockError:
        return 0
    return _HEAD.unpack_from(member, at)[1] if len(member) >= at + _REST.size else 0


def stored_bytes(members: Sequence[bytes]) -> int:
    """Bytes that members take in Redis."""
    return sum(map(len, members)) + BLOCK_OVERHEAD * len(members)


def _parsed(member: bytes) -> tuple[bytes, int, int]:
    """Key, last offset, and where the codec stands."""
    end = member.find(b"\0")
    while end >= 0 and member[end + 1 : end + 2] == b"\xff":
        end = member.find(b"\0", end + 2)
    at = end + 1 + _OFFSET.size
    if end < 0 or len(member) < at:
        raise DamagedBlockError("the block names no key and offset")
    return member[:end].replace(b"\0\xff", b"\0"), _OFFSET.unpack_from(member, end + 1)[0], at


def _opened(member: bytes) -> tuple[bytes, int, int, bytes]:
    """Key, last offset, codec and rows of a member, checked and decompressed."""
    key, last_offset, at = _parsed(member)
    if len(member) < at + _REST.size:
        raise DamagedBlockError("the block ends within its head")
    codec, raw_length, checksum = _REST.unpack_from(member, at)
    payload = member[at + _REST.size :]
    if checksum != crc32c(payload, crc32c(member[: at + _HEAD.size])):
        raise DamagedBlockError("the checksum of the block does not match")
    if codec not in (PLAIN, COMPRESSED, SEVERAL_KEYS) or raw_length > MOST_RAW_BYTES:
        raise DamagedBlockError(f"the block cannot be decoded: codec {codec}, {raw_length} bytes")
    if codec == PLAIN:
        raw, size = payload, len(payload)
    else:
        target = bytearray(raw_length)  # what does not fit is an error: a zip bomb never gets more than this
        try:
            size = cramjam.zstd.decompress_into(payload, target)
        except cramjam.DecompressionError as error:
            raise DamagedBlockError(f"the block cannot be decoded: {error}") from error
        raw = bytes(target)
    if size != raw_length:
        raise DamagedBlockError(f"the block cannot be decoded: it holds {size} bytes, not {raw_length}")
    return key, last_offset, codec, raw


def _of_key(key: bytes, rows: Sequence[ShortRow], level: int) -> bytes:
    raw, last_offset = packed(rows), rows[-1][0]
    if len(raw) < COMPRESSED_FROM:
        return _member(key, last_offset, PLAIN, len(raw), raw)
    return _member(key, last_offset, COMPRESSED, len(raw), bytes(cramjam.zstd.compress(raw, level)))


def _member(key: bytes, last_offset: int, codec: int, raw_length: int, payload: bytes) -> bytes:
    head = position(key, last_offset) + _HEAD.pack(codec, raw_length)
    return head + _CHECKSUM.pack(crc32c(payload, crc32c(head))) + payload
