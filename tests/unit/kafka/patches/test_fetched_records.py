"""Records taken from aiokafka's parser, compared with aiokafka's own records of the same bytes."""

from __future__ import annotations

import contextlib
import struct
from collections.abc import Callable
from typing import Any

import pytest
from aiokafka.consumer import fetcher
from aiokafka.consumer.fetcher import READ_COMMITTED, PartitionRecords
from aiokafka.errors import CorruptRecordException
from aiokafka.record.default_records import _DefaultRecordBatchBuilderPy
from aiokafka.record.legacy_records import LegacyRecordBatchBuilder
from aiokafka.record.memory_records import MemoryRecords
from aiokafka.structs import TopicPartition
from hypothesis import given
from hypothesis import strategies as st

from streams_app.kafka.client import client_options
from streams_app.kafka.patches.record_batches import RecordBatches, use_record_batches
from streams_app.kafka.patches.records import FetchedRecords
from streams_app.native import NativeCore
from streams_app.settings import KafkaSettings
from tests.helpers.folding.native import required_core
from tests.helpers.kafka.records import batch, marker
from tests.helpers.kafka.topics import OddName

COMPRESSIONS = {"none": 0, "gzip": 1}


def with_odd_names(offsets: list[int], odd: set[int], compression: int = 0) -> bytes:
    builder = _DefaultRecordBatchBuilderPy(2, compression, 0, -1, -1, -1, 10**6)
    for offset in offsets:
        headers = [(OddName("x"), b"v"), ("h", b"x")] if offset in odd else [("h", b"x"), ("ü", None)]
        assert builder.append(offset, 1_000 + offset, b"k%d" % offset, b"v%d" % offset, headers) is not None
    return bytes(builder.build())


def legacy(base: int, count: int) -> bytes:
    builder = LegacyRecordBatchBuilder(1, 0, 10**6)
    for number in range(count):
        assert builder.append(base + number, 1_000, b"k", b"v") is not None
    return bytes(builder.build())


def fetched(
    data: bytes, position: int, aborted: list[tuple[int, int]] | None = None, kind: Any = RecordBatches
) -> PartitionRecords:
    return PartitionRecords(TopicPartition("t", 0), kind(data), aborted, position, None, None, True, READ_COMMITTED)


def with_attributes(attributes: int) -> bytes:
    data = bytearray(batch(0, [0, 1]))
    data[62] = attributes  # of the first record, after its length
    return bytes(data)


def unchecked(data: bytes) -> PartitionRecords:
    """Return the records of a batch whose checksum is wrong."""
    return PartitionRecords(TopicPartition("t", 0), RecordBatches(data), None, 0, None, None, False, READ_COMMITTED)


def comparable(record: Any) -> tuple[Any, ...]:
    return record.offset, record.timestamp, record.key, record.value, tuple(record.headers)


@pytest.fixture(scope="module", params=["python", "native"])
def core(request: pytest.FixtureRequest) -> NativeCore | None:
    return required_core() if request.param == "native" else None


batches = st.lists(
    st.tuples(st.integers(1, 5), st.integers(0, 3), st.sampled_from([0, 1]), st.sampled_from([-1, 7, 8]), st.booleans()), max_size=6
)


@given(batches, st.integers(0, 20), st.lists(st.integers(1, 7), min_size=1, max_size=4), st.booleans())
def test_records_and_positions_are_the_same_as_those_of_aiokafka(
    core: NativeCore | None, shapes: Any, position: int, sizes: list[int], is_aborting: bool
) -> None:
    data, base = b"", 0
    for count, gap, compression, producer, is_transactional in shapes:
        base += gap
        transactional = is_transactional and producer >= 0
        data += batch(base, list(range(count)), producer=producer, is_transactional=transactional, compression=compression)
        base += count
    aborted = [(7, 0)] if is_aborting else None
    theirs, ours = fetched(data, position, aborted, MemoryRecords), FetchedRecords(fetched(data, position, aborted), core)
    expected = [comparable(record) for record in theirs]
    found: list[tuple[Any, ...]] = []
    turn = 0
    while not ours.is_empty:
        found += map(comparable, ours.take(sizes[turn % len(sizes)]))
        turn += 1
        assert not found or ours.next_fetch_offset > found[-1][0]

    assert expected == found
    assert theirs.next_fetch_offset == ours.next_fetch_offset
    assert [] == ours.take(1)


@pytest.mark.parametrize("most", [1, 2, 3, 99])
def test_transaction_of_a_producer_after_an_aborted_one_is_read(core: NativeCore | None, most: int) -> None:
    data = b"".join(
        [
            batch(0, [0, 1], producer=7, is_transactional=True), marker(2, 7, is_abort=True),
            batch(3, [0, 1], producer=7, is_transactional=True), marker(5, 7, is_abort=False),
            batch(6, [0], producer=7, is_transactional=True), marker(7, 7, is_abort=True), batch(8, [0]),
        ]
    )  # fmt: skip
    aborted = [(7, 0), (7, 6)]
    theirs, ours = fetched(data, 0, aborted, MemoryRecords), FetchedRecords(fetched(data, 0, aborted), core)
    found = []
    while not ours.is_empty:
        found += [record.offset for record in ours.take(most)]

    assert [3, 4, 8] == found == [record.offset for record in theirs]
    assert 9 == ours.next_fetch_offset == theirs.next_fetch_offset


