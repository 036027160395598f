"""Divides a range of records into chunks; one script call appends a chunk to one segment (pure)."""

from __future__ import annotations

from collections import Counter as Tally
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from heapq import nlargest
from operator import itemgetter
from typing import Any, Final, NamedTuple

from streams_app.journal.core.block import MAX_CHUNK_BYTES, MAX_CHUNK_EVENTS, MAX_CHUNK_KEYS, ShortRow, short_of
from streams_app.journal.core.day import clock_after, day_of, ends
from streams_app.journal.core.entry import PLAIN, SAME_KEY, KeySettings, Row, headers_with_key, row_of, without_erased_key
from streams_app.journal.core.usual import UsualKeys
from streams_app.schemas.values import ValueReader
from streams_app.settings import Limits

MAX_LARGEST: Final = 10
"""Maximum number of keys in a segment's list of largest keys."""

MAX_COUNTED: Final = 1_000
"""Maximum number of keys of the open segment whose bytes are counted. Beyond it, only the 500 largest keys keep their count."""


class OpenSegment(NamedTuple):
    """The properties of the open segment that determine whether the next chunk is appended to it; as in :class:`.Segment`."""

    day: str
    received_bytes: int
    stored_bytes: int = 0


@dataclass(slots=True)
class JournalChunk:
    """The records of consecutive offsets that one script call appends to one segment.

    Attributes:
        to: Last offset that the chunk covers. Offsets without a record between two chunks belong to the second one.
        clock_ms: Clock of the shard after the chunk.
        begins: Whether the chunk begins a new segment.
        rows: The rows of each key, in the order of their offsets.
        sizes: Received bytes of each key, in the keys, values and headers of its records.
        unkeyed: Number of records without a usable key, for each reason.
    """

    to: int
    clock_ms: int
    begins: bool
    rows: dict[bytes, list[ShortRow]] = field(default_factory=lambda: defaultdict(list))
    sizes: dict[bytes, int] = field(default_factory=lambda: defaultdict(int))
    entries: int = 0
    received_bytes: int = 0
    unkeyed: Tally[str] = field(default_factory=Tally)
    last: Any = None


