"""Encodes and decodes blocks: rows of one key or of neighbouring keys, as one member of a Redis sorted set (pure).

A block is ``key 0x00 | last offset | codec | raw length | CRC-32C | payload``; key and last offset are those of its last row.
Numbers are big endian, and a 0x00 within the key is escaped as ``0x00 0xFF``. All members of the sorted set have the same score, so
Redis sorts the blocks by their bytes, which is the order of (key, last offset). If a key has rows at or after an offset, the first
of these rows is in the first block at or after :func:`position`. The terminator of a key cannot be mistaken for an escaped byte,
because an offset is below 2^63 and so never begins with 0xFF. The checksum covers all other bytes of the block.
"""

from __future__ import annotations

import struct
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from itertools import islice, takewhile
from typing import Any, Final

import cramjam
import msgpack
import msgspec
from crc32c import crc32c

from streams_app.journal.core.entry import Row

PLAIN: Final = 0
"""Codec number of a block with rows of one key, serialized by msgpack and not compressed."""

COMPRESSED: Final = 1
"""Codec number of a block with rows of one key, serialized by msgpack and compressed by zstd."""

SEVERAL_KEYS: Final = 2
"""Codec number of a block with complete :class:`.Row` tuples of one or more keys, compressed by zstd."""

COMPRESSED_FROM: Final = 1_000
"""Minimum size of serialized rows of one key that are compressed, in bytes: zstd does not shrink smaller ones."""

MAX_CHUNK_EVENTS: Final = 2_000
"""Maximum number of events of one append."""

MAX_CHUNK_KEYS: Final = 500
"""Maximum number of keys of one append. Each key has its own block, which takes Redis as long as ten more events in a block."""

MAX_CHUNK_BYTES: Final = 256_000
"""No further event is added to an append that has this many bytes of keys, values and headers."""

MAX_RAW_BYTES: Final = 32_000_000
"""Maximum size of a block's serialized rows, in bytes. A block that claims more is damaged, and is not decompressed."""

BLOCK_OVERHEAD: Final = 100
"""Bytes that Redis needs for each block besides the block itself, in a large sorted set; measurements gave 95 to 110."""

_FIELDS: Final = len(Row._fields)
_encoded: Final = msgspec.msgpack.Encoder().encode
_decoded_row: Final = msgspec.msgpack.Decoder(tuple[bytes, int, int, bytes | None, tuple[tuple[str, bytes | None], ...]]).decode
_split_rows: Final = msgspec.msgpack.Decoder(list[msgspec.Raw]).decode
_decoded_rows: Final = msgspec.msgpack.Decoder(
    list[tuple[bytes, int, int, bytes | None, tuple[tuple[str, bytes | None], ...]]]
).decode  # checks the shape of a row, too
_ONE_SHORT_ROW: Final = b"\x91\x93"  # msgpack: an array of one array of three items
_ONE_ROW_WITH_HEADERS: Final = b"\x91\x94"  # an array of one array of four items
_WHOLE_ROW: Final = b"\x95"  # an array of five items
_NO_HEADERS: Final = b"\x90"  # an empty array
_ESCAPED: Final = 0xFF
_OFFSET: Final = struct.Struct(">Q")
_REST: Final = struct.Struct(">BII")  # codec, raw length, checksum
_HEAD: Final = struct.Struct(">BI")  # the part of it that the checksum covers
_ENTIRE_REST: Final = struct.Struct(">QBII")  # offset and the rest
_CHECKSUM: Final = struct.Struct(">I")
_REST_BYTES: Final = _REST.size
_HEAD_BYTES: Final = _HEAD.size


ShortRow = tuple[Any, ...]
"""The fields of a :class:`.Row` without its key; if it has no headers, the field of the headers is left out as well."""


class DamagedBlockError(ValueError):
    """A block is damaged: it does not contain the bytes that were written."""


def escaped(key: bytes) -> bytes:
    """Return the prefix that all blocks of a key have in the sorted set: the escaped key and its terminator."""
    return key.replace(b"\0", b"\0\xff") + b"\0"


def position(key: bytes, offset: int) -> bytes:
    """Return the position from which to read those blocks of a key that have rows at or after an offset."""
    return escaped(key) + _OFFSET.pack(offset)


