"""The marks of one partition as its owner knows them."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping

from streams_app.delivery.group_consumer import Committed
from streams_app.delivery.offset_metadata import commit_of, raised
from streams_app.delivery.processor import OffsetAndMetadata
from streams_app.delivery.ranges import Served


class PartitionOffsets:
    """The marks of one partition.

    Attributes:
        marks: Name → the mark that is committed, or will be with the next commit; also names without a processor here.
        committed: What the broker holds.
        beginning: The processors whose first mark is not known yet.
    """

    def __init__(self) -> None:
        """Nothing is committed."""
        self.marks: dict[str, OffsetAndMetadata] = {}
        self.committed: Committed | None = None
        self.beginning = FirstCommitBarrier()

    def found(self, committed: Committed, marks: Mapping[str, OffsetAndMetadata]) -> None:
        """Begins with the commit that the broker holds, and the mark in it for each name."""
        self.marks = dict(marks)
        self.committed = commit_of(marks) if marks else committed

    def note(self, lows: Mapping[str, OffsetAndMetadata]) -> Committed:
        """Raises the marks to low watermarks that have just been read; returns what is to be committed."""
        self.marks = raised(self.marks, lows)
        return commit_of(self.marks)

    def went_back(self, name: str, common: int) -> None:
        """The log has lost what stood from an offset on: a mark above it speaks of what is gone."""
        if name in self.marks and self.marks[name].offset > common:
            self.marks[name] = self.marks[name]._replace(offset=common)

    async def low(self, served: Mapping[str, Served]) -> Committed | None:
        """Asks all processors for their marks; returns what may be committed now, None if a processor has no state."""
        lows: dict[str, OffsetAndMetadata] = {}
        for name, one in served.items():
            mark = await one.processor.mark()
            if mark is None:
                return None
            lows[name] = mark
        return self.note(lows)


class FirstCommitBarrier:
    """Lets no new processor commit its first mark before the first marks of all are known.

    A broker that keeps no metadata knows the committed offset only: if one processor committed alone, its mark would be taken for
    that of the others, which may begin below it.
    """

    def __init__(self) -> None:
        """No processor is new yet."""
        self._awaited: set[str] = set()
        self._known = asyncio.Event()
        self._known.set()

    def expect(self, names: Collection[str]) -> None:
        """Names the processors whose first mark is not known yet."""
        self._awaited = set(names)
        if self._awaited:
            self._known.clear()

    def leave(self, name: str) -> None:
        """Waits for this processor no longer: its first mark is known, or its claim has ended without one."""
        self._awaited.discard(name)
        if not self._awaited:
            self._known.set()

    async def told(self, name: str) -> None:
        """Notes that the first mark of this processor is known; returns when those of all are."""
        self.leave(name)
        await self._known.wait()
