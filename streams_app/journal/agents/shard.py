"""The state of one shard of a journal, as its owner knows it: what was claimed, and what has been filed since."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from streams_app.delivery.batch import TP
from streams_app.delivery.fingerprints import followed_by
from streams_app.journal.core.block import encode_by_key, stored_bytes
from streams_app.journal.core.chunk import Chunk, Chunker, Largest, Open
from streams_app.journal.core.day import day_of
from streams_app.journal.store.journal_store import Claimed, Form, JournalStore, Segment
from streams_app.settings import JournalSettings, Limits

FORMS: Final[tuple[Form, ...]] = ("raw", "packed", "gap")


@dataclass(frozen=True, slots=True)
class Filing:
    """A chunk as it is written; it may be written several times, until its reply has come.

    Attributes:
        chunk: What is written.
        blocks: Its members.
        segment: Its segment as it is afterwards.
    """

    chunk: Chunk
    blocks: Sequence[bytes]
    segment: Segment


class Shard:
    """One shard in the hands of one claim. Its filing task appends and closes; its keeper swaps and drops what is closed.

    Attributes:
        journal: The journal.
        tp: Its partition of the source.
        partitions: How many partitions share it.
        store: Its state in Redis.
        segments: From the oldest to the newest.
        fence: Highest offset that is filed.
        clock_ms: By which days begin, and what is old is judged.
        lag: Records that can be read and are not filed; None: nobody knows.
    """

    def __init__(
        self, journal: JournalSettings, tp: TP, partitions: int, limits: Limits, store: JournalStore, token: str, claimed: Claimed
    ) -> None:
        """Goes on with what was claimed.

        Args:
            journal: The journal.
            tp: Its partition of the source.
            partitions: How many partitions share it.
            limits: Of the application.
            store: Its state in Redis.
            token: Of the claim.
            claimed: What was found.
        """
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
        self._chunker = Chunker(journal, limits, journal.segment_bytes(partitions), journal.stored_segment_bytes(partitions))
        self._largest = Largest(self.open.largest if self.open is not None else ())

    @property
    def open(self) -> Segment | None:
        """The segment that takes what comes next; None: that begins another one."""
        newest = self.segments[-1] if self.segments else None
        return None if newest is None or newest.is_closed or newest.form != "raw" else newest

    @property
    def floor(self) -> int:
        """First offset that is kept; behind the fence where nothing is."""
        return self.segments[0].first if self.segments else self.fence + 1

    @property
    def closed(self) -> list[Segment]:
        """The segments that take nothing any more, from the oldest to the newest."""
        return self.segments if self.open is None else self.segments[:-1]

    # ---- filing

    def filing_of(self, records: Sequence[object], end: int, now_ms: int) -> Filing:
        """What is to be written next of a range, see :meth:`.Chunker.chunk_of`."""
        known = self.open
        segment = None if known is None else Open(known.day, known.received_bytes, known.stored_bytes)
        chunk = self._chunker.chunk_of(records, end, self.clock_ms, now_ms, segment)
        blocks = encode_by_key(chunk.rows)
        if known is None or chunk.begins:
            known = self._begun("raw", chunk.clock_ms)
            self._largest = Largest()
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
        """Files a chunk.

        Raises:
            FencedError: Another owner, or Redis has lost what it had; nothing was written.
        """
        log = self._log if filing.chunk.last is None else followed_by(self._log, filing.chunk.last)
        await self.store.append(self.fence, filing.chunk.to, filing.blocks, filing.segment, filing.chunk.clock_ms, log)
        self._log, self.clock_ms = log, filing.chunk.clock_ms
        self._took(filing.segment)

    async def skip(self, to: int) -> None:
        """Files that the offsets up to one are gone.

        Raises:
            FencedError: As in :meth:`write`.
        """
        segment = replace(self._begun("gap", self.clock_ms), last=to, is_closed=True)
        await self.store.append(self.fence, to, (), segment, self.clock_ms, self._log)
        self._took(segment)

    async def close_day(self) -> None:
        """Closes the open segment once its day is over: nothing may come for long that would begin the next.

        Raises:
            FencedError: As in :meth:`write`.
        """
        known = self.open
        if known is None or day_of(self.clock_ms) <= known.day:
            return
        await self.store.close(known.first)
        self.replaced(replace(known, is_closed=True))

    # ---- what its keeper has done

    def replaced(self, segment: Segment) -> None:
        """A segment is as this one says now."""
        self.segments = [segment if one.first == segment.first else one for one in self.segments]

    def dropped(self, segment: Segment) -> None:
        """A segment is gone."""
        self.segments = [one for one in self.segments if one.first != segment.first]

    def _begun(self, form: Form, clock_ms: int) -> Segment:
        """A segment that begins behind the fence."""
        day, newest = day_of(clock_ms), self.segments[-1] if self.segments else None
        day = day if newest is None else max(day, newest.day)
        part = newest.part + 1 if newest is not None and newest.day == day else 0
        return Segment(first=self.fence + 1, day=day, part=part, form=form, generation=self._token, newest_ms=clock_ms)

    def _took(self, segment: Segment) -> None:
        assert segment.last is not None
        self.fence = segment.last
        if self.segments and self.segments[-1].first == segment.first:
            self.segments[-1] = segment
        else:
            self.segments.append(segment)