def scan_position(after: bytes) -> bytes:
    """Return the position right after a block, to continue a scan there; unlike the block, it has no payload, so it is short.

    A position is returned unchanged.
    """
    try:
        _, _, at = _parsed(after)
    except DamagedBlockError:
        return after
    head = after[: at + _REST.size]
    if len(head) < at + _REST.size:
        return after
    # Members with the same head have the same payload, so the next higher head sorts after them.
    fields = int.from_bytes(head[at - _OFFSET.size :], "big") + 1
    return head[: at - _OFFSET.size] + fields.to_bytes(_OFFSET.size + _REST.size, "big")


def short_of(row: Row) -> ShortRow:
    """Return the fields of a row without its key, and without headers if it has none, as a block of one key stores it."""
    return row[1:] if row.headers else row[1:4]


def encode(rows: Sequence[Row], level: int = 1) -> bytes:
    """Encode rows, sorted by (key, offset), as one block; of several keys always compressed, of one key only if they are large."""
    if rows[0].key != rows[-1].key:
        return encode_packed(rows[-1].key, rows[-1].offset, packed(rows), level)
    return _of_key(rows[0].key, [short_of(row) for row in rows], level)


def encode_packed(key: bytes, last_offset: int, raw: bytes, level: int) -> bytes:
    """Compress rows that :func:`packed` has serialized, and encode them as one block with key and offset of the last row."""
    return _member(key, last_offset, SEVERAL_KEYS, len(raw), bytes(cramjam.zstd.compress(raw, level)))


def packed(rows: Sequence[Sequence[Any] | bytes]) -> bytes:
    """Serialize rows as a msgpack array, the content of a block before compression.

    Each row is a sequence of its fields, or serialized, as :func:`only_row_of` returns it.
    """
    if not any(isinstance(row, bytes) for row in rows):
        return _encoded(rows)
    return msgpack.Packer().pack_array_header(len(rows)) + b"".join(
        row if isinstance(row, bytes) else _encoded(row) for row in rows
    )


def encode_by_key(rows: Mapping[bytes, Sequence[ShortRow]], level: int = 1) -> list[bytes]:
    """Encode the rows of a chunk, which are in the order of their offsets, one block for each key."""
    return [_of_key(key, of_key, level) for key, of_key in rows.items()]


def decode(member: bytes) -> list[Row]:
    """Check and decode a block; return its rows, sorted by (key, offset). The checksum is verified before memory is allocated."""
    return list(map(Row._make, tuples_of(member)))


def rows_of_key(member: bytes, key: bytes) -> list[Row]:
    """Return the rows of one key in a block, in the order of their offsets.

    Only a few rows of other keys are decoded, so the shape of the others is not checked.
    """
    member_key, last_offset, codec, raw = _opened(member)
    if codec != SEVERAL_KEYS:
        return decode(member) if key == member_key else []
    try:
        rows = _split_rows(raw)
        if not rows or _decoded_row(rows[-1])[:2] != (member_key, last_offset):
            raise DamagedBlockError("the block does not end with the row in its head")
        begin = bisect_left(rows, key, key=_key_of)
        of_key = takewhile(lambda row: row[0] == key, map(_decoded_row, islice(rows, begin, None)))
        return list(map(Row._make, of_key))
    except msgspec.MsgspecError as error:
        raise DamagedBlockError(f"the block cannot be decoded: {error}") from error


def tuples_of(member: bytes) -> list[tuple[Any, ...]]:
    """Check and decode a block; return its rows as plain tuples, which takes a third of the time of :func:`decode`."""
    key, last_offset, codec, raw = _opened(member)
    try:
        if codec == SEVERAL_KEYS:
            rows: list[tuple[Any, ...]] = _decoded_rows(raw)
            is_whole = bool(rows)
        else:
            # For tuples of different lengths, the decoder of msgspec is no faster.
            short = msgpack.unpackb(raw, use_list=False)
            rows = [(key, *row) if len(row) == _FIELDS - 1 else (key, *row, ()) for row in short]
            is_whole = set(map(len, rows)) == {_FIELDS}
    except (ValueError, TypeError, msgspec.MsgspecError) as error:
        raise DamagedBlockError(f"the block cannot be decoded: {error}") from error
    if not is_whole or rows[-1][:2] != (key, last_offset):
        raise DamagedBlockError("the block does not end with the row in its head")
    return rows


