"""Records taken from aiokafka's parser, against what aiokafka itself makes of the same bytes."""

from __future__ import annotations

import struct
from typing import Any

import pytest
from aiokafka.consumer.fetcher import READ_COMMITTED, PartitionRecords
from aiokafka.errors import CorruptRecordException
from aiokafka.record.default_records import DefaultRecordBatchBuilder
from aiokafka.record.legacy_records import LegacyRecordBatchBuilder
from aiokafka.record.memory_records import MemoryRecords
from aiokafka.structs import TopicPartition
from hypothesis import given
from hypothesis import strategies as st

from streams_app.kafka.records import FetchedRecords

COMPRESSIONS = {"none": 0, "gzip": 1}


def batch(base: int, offsets: list[int], *, producer: int = -1, is_transactional: bool = False, compression: int = 0) -> bytes:
    builder = DefaultRecordBatchBuilder(2, compression, int(is_transactional), producer, 0, 0, 10**6)
    for offset in offsets:
        assert builder.append(offset, 1_000 + offset, b"k%d" % offset, b"v%d" % offset, [("h", b"x")]) is not None
    data = bytearray(builder.build())
    struct.pack_into(">q", data, 0, base)
    return bytes(data)


def legacy(base: int, count: int) -> bytes:
    builder = LegacyRecordBatchBuilder(1, 0, 10**6)
    for number in range(count):
        assert builder.append(base + number, 1_000, b"k", b"v") is not None
    return bytes(builder.build())


def fetched(data: bytes, position: int, aborted: list[tuple[int, int]] | None = None) -> PartitionRecords:
    return PartitionRecords(TopicPartition("t", 0), MemoryRecords(data), aborted, position, None, None, True, READ_COMMITTED)


def told(record: Any) -> tuple[Any, ...]:
    return record.offset, record.timestamp, record.key, record.value, tuple(record.headers)


batches = st.lists(
    st.tuples(st.integers(1, 5), st.integers(0, 3), st.sampled_from([0, 1]), st.sampled_from([-1, 7, 8]), st.booleans()), max_size=6
)


@given(batches, st.integers(0, 20), st.lists(st.integers(1, 7), min_size=1, max_size=4), st.booleans())
def test_the_same_records_and_positions_as_aiokafka(shapes: Any, position: int, sizes: list[int], is_aborting: bool) -> None:
    data, base = b"", 0
    for count, gap, compression, producer, is_transactional in shapes:
        base += gap
        transactional = is_transactional and producer >= 0
        data += batch(base, list(range(count)), producer=producer, is_transactional=transactional, compression=compression)
        base += count
    aborted = [(7, 0)] if is_aborting else None
    theirs, ours = fetched(data, position, aborted), FetchedRecords(fetched(data, position, aborted))
    expected = [told(record) for record in theirs]
    found: list[tuple[Any, ...]] = []
    turn = 0
    while not ours.is_empty:
        found += map(told, ours.take(sizes[turn % len(sizes)]))
        turn += 1
        assert not found or ours.next_fetch_offset > found[-1][0]

    assert expected == found
    assert theirs.next_fetch_offset == ours.next_fetch_offset
    assert [] == ours.take(1)


def test_records_of_the_former_format() -> None:
    data = legacy(3, 2) + legacy(5, 2)

    assert [4, 5, 6] == [record.offset for record in FetchedRecords(fetched(data, 4)).take(9)]


def test_a_wrong_checksum_is_an_error_and_passes_no_position() -> None:
    broken = bytearray(batch(0, [0, 1]))
    broken[-1] ^= 1
    records = FetchedRecords(fetched(bytes(broken), 0))
    with pytest.raises(CorruptRecordException):
        records.take(9)

    assert 0 == records.next_fetch_offset
