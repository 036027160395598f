"""Committed and pending offsets of each processor of a partition. Each processor decides its own low watermark."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping

from streams_app.delivery.group_consumer import PartitionCommit
from streams_app.delivery.offset_metadata import OffsetAndMetadata, commit_of, raised
from streams_app.delivery.ranges import ServedProcessor


class PartitionOffsets:
    """Tracks the offset of each processor of one partition, and builds the next commit.

    Attributes:
        by_name: Offset and metadata by processor name, as they are committed or will be with the next commit. Names without a
            processor in this worker are included.
        committed: The commit that the broker stores; None if that is unknown.
    """

    def __init__(self) -> None:
        self.by_name: dict[str, OffsetAndMetadata] = {}
        self.committed: PartitionCommit | None = None
        self.first_commit = FirstCommitBarrier()

    def restore(self, committed: PartitionCommit, by_name: Mapping[str, OffsetAndMetadata]) -> None:
        """Set the offsets to ``by_name``, which was read from ``committed``."""
        self.by_name = dict(by_name)
        self.committed = commit_of(by_name) if by_name else committed

    def raise_to(self, lows: Mapping[str, OffsetAndMetadata]) -> PartitionCommit:
        """Raise the offsets to low watermarks that have just been read, and return the next commit."""
        self.by_name = raised(self.by_name, lows)
        return commit_of(self.by_name)

    def went_back(self, name: str, common: int) -> None:
        """If the offset of a processor is above ``common``, where the log was truncated, lower it to ``common``."""
        if name in self.by_name and self.by_name[name].offset > common:
            self.by_name[name] = self.by_name[name]._replace(offset=common)

    async def low(self, served: Mapping[str, ServedProcessor]) -> PartitionCommit | None:
        """Raise the offsets to the current low watermarks, and return the next commit; None if a processor has no state yet."""
        lows: dict[str, OffsetAndMetadata] = {}
        for name, one in served.items():
            position = await one.processor.position_to_commit()
            if position is None:
                return None
            lows[name] = position
        return self.raise_to(lows)


class FirstCommitBarrier:
    """Delays the first commit of a new processor until the initial offsets of all new processors are known.

    A broker without commit metadata stores only the lowest offset. If one processor committed alone, the others would start
    at the offset of that processor, which may be above their own.
    """

    def __init__(self) -> None:
        self._awaited: set[str] = set()
        self._known = asyncio.Event()
        self._known.set()

    def expect(self, names: Collection[str]) -> None:
        self._awaited = set(names)
        if self._awaited:
            self._known.clear()

    def discard(self, name: str) -> None:
        """Stop waiting for a processor: its initial offset is known, or its claim ended without one."""
        self._awaited.discard(name)
        if not self._awaited:
            self._known.set()

    async def announce(self, name: str) -> None:
        """Record that the initial offset of a processor is known, and wait for those of the other new processors."""
        self.discard(name)
        await self._known.wait()
