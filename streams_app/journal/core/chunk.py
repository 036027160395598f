"""A range of records as chunks that one script each files, none of which reaches over the end of a segment (pure)."""

from __future__ import annotations

from collections import Counter as Tally
from collections.abc import Sequence
from dataclasses import dataclass, field
from heapq import nlargest
from operator import itemgetter
from typing import Any, Final, NamedTuple

from streams_app.journal.core.block import MOST_CHUNK_BYTES, MOST_CHUNK_EVENTS
from streams_app.journal.core.day import clock_after, day_of, ends
from streams_app.journal.core.entry import Keyed, Row, row_of
from streams_app.settings import Limits

MOST_LARGEST: Final = 10
"""Keys that a segment names as its largest."""

MOST_COUNTED: Final = 1_000
"""Keys of the open segment whose bytes are counted: of more, those with the fewest bytes are forgotten."""


class Open(NamedTuple):
    """What is known of the open segment where a chunk is made.

    Attributes:
        day: Its UTC day.
        received_bytes: What it has received.
        stored_bytes: What its blocks take in Redis.
    """

    day: str
    received_bytes: int
    stored_bytes: int = 0


@dataclass(slots=True)
class Chunk:
    """Records that are filed together.

    Attributes:
        to: Its last offset; what the log skips before the next record belongs to that one.
        clock_ms: The clock of the shard after it.
        begins: Whether it begins a segment, as the one before is over or there is none.
        rows: What is kept of each record.
        received_bytes: Bytes of keys, values and headers.
        unkeyed: Reason → records without a key.
        last: The last of the records.
    """

    to: int
    clock_ms: int
    begins: bool
    rows: list[Row] = field(default_factory=list)
    received_bytes: int = 0
    unkeyed: Tally[str] = field(default_factory=Tally)
    last: Any = None

    @property
    def is_full(self) -> bool:
        """Whether it takes no further record."""
        return len(self.rows) >= MOST_CHUNK_EVENTS or self.received_bytes >= MOST_CHUNK_BYTES

    def add(self, record: Any, clock_ms: int, journal: Keyed, limits: Limits) -> None:
        """Takes the next record."""
        row, reason = row_of(record, journal, limits)
        if reason is not None:
            self.unkeyed[reason] += 1
        self.rows.append(row)
        self.received_bytes += received(row)
        self.to, self.clock_ms, self.last = record.offset, clock_ms, record


@dataclass(frozen=True, slots=True)
class Chunker:
    """Makes the chunks of one shard.

    Attributes:
        journal: What is the key of an event.
        limits: Of the application.
        segment_bytes: Received bytes after which a segment is over.
        stored_bytes: Bytes of its blocks in Redis after which it is over, too, once a chunk is written.
    """

    journal: Keyed
    limits: Limits
    segment_bytes: int
    stored_bytes: int

    def chunk_of(self, records: Sequence[Any], end: int, clock_ms: int, now_ms: int, segment: Open | None) -> Chunk:
        """The chunk with which a range begins; without records, what the range skips.

        Args:
            records: Of the range, in offset order.
            end: The offset after the range.
            clock_ms: The clock of the shard.
            now_ms: The trusted wall clock.
            segment: The open segment; None: there is none.
        """
        if not records:
            return Chunk(end - 1, clock_ms, segment is None)
        first_ms = clock_after(clock_ms, records[0].timestamp, now_ms)
        begins = segment is None or self._is_over(segment, first_ms)
        day, had = ("", 0) if begins or segment is None else segment[:2]
        chunk = Chunk(end - 1, clock_ms, begins)
        for record in records:
            record_ms = clock_after(chunk.clock_ms, record.timestamp, now_ms)
            if not chunk.rows and begins:
                day = day_of(record_ms)
            elif chunk.is_full or self._is_over(Open(day, had + chunk.received_bytes), record_ms):
                return chunk
            chunk.add(record, record_ms, self.journal, self.limits)
        chunk.to = end - 1
        return chunk

    def _is_over(self, segment: Open, clock_ms: int) -> bool:
        is_full = segment.stored_bytes >= self.stored_bytes
        return is_full or ends(segment.day, segment.received_bytes, clock_ms, self.segment_bytes)


class Largest:
    """The keys of the open segment with the most received bytes, as far as so many can be told apart."""

    def __init__(self, known: Sequence[tuple[bytes, int]] = ()) -> None:
        """Goes on with what a segment names."""
        self._sizes = dict(known)

    def add(self, rows: Sequence[Row]) -> tuple[tuple[bytes, int], ...]:
        """Takes what a chunk has; returns the largest keys, the largest first."""
        sizes = self._sizes
        for row in rows:
            sizes[row.key] = sizes.get(row.key, 0) + received(row)
        if len(sizes) > MOST_COUNTED:
            self._sizes = dict(nlargest(MOST_COUNTED // 2, sizes.items(), key=itemgetter(1)))
        return tuple(nlargest(MOST_LARGEST, self._sizes.items(), key=itemgetter(1)))


def received(row: Row) -> int:
    """Bytes of an entry as it was received."""
    return len(row.key) + len(row.value or b"") + sum(len(name) + len(content or b"") for name, content in row.headers)
