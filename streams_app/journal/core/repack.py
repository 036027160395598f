"""Blocks as they were appended, made into fewer and smaller ones, in the order of their keys (pure).

Neighbouring keys share a block, so that keys with few events are compressed as well as those with many.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from typing import Any, Final

from streams_app.journal.core.block import encode_packed, packed, raw_of, tuples_of

BLOCK_BYTES: Final = 64_000
"""Raw bytes of a block that is packed: larger ones are hardly smaller in Redis, and a reader decodes a whole one for one event."""

LEVEL: Final = 3
"""Of zstd. Level 9 saves a sixth more and takes three to ten times as long."""

_PER_ROW: Final = 16
"""What a row takes in a block beside its key, value and headers."""


class RowDigest:
    """Tells whether other blocks hold the same rows in the same order."""

    def __init__(self) -> None:
        self._count = 0
        self._found = hashlib.blake2b(digest_size=16)

    def add(self, raw: bytes) -> None:
        """Takes the next rows, as :func:`.block.packed` has them; how they are divided does not matter."""
        count, at = _length(raw)
        self._count += count
        self._found.update(memoryview(raw)[at:])

    @property
    def value(self) -> tuple[int, bytes]:
        """Number of rows, and what they were."""
        return self._count, self._found.digest()


class RowsInOrder:
    """The rows of a segment, each once, out of its members in their order.

    A script that died half-way may have left rows twice, and some beyond the end of the segment: those are passed over.
    """

    def __init__(self, first: int, last: int) -> None:
        """Begins before all members.

        Args:
            first: First offset of the segment.
            last: Its last one.
        """
        self._first, self._last = first, last
        self._key: bytes | None = None
        self._offset = -1

    def of(self, members: Iterable[bytes]) -> list[tuple[Any, ...]]:
        """The rows of the next members, as :func:`.block.tuples_of` has them.

        Raises:
            DamagedBlockError: A member is not what was written.
        """
        found: list[tuple[Any, ...]] = []
        first, last, key, behind = self._first, self._last, self._key, self._offset
        for member in members:
            for row in tuples_of(member):
                offset = row[1]
                if row[0] != key:
                    key, behind = row[0], -1
                if behind < offset and first <= offset <= last:
                    found.append(row)
                    behind = offset
        self._key, self._offset = key, behind
        return found


class Repacker:
    """Makes packed blocks out of the rows of a segment, a part at a time.

    Attributes:
        digest: Of all rows so far.
    """

    def __init__(self, first: int, last: int) -> None:
        """Begins before all members.

        Args:
            first: First offset of the segment.
            last: Its last one.
        """
        self.digest = RowDigest()
        self._in_order = RowsInOrder(first, last)
        self._rows: list[tuple[Any, ...]] = []
        self._bytes = 0

    def add(self, members: Iterable[bytes]) -> list[bytes]:
        """Takes the next members, in their order.

        Returns:
            Blocks that are full.

        Raises:
            DamagedBlockError: A member is not what was written.
        """
        blocks: list[bytes] = []
        for row in self._in_order.of(members):
            self._rows.append(row)
            self._bytes += len(row[0]) + len(row[3] or b"") + _PER_ROW + (size_of_headers(row[4]) if row[4] else 0)
            if self._bytes >= BLOCK_BYTES:
                blocks += self.finish()
        return blocks

    def finish(self) -> list[bytes]:
        """The block that is not full; none if nothing is left."""
        if not self._rows:
            return []
        raw = packed(self._rows)
        key, last_offset = self._rows[-1][:2]
        self.digest.add(raw)
        block = encode_packed(key, last_offset, raw, LEVEL)
        self._rows, self._bytes = [], 0
        return [block]


def digest_of(members: Iterable[bytes], digest: RowDigest) -> None:
    """Adds the rows of packed members to a digest, in their order.

    Raises:
        DamagedBlockError: A member is not what was written.
    """
    for member in members:
        digest.add(raw_of(member))


def size_of_headers(headers: Iterable[tuple[str, bytes | None]]) -> int:
    """Bytes of the headers of an event."""
    return sum(len(name) + len(content or b"") for name, content in headers)


def _length(raw: bytes) -> tuple[int, int]:
    """Number of items of a msgpack array, and where the first one begins."""
    match raw[0]:
        case 0xDC:
            return int.from_bytes(raw[1:3], "big"), 3
        case 0xDD:
            return int.from_bytes(raw[1:5], "big"), 5
    return raw[0] & 0x0F, 1
