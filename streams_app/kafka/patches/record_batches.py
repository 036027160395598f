"""Patch of aiokafka's record batches in a fetch reply: checksums by a CPU instruction, and any bytes in names of headers.

aiokafka computes CRC-32C in portable C: 2 µs for an event of 4 kB, a tenth of the cost of folding it. The CPU instruction for it
takes a twelfth of that. Besides, the parser of aiokafka (0.14) fails at a header whose name is not UTF-8, which Kafka accepts. One
record with that header would end every consumer of its topic for good. Here, a batch with an invalid name is parsed a second time,
by a slower parser. The event is then processed like any other, with the invalid name escaped.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from typing import Any, Final

from aiokafka.codec import gzip_decode, lz4_decode, snappy_decode, zstd_decode
from aiokafka.consumer import fetcher
from aiokafka.errors import CorruptRecordException
from aiokafka.record.default_records import DefaultRecordBatch, _DefaultRecordBatchPy
from aiokafka.record.legacy_records import LegacyRecordBatch
from crc32c import crc32c

from streams_app.native import NativeCore

_PREFIX: Final = struct.Struct(">qi")
"""Base offset, and the length of the rest of the batch."""

_MAGIC_AT: Final = 16
_MAGIC_OF_BATCHES: Final = 2
_CHECKED_FROM: Final = 21
_LEAST_LENGTH: Final = {0: 26, 1: 34, 2: 61}
"""Minimum length in bytes by magic, the format version.

For version 2, it is that of a batch without records; for older ones, that of a record without key and value.
"""

_DECODERS: Final[dict[int, Callable[[bytes], bytes]]] = {
    DefaultRecordBatch.CODEC_NONE: lambda body: body,
    DefaultRecordBatch.CODEC_GZIP: gzip_decode,
    DefaultRecordBatch.CODEC_SNAPPY: snappy_decode,
    DefaultRecordBatch.CODEC_LZ4: lz4_decode,
    DefaultRecordBatch.CODEC_ZSTD: zstd_decode,
}

_NOT_RELEASED: Final = 0
"""Mode of ``crc32c`` that retains Python's global lock: a checksum takes less time than acquiring it from a folding thread."""


class _WithAnyNames(bytearray):
    """Bytes of records that can be decoded as text even if they are not UTF-8; the parser decodes only names of headers."""

    def __getitem__(self, at: Any) -> Any:
        found = super().__getitem__(at)
        return _WithAnyNames(found) if isinstance(at, slice) else found

    def decode(self, encoding: str = "utf-8", errors: str = "strict") -> str:
        return super().decode(encoding, "backslashreplace")


class ForgivingBatch(_DefaultRecordBatchPy):
    """A batch whose header names may have any bytes: those that are not UTF-8 are escaped. aiokafka's Python parser reads it."""

    _buffer: bytearray

    def _maybe_uncompress(self) -> None:
        super()._maybe_uncompress()
        self._buffer = _WithAnyNames(self._buffer)


class WholeBatch:
    """A batch for aiokafka's own consumers; when the first record is read, all records are parsed.

    So a header name that is not UTF-8 is noticed before any record is returned. All attributes are those of the underlying batch.
    """

    def __init__(self, batch: Any, reopen: Any) -> None:
        self._batch = batch
        self._reopen = reopen

    def __getattr__(self, name: str) -> Any:
        return getattr(self._batch, name)

    def __next__(self) -> Any:
        return next(self._batch)

    def __iter__(self) -> Iterator[Any]:
        try:
            return iter(list(self._batch))
        except UnicodeDecodeError:
            return iter(self._reopen())


class RecordBatches:
    """Iterates over the record batches in a fetch reply; :meth:`is_intact` verifies their checksums.

    It replaces ``MemoryRecords`` of aiokafka (0.14, ``record/memory_records.py``). A batch that is cut off at the end of the reply
    is ignored (KIP-74).
    """

    def __init__(self, data: bytes) -> None:
        self._data = memoryview(data)
        self._begin = self._end = 0
        self._next_end = self._end_of_next()
        self._batch: Any = None

    def size_in_bytes(self) -> int:
        """Return the size of the partition's data in the reply, including a batch that is cut off."""
        return len(self._data)

    def has_next(self) -> bool:
        return self._next_end <= len(self._data)

    def next_batch(self) -> Any:
        """Return the next batch as a :class:`WholeBatch`, for aiokafka's own consumers; None if no complete one follows."""
        batch = self.open_batch()
        return None if batch is None else WholeBatch(batch, self.reopened)

    def reopened(self) -> ForgivingBatch:
        """Return the most recently opened batch once more, with a parser that accepts header names that are not UTF-8."""
        return ForgivingBatch(self._data[self._begin : self._end])

    def open_batch(self) -> Any:
        """Return the next batch without checking it; None if no complete one follows.

        Reading its records raises ``UnicodeDecodeError`` if a name of a header is not UTF-8, see :meth:`reopened`.

        Raises:
            CorruptRecordException: The batch is shorter than any valid one.
        """
        if not self.has_next():
            return None
        self._begin, self._end = self._end, self._next_end
        found = self._data[self._begin : self._end]
        magic = found[_MAGIC_AT] if len(found) > _MAGIC_AT else 0
        least = _LEAST_LENGTH.get(magic, _LEAST_LENGTH[_MAGIC_OF_BATCHES])
        if len(found) < least:
            raise CorruptRecordException(f"a batch of {len(found)} bytes: less than the {least} it has without records")
        self._next_end = self._end_of_next()
        self._batch = _BATCH(found) if magic >= _MAGIC_OF_BATCHES else LegacyRecordBatch(found, magic)
        return self._batch

    def is_intact(self) -> bool:
        """Return whether the checksum of the batch that was opened last matches."""
        if self._data[self._begin + _MAGIC_AT] < _MAGIC_OF_BATCHES:
            return bool(self._batch.validate_crc())
        checked = self._data[self._begin + _CHECKED_FROM : self._end]
        return bool(crc32c(checked, gil_release_mode=_NOT_RELEASED) == self._batch.crc)

    def columns(self, core: NativeCore) -> Any:
        """Return the records of the batch that was opened last as columns; None if the parser of aiokafka must read it."""
        found = self._data[self._begin : self._end]
        decode = _DECODERS.get(self._batch.compression_type) if found[_MAGIC_AT] == _MAGIC_OF_BATCHES else None
        if decode is None:
            return None
        header = _LEAST_LENGTH[_MAGIC_OF_BATCHES]
        try:
            body = decode(found[header:].tobytes())
            return core.Records.parse(found[:header].tobytes(), body)
        except Exception:  # noqa: BLE001 - the parser of aiokafka reads the batch once more, and raises its own error
            return None

    def _end_of_next(self) -> int:
        """Return the position after the next batch, which is beyond the end of the data if the batch is not complete."""
        if len(self._data) - self._end < _PREFIX.size:
            return len(self._data) + 1
        _, length = _PREFIX.unpack_from(self._data, self._end)
        return self._end + _PREFIX.size + max(0, length)


_BATCH: Final[Any] = ForgivingBatch if DefaultRecordBatch is _DefaultRecordBatchPy else DefaultRecordBatch
"""The parser in C if aiokafka has it, otherwise the one in Python."""


def use_record_batches() -> None:
    """Patch the fetchers of this process to parse replies by :class:`RecordBatches`. Further calls have no effect."""
    fetcher.MemoryRecords = RecordBatches