class JournalChunker:
    """Builds the chunks that are appended to one shard.

    A segment ends after ``segment_bytes`` received bytes, or once its blocks have ``stored_bytes`` in Redis.
    """

    def __init__(
        self, journal: KeySettings, limits: Limits, segment_bytes: int, stored_bytes: int, values: ValueReader = PLAIN
    ) -> None:
        self._journal = journal
        self._limits = limits
        self._segment_bytes = segment_bytes
        self._stored_bytes = stored_bytes
        self._values = values
        self._usual_key_of = UsualKeys(journal, limits).of if values is PLAIN or journal.is_by_record_key else _never_usual

    def chunk_of(self, records: Sequence[Any], end: int, clock_ms: int, now_ms: int, segment: OpenSegment | None) -> JournalChunk:
        """Build the first chunk of a range of records; its ``to`` shows where the next chunk begins.

        If there are no records, the chunk is empty and covers the whole range. ``clock_ms`` is the shard's clock before the chunk.
        """
        if not records:
            return JournalChunk(end - 1, clock_ms, segment is None)
        first_ms = clock_after(clock_ms, records[0].timestamp, now_ms)
        if segment is None or self._is_over(segment, first_ms):
            chunk, day, left_bytes = JournalChunk(end - 1, clock_ms, True), day_of(first_ms), self._segment_bytes
        else:
            chunk, day, left_bytes = (
                JournalChunk(end - 1, clock_ms, False),
                segment.day,
                self._segment_bytes - segment.received_bytes,
            )
        self._fill(chunk, _of_day(records[:MAX_CHUNK_EVENTS], day, clock_ms, now_ms), max(1, min(left_bytes, MAX_CHUNK_BYTES)))
        chunk.clock_ms = clock_after(clock_ms, chunk.clock_ms, now_ms)
        if chunk.entries < len(records):
            chunk.to = chunk.last.offset
        return chunk

    def _fill(self, chunk: JournalChunk, records: Sequence[Any], max_bytes: int) -> None:
        """Add records to a chunk until it is full. Set its clock to the newest record time, even if that time is in the future.

        The loop runs for every event, so it uses local names, and creates only objects that are stored.
        """
        rows, sizes, key_of, is_by_record_key = chunk.rows, chunk.sizes, self._usual_key_of, self._journal.is_by_record_key
        newest_ms, count, received_bytes = chunk.clock_ms, 0, 0
        for record in records:
            if received_bytes >= max_bytes or len(rows) >= MAX_CHUNK_KEYS:
                break
            key = key_of(record)
            if key is not None:
                time_ms, value = record.timestamp, record.value
                if time_ms is None:
                    time_ms = -1
                if is_by_record_key:
                    rows[key].append((record.offset, time_ms, value))
                elif record.key == key[1:]:
                    rows[key].append((record.offset, time_ms, value, SAME_KEY))
                else:
                    headers = headers_with_key(key, (), record.key, is_by_record_key=False)
                    rows[key].append((record.offset, time_ms, value, headers) if headers else (record.offset, time_ms, value))
                size = len(key) + len(value)
            else:
                stored = without_erased_key(record)
                row, reason = row_of(stored, self._journal, self._limits, self._values)
                if reason is not None:
                    chunk.unkeyed[reason] += 1
                key, time_ms, size = row.key, row.time_ms, received(row)
                headers = headers_with_key(key, row.headers, stored.key, is_by_record_key=is_by_record_key)
                rows[key].append(short_of(row._replace(headers=headers)))
            sizes[key] += size
            received_bytes += size
            if time_ms > newest_ms:  # noqa: PLR1730  # a call of max() takes three times as long
                newest_ms = time_ms
            count += 1
        chunk.last = records[count - 1]
        chunk.clock_ms, chunk.entries, chunk.received_bytes = newest_ms, count, received_bytes

    def _is_over(self, segment: OpenSegment, clock_ms: int) -> bool:
        is_full = segment.stored_bytes >= self._stored_bytes
        return is_full or ends(segment.day, segment.received_bytes, clock_ms, self._segment_bytes)


def _never_usual(record: Any) -> None:
    """Return None for every record: the fast path finds no keys in formats other than plain JSON."""


def _of_day(records: Sequence[Any], day: str, clock_ms: int, now_ms: int) -> Sequence[Any]:
    """Return the records before the first one that advances the clock of the shard to a day after ``day``."""
    newest_ms = max([time_ms for record in records if (time_ms := record.timestamp) is not None], default=None)
    if day_of(clock_after(clock_ms, newest_ms, now_ms)) <= day:
        return records
    for at, record in enumerate(records):
        clock_ms = clock_after(clock_ms, record.timestamp, now_ms)
        if day_of(clock_ms) > day:
            return records[:at]
    return records


class KeySizes:
    """Counts the received bytes of the keys of the open segment, to find the largest keys.

    The counts are approximate if the segment has more than :data:`MAX_COUNTED` keys.
    """

    def __init__(self, known: Sequence[tuple[bytes, int]] = ()) -> None:
        self._sizes = dict(known)

    def add(self, received_bytes: Mapping[bytes, int]) -> tuple[tuple[bytes, int], ...]:
        """Add the received bytes of each key of a chunk; return the largest keys with their received bytes, the largest first."""
        sizes = self._sizes
        for key, size in received_bytes.items():
            sizes[key] = sizes.get(key, 0) + size
        if len(sizes) > MAX_COUNTED:
            self._sizes = dict(nlargest(MAX_COUNTED // 2, sizes.items(), key=itemgetter(1)))
        return tuple(nlargest(MAX_LARGEST, self._sizes.items(), key=itemgetter(1)))


def received(row: Row) -> int:
    """Return the number of bytes in key, value and headers of an event."""
    return len(row.key) + len(row.value or b"") + sum(len(name) + len(content or b"") for name, content in row.headers)
