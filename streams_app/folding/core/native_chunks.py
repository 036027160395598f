"""Cuts the events of the native core into chunks; :class:`.ChunkCutter` is the reference (pure)."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from streams_app.folding.core.chunks import (
    MAX_EVENTS,
    MAX_HOLDS,
    MAX_NAMES_OF_RUNS,
    MAX_NEAR_EVENTS,
    MAX_RUNS,
    MAX_WIDE_RUNS,
    PAUSE_MS,
    Chunk,
    ChunkCutter,
    GroupRun,
)
from streams_app.folding.core.closing import Bounds
from streams_app.folding.core.shard_clock import RangeTime
from streams_app.native import NATIVE_ERROR, ColumnGroups, EventColumns

logger = logging.getLogger(__name__)


class CutLimits(NamedTuple):
    """The arguments of :meth:`.EventColumns.next_chunk`; times in ms.

    Attributes:
        gap_ms: Silence after which a new run begins; None if the backlog policy is ``merge``.
    """

    start_ms: int
    cap_ms: int
    gap_ms: int | None
    pause_ms: int
    hold_ms: int
    max_changed: int
    may_close_often: bool
    is_whole: bool
    max_events: int = MAX_EVENTS
    max_near_events: int = MAX_NEAR_EVENTS
    max_holds: int = MAX_HOLDS
    max_runs: int = MAX_RUNS
    max_wide_runs: int = MAX_WIDE_RUNS
    max_names_of_runs: int = MAX_NAMES_OF_RUNS


class NativeGroups(Mapping[bytes, list[GroupRun]]):
    """The groups of a chunk; runs become objects only for a group that is read by itself.

    Attributes:
        columns: The groups in the native core.
    """

    def __init__(self, columns: ColumnGroups) -> None:
        self.columns = columns

    def __len__(self) -> int:
        return len(self.columns)

    def __iter__(self) -> Iterator[bytes]:
        return iter(self.columns)

    def __getitem__(self, group: bytes) -> list[GroupRun]:
        return [GroupRun(*fields) for fields in self.columns.runs(group)]


class NativeChunkCutter:
    """Cuts the events of one fetched range into chunks, usually a single one."""

    def __init__(self, events: EventColumns, above: int, end: int, bounds: Bounds) -> None:
        self.above = above
        self.end = end
        self._events = events
        self._bounds = bounds
        self._reference: ChunkCutter | None = None

    def next(self, time: RangeTime, start_ms: int, *, is_whole: bool = False) -> Chunk:
        """Return the next chunk as :meth:`.ChunkCutter.next` does; after a fault of the native core, by that."""
        if self._reference is not None:
            chunk = self._reference.next(time, start_ms, is_whole=is_whole)
            self.above = chunk.to
            return chunk
        bounds, gap_ms = self._bounds, self._bounds.session_gap_ms
        limits = CutLimits(
            start_ms, time.cap_ms, gap_ms, PAUSE_MS if gap_ms is None else min(PAUSE_MS, gap_ms), bounds.hold_ms,
            min(bounds.max_changed, 2**31), bounds.may_close_often, is_whole,
        )  # fmt: skip
        try:
            to, clock_ms, events, groups, pauses, paused = self._events.next_chunk(self.end, limits)
        except NATIVE_ERROR:
            logger.exception("native core failed, a range is aggregated by Python")
            left = [event for event in self._events if event[0] > self.above]
            self._reference = ChunkCutter(left, self.above, self.end, bounds, keeps_values=False)
            return self.next(time, start_ms, is_whole=is_whole)
        chunk = Chunk(self.above, to, time, start_ms, clock_ms, events, NativeGroups(groups), pauses, paused)
        self.above = to
        return chunk
