"""Records for tests: raw records, as a reader receives them, and encoded batches, as a broker sends them."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Any

from aiokafka.record.default_records import DefaultRecordBatchBuilder
from crc32c import crc32c

from streams_app.folding.core.event import DetailedEvent


@dataclass
class Raw:
    """The fields of a consumer record that a reader uses."""

    offset: int
    timestamp: int | None = 1
    key: bytes | None = b"x"
    value: bytes | None = None
    headers: tuple[tuple[str, Any], ...] = ()


def kept(*events: tuple[int, bytes]) -> list[DetailedEvent]:
    """Return the kept events of a fold, by offset and JSON."""
    return [DetailedEvent(offset, 1_000 + offset, b"sa", {}, False, json) for offset, json in events]


def batch(base: int, offsets: list[int], *, producer: int = -1, is_transactional: bool = False, compression: int = 0) -> bytes:
    """Return a record batch with records at ``base`` plus each of ``offsets``, which key and value contain."""
    builder = DefaultRecordBatchBuilder(2, compression, int(is_transactional), producer, 0, 0, 10**6)
    for offset in offsets:
        assert builder.append(offset, 1_000 + offset, b"k%d" % offset, b"v%d" % offset, [("h", b"x")]) is not None
    data = bytearray(builder.build())
    struct.pack_into(">q", data, 0, base)
    return bytes(data)


def marker(base: int, producer: int, *, is_abort: bool) -> bytes:
    """Return the end of a transaction: a control batch of one record."""
    builder = DefaultRecordBatchBuilder(2, 0, 1, producer, 0, 0, 10**6)
    assert builder.append(0, 1_000, struct.pack(">hh", 0, not is_abort), b"", []) is not None
    data = bytearray(builder.build())
    struct.pack_into(">q", data, 0, base)
    struct.pack_into(">h", data, 21, 0x30)  # transactional, control
    struct.pack_into(">I", data, 17, crc32c(bytes(data[21:])))
    return bytes(data)
