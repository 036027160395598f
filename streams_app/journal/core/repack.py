"""Repacks the rows (stored events) of a segment into fewer blocks, which need less memory, in the order of keys (pure).

Neighbouring keys share a block, so that keys with few events compress as well as those with many.
"""

from __future__ import annotations

import hashlib
from bisect import bisect_left
from collections.abc import Iterable
from itertools import accumulate
from typing import Any, Final

from streams_app.journal.core.block import encode_packed, end_of, only_row_of, packed, raw_of, tuples_of

BLOCK_BYTES: Final = 64_000
"""Size of the rows of a packed block before compression, in bytes.

Larger blocks save hardly any memory, and a reader must decode a whole block for one event.
"""

LEVEL: Final = 3
"""Compression level of zstd. Level 9 would save another sixth, but take three to ten times as long."""

_PER_ROW: Final = 16
"""Estimated bytes of a serialized row besides its key, value and headers."""


RepackedRow = tuple[Any, ...] | bytes
"""A row as a tuple of :func:`.block.tuples_of`, or as serialized by :func:`.block.only_row_of`."""


class RowDigest:
    """Digest of a sequence of rows (stored events). Blocks with equal digests contain the same rows in the same order."""

    def __init__(self) -> None:
        self._count = 0
        self._found = hashlib.sha256()  # most processors have an instruction for it

    def add(self, raw: bytes) -> None:
        """Add the rows of a block, as :func:`.block.packed` serialized them; how rows are divided into blocks does not matter."""
        count, at = _length(raw)
        self._count += count
        self._found.update(memoryview(raw)[at:])

    @property
    def value(self) -> tuple[int, bytes]:
        """Number of rows, and SHA-256 digest of their serialized form."""
        return self._count, self._found.digest()


class RowsInOrder:
    """Extracts the rows of a segment from its blocks, without duplicates.

    A script that failed half-way may have left duplicates, and rows beyond the end of the segment; both are skipped.
    """

    def __init__(self, first: int, last: int) -> None:
        self._first, self._last = first, last
        self._key: bytes | None = None
        self._offset = -1

    def of(self, members: Iterable[bytes]) -> list[RepackedRow]:
        """Decode the next blocks of the segment; return their rows, except duplicates and rows outside the segment's offsets."""
        found: list[RepackedRow] = []
        first, last, key, behind = self._first, self._last, self._key, self._offset
        for member in members:
            if (only := only_row_of(member)) is not None:
                of_key, offset, encoded = only
                if (of_key != key or behind < offset) and first <= offset <= last:
                    found.append(encoded)
                    key, behind = of_key, offset
                continue
            rows = tuples_of(member)
            head, tail = rows[0], rows[-1]
            if head[0] == tail[0] and (head[0] != key or behind < head[1]) and first <= head[1] and tail[1] <= last:
                found += rows  # the usual case: sorted rows of one key, all of them new
                key, behind = tail[:2]
                continue
            for row in rows:
                offset = row[1]
                if row[0] != key:
                    key, behind = row[0], -1
                if behind < offset and first <= offset <= last:
                    found.append(row)
                    behind = offset
        self._key, self._offset = key, behind
        return found


class Repacker:
    """Packs the rows of a segment into compressed blocks, which neighbouring keys share; ``digest`` is that of returned blocks."""

    def __init__(self, first: int, last: int) -> None:
        self.digest = RowDigest()
        self._in_order = RowsInOrder(first, last)
        self._rows: list[RepackedRow] = []

    def add(self, members: Iterable[bytes]) -> list[bytes]:
        """Add the next blocks of the segment, in their order; return the packed blocks that are full."""
        rows = self._rows + self._in_order.of(members)
        sizes = [
            len(row)
            if isinstance(row, bytes)
            else len(row[0]) + len(row[3] or b"") + _PER_ROW + (size_of_headers(row[4]) if row[4] else 0)
            for row in rows
        ]
        totals = list(accumulate(sizes))
        blocks, begin, size = [], 0, 0
        while (last := bisect_left(totals, size + BLOCK_BYTES)) < len(rows):
            blocks.append(self._block(rows[begin : last + 1]))
            begin, size = last + 1, totals[last]
        self._rows = rows[begin:]
        return blocks

    def finish(self) -> list[bytes]:
        """Return a list with the last packed block, which is not full; an empty list if no rows are left."""
        rows, self._rows = self._rows, []
        return [self._block(rows)] if rows else []

    def _block(self, rows: list[RepackedRow]) -> bytes:
        raw = packed(rows)
        self.digest.add(raw)
        key, last_offset = end_of(rows[-1])
        return encode_packed(key, last_offset, raw, LEVEL)


def digest_of(members: Iterable[bytes], digest: RowDigest) -> None:
    """Add the rows of packed blocks to ``digest``, in their order."""
    for member in members:
        digest.add(raw_of(member))


def size_of_headers(headers: Iterable[tuple[str, bytes | None]]) -> int:
    """Estimate the size of an event's headers in bytes: characters of the names, and bytes of the values."""
    return sum(len(name) + len(content or b"") for name, content in headers)


def _length(raw: bytes) -> tuple[int, int]:
    """Return the number of items of a msgpack array, and the index at which the first item begins."""
    match raw[0]:
        case 0xDC:
            return int.from_bytes(raw[1:3], "big"), 3
        case 0xDD:
            return int.from_bytes(raw[1:5], "big"), 5
    return raw[0] & 0x0F, 1
