"""The record batches of one partition in a fetch reply, with checksums by the processor's own instruction.

aiokafka computes CRC-32C in portable C: 2 µs for an event of 4 kB, a tenth of all that folding it costs. The instruction that
processors have for it needs a twelfth of that.
"""

from __future__ import annotations

import struct
from typing import Any, Final

from aiokafka.consumer import fetcher
from aiokafka.errors import CorruptRecordException
from aiokafka.record.default_records import DefaultRecordBatch
from aiokafka.record.legacy_records import LegacyRecordBatch
from crc32c import crc32c

_PREFIX: Final = struct.Struct(">qi")
"""Base offset, and the length of what follows it."""
_MAGIC_AT: Final = 16
_MAGIC_OF_BATCHES: Final = 2
_CHECKED_FROM: Final = 21
_LEAST_LENGTH: Final = {0: 26, 1: 34, 2: 61}
"""Magic → bytes of a batch without records, or of a record without key and value."""
_NOT_RELEASED: Final = 0
"""The checksum of a batch is computed sooner than Python's lock is got back from a thread that folds."""


class RecordBatches:
    """Does what aiokafka's ``MemoryRecords`` does (0.14, ``record/memory_records.py``), and checks what it has handed out.

    A batch that is cut off at the end of the reply is not there yet (KIP-74).
    """

    def __init__(self, data: bytes) -> None:
        self._data = memoryview(data)
        self._begin = self._end = 0
        self._next_end = self._end_of_next()
        self._batch: Any = None

    def size_in_bytes(self) -> int:
        """Of the whole part, whether there is a batch in it or not."""
        return len(self._data)

    def has_next(self) -> bool:
        """A whole batch is left."""
        return self._next_end <= len(self._data)

    def next_batch(self) -> Any:
        """The next batch, not checked; None where no whole one is left.

        Raises:
            CorruptRecordException: Its length cannot be.
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
        self._batch = DefaultRecordBatch(found) if magic >= _MAGIC_OF_BATCHES else LegacyRecordBatch(found, magic)
        return self._batch

    def is_intact(self) -> bool:
        """Whether the batch handed out last is what its checksum was made of."""
        if self._data[self._begin + _MAGIC_AT] < _MAGIC_OF_BATCHES:
            return bool(self._batch.validate_crc())
        checked = self._data[self._begin + _CHECKED_FROM : self._end]
        return bool(crc32c(checked, gil_release_mode=_NOT_RELEASED) == self._batch.crc)

    def _end_of_next(self) -> int:
        """Behind the end of the data, if less than a whole batch is left."""
        if len(self._data) - self._end < _PREFIX.size:
            return len(self._data) + 1
        _, length = _PREFIX.unpack_from(self._data, self._end)
        return self._end + _PREFIX.size + max(0, length)


def use_record_batches() -> None:
    """From now on fetch replies in this process are taken apart by :class:`RecordBatches`; may be called again."""
    fetcher.MemoryRecords = RecordBatches