@pytest.mark.parametrize("most", [1, 2, 3, 99])
@pytest.mark.parametrize("compression", COMPRESSIONS.values(), ids=COMPRESSIONS)
@pytest.mark.parametrize("odd", [{0}, {2}, {4}, {1, 3}, {0, 1, 2, 3, 4}])
@pytest.mark.parametrize("position", [0, 3])
def test_header_name_that_is_not_utf_8_is_readable(
    core: NativeCore | None, odd: set[int], compression: int, most: int, position: int
) -> None:
    data = with_odd_names([0, 1, 2, 3, 4], odd, compression) + batch(5, [0, 1])
    ours, theirs = FetchedRecords(fetched(data, position), core), fetched(data, position)
    found: list[Any] = []
    while not ours.is_empty:
        found += ours.take(most)

    assert [comparable(record) for record in theirs] == [comparable(record) for record in found]
    expected = {record.offset: (("\\xff\\xfe odd", b"v"), ("h", b"x")) for record in found if record.offset in odd}
    usual = {record.offset: (("h", b"x"), ("ü", None)) for record in found if record.offset < 5 and record.offset not in odd}
    assert expected | usual == {record.offset: tuple(record.headers) for record in found if record.offset < 5}
    assert list(range(position, 7)) == [record.offset for record in found]


def test_every_client_reads_header_names_that_are_not_utf_8(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetcher, "MemoryRecords", MemoryRecords)
    client_options(KafkaSettings())

    assert fetcher.MemoryRecords is RecordBatches


def test_records_of_the_old_format_are_read(core: NativeCore | None) -> None:
    data = legacy(3, 2) + legacy(5, 2)

    assert [4, 5, 6] == [record.offset for record in FetchedRecords(fetched(data, 4), core).take(9)]


@pytest.mark.parametrize("make", [lambda: batch(0, [0, 1]), lambda: batch(0, [0, 1], compression=1), lambda: legacy(0, 1)])
@pytest.mark.parametrize("at", [-1, 18])
def test_wrong_checksum_is_an_error_and_does_not_advance_the_position(
    core: NativeCore | None, make: Callable[[], bytes], at: int
) -> None:
    broken = bytearray(make())
    broken[at] ^= 1
    records = FetchedRecords(fetched(bytes(broken) + batch(2, [2]), 0), core)
    for _ in range(2):
        with pytest.raises(CorruptRecordException):
            records.take(9)

        assert 0 == records.next_fetch_offset


@pytest.mark.parametrize("attributes", [0x00, 0x01, 0x7F])
def test_attributes_of_a_record_are_ignored(core: NativeCore | None, attributes: int) -> None:
    data = with_attributes(attributes)

    assert [0, 1] == [record.offset for record in FetchedRecords(unchecked(data), core).take(9)]


@pytest.mark.parametrize("attributes", [0x80, 0xEC, 0xFF])
def test_attributes_that_aiokafka_reads_as_several_bytes_are_an_error(core: NativeCore | None, attributes: int) -> None:
    with pytest.raises(CorruptRecordException):
        FetchedRecords(unchecked(with_attributes(attributes)), core).take(9)


def test_checksums_are_not_checked_if_the_consumer_disables_them(core: NativeCore | None) -> None:
    broken = bytearray(batch(0, [0, 1]))
    broken[18] ^= 1

    assert 2 == len(FetchedRecords(unchecked(bytes(broken)), core).take(9))


def test_fetcher_uses_the_patched_record_batches() -> None:
    use_record_batches()

    assert fetcher.MemoryRecords is RecordBatches


@pytest.mark.parametrize("left", [0, 1, 11, 12, 60, -1])
def test_truncated_batch_is_not_returned_yet(left: int) -> None:
    whole, cut = batch(0, [0, 1]), batch(2, [2, 3])[:left]
    ours, theirs = RecordBatches(whole + cut), MemoryRecords(whole + cut)
    assert theirs.has_next()
    assert ours.has_next()
    assert 0 == ours.next_batch().base_offset
    theirs.next_batch()

    assert not theirs.has_next()
    assert not ours.has_next()
    assert ours.next_batch() is None
    assert len(whole + cut) == theirs.size_in_bytes() == ours.size_in_bytes()


@pytest.mark.parametrize(("magic", "least"), [(0, 26), (1, 34), (2, 61), (3, 61)])
def test_smallest_batch_of_each_format_is_read(magic: int, least: int) -> None:
    data = bytearray(least)
    data[16] = magic
    struct.pack_into(">i", data, 8, least - 12)
    assert RecordBatches(bytes(data)).next_batch() is not None
    struct.pack_into(">i", data, 8, least - 13)
    with pytest.raises(CorruptRecordException, match=f"less than the {least} "):
        RecordBatches(bytes(data)).next_batch()


@pytest.mark.parametrize("length", [-(2**31), -60, -20, -1, 0, 4, 5, 48])
def test_batch_shorter_than_the_minimum_is_corrupt(length: int) -> None:
    data = bytearray(batch(0, list(range(20))))
    struct.pack_into(">i", data, 8, length)
    with pytest.raises(CorruptRecordException, match="a batch of"):
        RecordBatches(bytes(data)).next_batch()


@given(st.binary(max_size=200), st.sampled_from([0, 1, 2, 3, 255]))
def test_any_bytes_are_a_batch_or_corrupt(noise: bytes, magic: int) -> None:
    data = bytearray(batch(0, [0]) + noise)
    data[16] = magic
    batches = RecordBatches(bytes(data))
    with contextlib.suppress(CorruptRecordException):
        while batches.has_next():
            batches.next_batch()
            batches.is_intact()