def only_row_of(member: bytes) -> tuple[bytes, int, bytes] | None:
    """Return the only row of a small block without decoding it, in a third of the time that decoding takes.

    Returns:
        Key, offset, and the row as :func:`packed` serializes it. None if the block is not exactly one uncompressed row, if its key
        has a zero byte, or if it is damaged: then call :func:`tuples_of`.
    """
    end = member.find(b"\0")
    begin = end + 1 + _ENTIRE_REST.size
    if end < 0 or len(member) < begin:
        return None
    offset, codec, raw_length, checksum = _ENTIRE_REST.unpack_from(member, end + 1)
    # Begin with the conditions that need no copy of the payload, because a member that fails one is opened and checked again.
    if codec != PLAIN or member[end + 1] == _ESCAPED:
        return None
    has_headers = member.startswith(_ONE_ROW_WITH_HEADERS, begin)
    if not member.startswith((_ONE_ROW_WITH_HEADERS if has_headers else _ONE_SHORT_ROW) + _encoded(offset), begin):
        return None
    payload = member[begin:]
    if raw_length != len(payload) or checksum != crc32c(payload, crc32c(member[: begin - _CHECKSUM.size])):
        return None
    key = member[:end]
    return key, offset, _WHOLE_ROW + _encoded(key) + payload[len(_ONE_SHORT_ROW) :] + (b"" if has_headers else _NO_HEADERS)


def end_of(row: tuple[Any, ...] | bytes) -> tuple[bytes, int]:
    """Return key and offset of a row, which is a tuple from :func:`tuples_of`, or was serialized by :func:`only_row_of`."""
    return (_decoded_row(row) if isinstance(row, bytes) else row)[:2]


def raw_of(member: bytes) -> bytes:
    """Check and decompress a block that :func:`encode_packed` returned; return its rows as :func:`packed` serialized them."""
    *_, codec, raw = _opened(member)
    if codec != SEVERAL_KEYS:
        raise DamagedBlockError(f"the codec of the block is {codec}")
    return raw


def last_of(member: bytes) -> tuple[bytes, int]:
    """Return key and offset of the last row of a block, without decoding the row."""
    return _parsed(member)[:2]


def raw_length(member: bytes) -> int:
    """Return the size of a block's rows before compression, in bytes; 0 if the bytes before the rows are incomplete."""
    try:
        *_, at = _parsed(member)
    except DamagedBlockError:
        return 0
    return _HEAD.unpack_from(member, at)[1] if len(member) >= at + _REST.size else 0


def stored_bytes(members: Sequence[bytes]) -> int:
    """Estimate how many bytes of memory blocks need in Redis."""
    return sum(map(len, members)) + BLOCK_OVERHEAD * len(members)


def _key_of(row: msgspec.Raw) -> bytes:
    return _decoded_row(row)[0]


def _parsed(member: bytes) -> tuple[bytes, int, int]:
    """Parse the first part of a block; return its key, its last offset, and the index of its codec byte."""
    first = end = member.find(b"\0")
    while end >= 0 and member[end + 1 : end + 2] == b"\xff":
        end = member.find(b"\0", end + 2)
    at = end + 1 + _OFFSET.size
    if end < 0 or len(member) < at:
        raise DamagedBlockError("the block has no key and offset")
    key = member[:end] if end == first else member[:end].replace(b"\0\xff", b"\0")
    return key, _OFFSET.unpack_from(member, end + 1)[0], at


def _opened(member: bytes) -> tuple[bytes, int, int, bytes]:
    """Check and decompress a block; return key, last offset, codec and serialized rows."""
    key, last_offset, at = _parsed(member)
    if len(member) < at + _REST_BYTES:
        raise DamagedBlockError("the block ends within its head")
    codec, raw_length, checksum = _REST.unpack_from(member, at)
    payload = member[at + _REST_BYTES :]
    if checksum != crc32c(payload, crc32c(member[: at + _HEAD_BYTES])):
        raise DamagedBlockError("the checksum of the block does not match")
    if codec == PLAIN:
        raw, size = payload, len(payload)
    elif codec not in (COMPRESSED, SEVERAL_KEYS) or raw_length > MAX_RAW_BYTES:
        raise DamagedBlockError(f"the block cannot be decoded: codec {codec}, {raw_length} bytes")
    else:
        target = bytearray(raw_length)  # a longer result is an error, so a zip bomb cannot allocate more memory
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
