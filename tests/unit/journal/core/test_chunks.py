"""Chunks of a journal: whatever a range holds, each record is in one chunk, and none reaches over the end of a segment."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from streams_app.events.headers import ERASURE
from streams_app.journal.core.block import MAX_CHUNK_BYTES, MAX_CHUNK_EVENTS, MAX_CHUNK_KEYS
from streams_app.journal.core.chunk import MAX_COUNTED, JournalChunk, JournalChunker, KeySizes, OpenSegment
from streams_app.journal.core.day import day_of
from streams_app.journal.core.entry import MAX_RECORD_KEY_BYTES, UNKEYED, Row, headers_with_key, record_key_of
from streams_app.schemas.values import ValueReader
from streams_app.settings import JournalSettings, Limits

DAY_MS = 86_400_000
NOW_MS = 20_000 * DAY_MS + DAY_MS // 2
TODAY = day_of(NOW_MS)
JOURNAL = JournalSettings(name="a", source="t", key="id")
K = (("\0", b"k"),)
"""The record key, as it is stored with an event."""


def record(offset: int, time_ms: int | None = NOW_MS, value: bytes = b'{"id": 1}') -> Any:
    return SimpleNamespace(offset=offset, timestamp=time_ms, key=b"k", value=value, headers=())


def chunks_of(
    records: list[Any], end: int, clock_ms: int = NOW_MS - DAY_MS, segment: OpenSegment | None = None, segment_bytes: int = 10**9
) -> list[JournalChunk]:
    """All chunks of a range, each made as its owner makes it."""
    chunker, found = JournalChunker(JOURNAL, Limits(), segment_bytes, 10**9), []
    fence = -1
    while fence < end - 1:
        left = [one for one in records if one.offset > fence]
        chunk = chunker.chunk_of(left, end, clock_ms, NOW_MS, segment)
        had = 0 if segment is None or chunk.begins else segment.received_bytes
        segment = OpenSegment(
            day_of(chunk.clock_ms) if segment is None or chunk.begins else segment.day, had + chunk.received_bytes
        )
        fence, clock_ms = chunk.to, chunk.clock_ms
        found.append(chunk)
    return found


def test_range_without_records_moves_the_fence_and_opens_a_segment_only_if_there_is_none() -> None:
    (first,) = chunks_of([], 7)
    (other,) = chunks_of([], 7, segment=OpenSegment(TODAY, 5))

    assert (6, True, []) == (first.to, first.begins, list(first.rows))
    assert (6, False, []) == (other.to, other.begins, list(other.rows))


def test_chunk_is_bounded_by_events_and_bytes_and_the_last_one_covers_skipped_offsets() -> None:
    small = chunks_of([record(offset) for offset in range(0, 2 * MAX_CHUNK_EVENTS, 2)], 2 * MAX_CHUNK_EVENTS + 50)
    large = chunks_of([record(offset, value=b'{"id": "%s"}' % (b"x" * MAX_CHUNK_BYTES)) for offset in range(3)], 3)

    assert [MAX_CHUNK_EVENTS] == [chunk.entries for chunk in small]
    assert 2 * MAX_CHUNK_EVENTS + 49 == small[-1].to
    assert [1, 1, 1] == [chunk.entries for chunk in large]
    assert [True, False, False] == [chunk.begins for chunk in large]


def test_chunk_is_bounded_by_its_keys() -> None:
    end = 2 * MAX_CHUNK_KEYS + 1
    found = chunks_of([record(offset, value=b'{"id": %d}' % offset) for offset in range(end)], end)

    assert [MAX_CHUNK_KEYS, MAX_CHUNK_KEYS, 1] == [len(chunk.rows) for chunk in found]
    assert [MAX_CHUNK_KEYS - 1, 2 * MAX_CHUNK_KEYS - 1, end - 1] == [chunk.to for chunk in found]


def test_chunk_keeps_each_record_under_its_key_and_counts_its_bytes() -> None:
    records = [record(0), record(1, value=b'{"id": "x"}'), record(2), record(3, value=b"{")]
    records[2].headers = [("h", b"abc"), ("none", None)]
    (chunk,) = chunks_of(records, 4)

    assert {
        b"j1": [(0, NOW_MS, b'{"id": 1}', K), (2, NOW_MS, b'{"id": 1}', (("h", b"abc"), ("none", None), *K))],
        b"sx": [(1, NOW_MS, b'{"id": "x"}', K)],
        b"": [(3, NOW_MS, b"{", K)],
    } == chunk.rows
    assert {b"j1": 2 * 11 + 8, b"sx": 13, b"": 1} == chunk.sizes
    assert (4, 44, records[3]) == (chunk.entries, chunk.received_bytes, chunk.last)


@pytest.mark.parametrize(
    ("key", "record_key", "value", "headers"),
    [
        ("id", b"x", b'{"id": "x"}', (("\0=", None),)),
        ("id", b"17", b'{"id": 17}', (("\0=", None),)),
        ("id", b"order_1", b'{"id": "x"}', (("\0", b"order_1"),)),
        ("id", b"", b'{"id": "x"}', (("\0", b""),)),
        ("id", None, b'{"id": "x"}', (("\0", None),)),
        ("id", b"x", None, (("\0", b"x"),)),
        ("id", b"x" * 10_001, None, ()),
        ("@key", b"x", b"no JSON", ()),
        ("@key", b"", None, (("\0", b""),)),
        ("@key", b"x" * 600, None, (("\0", b"x" * 600),)),
    ],
)
def test_record_key_is_stored_with_an_event_unless_it_is_the_key_of_the_journal(
    key: str, record_key: bytes | None, value: bytes | None, headers: Any
) -> None:
    journal = JournalSettings(name="a", source="t", key=key)
    one = SimpleNamespace(offset=0, timestamp=NOW_MS, key=record_key, value=value, headers=())
    chunk = JournalChunker(journal, Limits(), 10**9, 10**9).chunk_of([one], 1, NOW_MS, NOW_MS, None)
    ((of_journal, [short]),) = chunk.rows.items()
    row = Row._make((of_journal, *short) if len(short) == len(Row._fields) - 1 else (of_journal, *short, ()))

    assert headers == row.headers
    expected = None if len(record_key or b"") > MAX_RECORD_KEY_BYTES else record_key
    assert (expected, ()) == record_key_of(row, is_by_record_key=journal.is_by_record_key)


@pytest.mark.parametrize("key", ["@key", "id"])
def test_key_of_a_tombstone_of_forget_is_not_stored(key: str) -> None:
    journal = JournalSettings(name="a", source="t", key=key)
    one = SimpleNamespace(offset=0, timestamp=NOW_MS, key=b"person", value=None, headers=((ERASURE, b"1"),))
    chunk = JournalChunker(journal, Limits(), 10**9, 10**9).chunk_of([one], 1, NOW_MS, NOW_MS, None)

    assert ([UNKEYED], 1) == (list(chunk.rows), chunk.entries)
    assert "person" not in repr(chunk.rows)


def test_own_header_is_not_taken_for_the_record_key() -> None:
    headers = (("h", b"x"), ("\0", b"y"))
    row = Row(b"a", 0, NOW_MS, b"{}", headers_with_key(b"a", headers, b"a", is_by_record_key=True))

    assert (b"a", headers) == record_key_of(row, is_by_record_key=True)


def test_day_that_changes_within_a_range_starts_a_segment_in_a_separate_chunk() -> None:
    times = [NOW_MS - 2 * DAY_MS, NOW_MS - 2 * DAY_MS + 5, NOW_MS - DAY_MS, NOW_MS - 2 * DAY_MS, NOW_MS]
    found = chunks_of([record(offset, time_ms) for offset, time_ms in enumerate(times)], 5, clock_ms=0)

    # The fourth is late: it stands in the day in which it was read.
    assert [[0, 1], [2, 3], [4]] == [[offset for offset, *_ in chunk.rows[b"j1"]] for chunk in found]
    assert [True, True, True] == [chunk.begins for chunk in found]
    assert [day_of(NOW_MS - 2 * DAY_MS), day_of(NOW_MS - DAY_MS), TODAY] == [day_of(chunk.clock_ms) for chunk in found]


@pytest.mark.parametrize("time_ms", [None, -1, 0, 4_102_444_800_000], ids=["none", "negative", "1970", "2100"])
def test_implausible_record_time_moves_the_clock_at_most_to_the_wall_clock(time_ms: int | None) -> None:
    (chunk,) = chunks_of([record(0, time_ms)], 1, clock_ms=NOW_MS - 5, segment=OpenSegment(TODAY, 0))

    assert NOW_MS - 5 <= chunk.clock_ms <= NOW_MS
    assert [time_ms if time_ms is not None else -1] == [time for _, time, *_ in chunk.rows[b"j1"]]


def test_segment_ends_once_it_has_received_its_share() -> None:
    size = len(b'{"id": 1}') + len(b"j1")
    found = chunks_of([record(offset) for offset in range(10)], 10, segment_bytes=3 * size)

    assert [3, 3, 3, 1] == [chunk.entries for chunk in found]
    assert all(chunk.begins for chunk in found)


@pytest.mark.parametrize(("stored_bytes", "begins"), [(99, False), (100, True)])
def test_segment_ends_once_its_blocks_take_their_share(stored_bytes: int, begins: bool) -> None:
    chunk = JournalChunker(JOURNAL, Limits(), 10**9, 100).chunk_of(
        [record(0)], 1, NOW_MS, NOW_MS, OpenSegment(TODAY, 5, stored_bytes)
    )

    assert begins == chunk.begins


def test_unkeyed_records_are_counted_by_reason() -> None:
    values = [b"{", b"[]", b"{}", b'{"id": 1}']
    (chunk,) = chunks_of([record(offset, value=value) for offset, value in enumerate(values)], 4)

    assert {"not-json": 1, "not-an-object": 1, "no-key": 1} == dict(chunk.unkeyed)
    assert {b"": 3, b"j1": 1} == {key: len(rows) for key, rows in chunk.rows.items()}


def test_largest_keys_are_found_among_very_many_and_continue_from_stored_counts() -> None:
    largest = KeySizes([(b"known", 10_000)])
    for _ in range(50):
        largest.add({b"often": 105})
    for begin in range(0, 5 * MAX_COUNTED, 100):
        top = largest.add({b"k%d" % number: 6 for number in range(begin, begin + 100)})

    assert [(b"known", 10_000), (b"often", 50 * 105)] == list(top[:2])
    assert 10 == len(top)


def test_key_in_the_envelope_does_not_hide_the_key_in_the_event() -> None:
    change = record(0, value=b'{"id": "envelope", "op": "c", "after": {"id": "row"}}')
    chunker = JournalChunker(JOURNAL, Limits(), 10**9, 10**9, ValueReader("debezium"))

    assert {b"srow"} == chunker.chunk_of([change], 1, NOW_MS, NOW_MS, None).rows.keys()
