"""A claimed shard of a journal: the owner's copy of its state in Redis, and the operations that append to it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from streams_app.delivery.batch import TP
from streams_app.delivery.fingerprints import followed_by
from streams_app.journal.core.block import encode_by_key, stored_bytes
from streams_app.journal.core.chunk import JournalChunk, JournalChunker, KeySizes, OpenSegment
from streams_app.journal.core.day import day_of
from streams_app.journal.core.entry import PLAIN
from streams_app.journal.store.journal_store import JournalClaim, JournalStore
from streams_app.journal.store.segment import Form, Segment
from streams_app.schemas.values import ValueReader
from streams_app.settings import JournalSettings, Limits

FORMS: Final[tuple[Form, ...]] = ("raw", "packed", "gap")


@dataclass(frozen=True, slots=True)
class Filing:
    """An encoded chunk that is ready to be appended. The append is idempotent, and is repeated until Redis replies.

    ``blocks`` has one block for each key, and ``segment`` is the state of the segment after the append.
    """

    chunk: JournalChunk
    blocks: Sequence[bytes]
    segment: Segment


class JournalShard:
    """One claimed shard of a journal. Its processor appends to segments and closes them; its keeper packs and removes closed ones.

    Attributes:
        segments: All segments, the oldest first.
        clock_ms: Clock of the shard, which determines days and ages of segments.
        lag: Number of readable records that are not appended; None if unknown.
    """

    def __init__(
        self,
        journal: JournalSettings,
        tp: TP,
        partitions: int,
        limits: Limits,
        store: JournalStore,
        token: str,
        claimed: JournalClaim,
        values: ValueReader = PLAIN,
    ) -> None:
        self.journal = journal
        self.tp = tp
        self.partitions = partitions
        self.store = store
        self.segments = list(claimed.segments)
        self.fence = claimed.fence
        self.clock_ms = claimed.clock_ms
        self.lag: int | None = None
        self._token = token
        self._log = claimed.log
        sizes = journal.segment_bytes(partitions), journal.stored_segment_bytes(partitions)
        self._chunker = JournalChunker(journal, limits, *sizes, values)
        self._largest = KeySizes(self.open.largest if self.open is not None else ())

    @property
    def open(self) -> Segment | None:
        """The last segment if it can receive more events; None if the next event begins a new segment."""
        newest = self.segments[-1] if self.segments else None
        return None if newest is None or newest.is_closed or newest.form != "raw" else newest

    @property
    def floor(self) -> int:
        """First stored offset of the shard; the offset after the fence if there is no segment."""
        return self.segments[0].first if self.segments else self.fence + 1

    @property
    def closed(self) -> list[Segment]:
        return self.segments if self.open is None else self.segments[:-1]

    # ---- appending

    def filing_of(self, records: Sequence[object], end: int, now_ms: int) -> Filing:
        """Build and encode the first chunk of a range of records; it may cover only a part of the range, up to before ``end``.

        Call this once for each chunk, because it adds the bytes of the chunk to the counts of its keys. To retry the append, pass
        the same result to :meth:`write` again.
        """
        known = self.open
        segment = None if known is None else OpenSegment(known.day, known.received_bytes, known.stored_bytes)
        chunk = self._chunker.chunk_of(records, end, self.clock_ms, now_ms, segment)
        blocks = encode_by_key(chunk.rows)
        if known is None or chunk.begins:
            known = self._new_segment("raw", chunk.clock_ms)
            self._largest = KeySizes()
        return Filing(
            chunk,
            blocks,
            replace(
                known,
                entries=known.entries + chunk.entries,
                received_bytes=known.received_bytes + chunk.received_bytes,
                stored_bytes=known.stored_bytes + stored_bytes(blocks),
                newest_ms=chunk.clock_ms,
                largest=self._largest.add(chunk.sizes),
                last=chunk.to,
            ),
        )

    async def write(self, filing: Filing) -> None:
        """Append an encoded chunk to the state in Redis, then update this copy of the state."""
        log = self._log if filing.chunk.last is None else followed_by(self._log, filing.chunk.last)
        await self.store.append(self.fence, filing.chunk.to, filing.blocks, filing.segment, filing.chunk.clock_ms, log)
        self._log, self.clock_ms = log, filing.chunk.clock_ms
        self._set_last(filing.segment)

    async def skip(self, to: int) -> None:
        """Append a gap, from the offset after the fence up to and including ``to``, and move the fence to ``to``."""
        segment = replace(self._new_segment("gap", self.clock_ms), last=to, is_closed=True)
        await self.store.append(self.fence, to, (), segment, self.clock_ms, self._log)
        self._set_last(segment)

    async def close_day(self) -> None:
        """Close the open segment if its day is over, because an idle shard may get no event that begins the next segment."""
        known = self.open
        if known is None or day_of(self.clock_ms) <= known.day:
            return
        await self.store.close(known.first)
        self.replace_segment(replace(known, is_closed=True))

    # ---- changes by the keeper

    def replace_segment(self, segment: Segment) -> None:
        self.segments = [segment if one.first == segment.first else one for one in self.segments]

    def drop_segment(self, segment: Segment) -> None:
        self.segments = [one for one in self.segments if one.first != segment.first]

    def _new_segment(self, form: Form, clock_ms: int) -> Segment:
        """Create an empty segment after the fence, of the day of ``clock_ms``, or of the last segment if that is later."""
        day, newest = day_of(clock_ms), self.segments[-1] if self.segments else None
        day = day if newest is None else max(day, newest.day)
        part = newest.part + 1 if newest is not None and newest.day == day else 0
        return Segment(first=self.fence + 1, day=day, part=part, form=form, generation=self._token, newest_ms=clock_ms)

    def _set_last(self, segment: Segment) -> None:
        """Make a stored segment the last one, in place of its earlier state, and move the fence to its end."""
        assert segment.last is not None
        self.fence = segment.last
        if self.segments and self.segments[-1].first == segment.first:
            self.segments[-1] = segment
        else:
            self.segments.append(segment)
