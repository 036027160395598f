"""Cuts the events of a range into chunks, for folds that read more of an event than its changed names but keep no events (pure).

The cutter in :mod:`streams_app.folding.core.chunks` does the same for folds that read only changed names. That cutter is one loop
without calls, because its speed limits the throughput of live traffic.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator
from typing import Any, Final, cast

from streams_app.folding.core.aggregates import Aggregates
from streams_app.folding.core.chunks import MAX_EVENTS, MAX_NEAR_EVENTS, PAUSE_MS, Chunk, ChunkCutter, GroupRun
from streams_app.folding.core.event import DetailedEvent, ScoredEvent
from streams_app.folding.core.shard_clock import RangeTime

GROUP_WORK: Final = 8_000
"""Maximum work of one group in a chunk, in microseconds of Redis time, because one script does all of it."""

RUN_WORK: Final = 30
"""Work of one run, which may close the group, in microseconds of Redis time."""


class DetailedChunkCutter(ChunkCutter):
    """Cuts :class:`.DetailedEvent` objects of one fetched range into chunks. An event that closes its group ends a run."""

    def next(self, time: RangeTime, start_ms: int, *, is_whole: bool = False) -> Chunk:
        self._groups: dict[bytes, list[GroupRun]] = {}
        chunk = Chunk(self.above, self.end, time, start_ms, start_ms, 0, self._groups)
        work: dict[bytes, float] = defaultdict(float)
        most = math.inf if is_whole else GROUP_WORK
        for event in cast("Iterator[DetailedEvent]", self._events):
            chunk.clock_ms = max(chunk.clock_ms, min(event.timestamp_ms, time.cap_ms))
            chunk.events += 1
            work[event.group] += self._add(chunk, event)
            if work[event.group] >= most:
                chunk.to = event.offset
                break
        self.above = chunk.to
        return chunk

    def _add(self, chunk: Chunk, event: DetailedEvent) -> float:
        """Add an event to the runs of its group; return the work that the event adds, in microseconds of Redis time."""
        clock, bounds = chunk.clock_ms, self._bounds
        stamp = event.timestamp_ms if event.timestamp_ms >= 0 else clock
        runs = self._groups.setdefault(event.group, [])
        run = runs[-1] if runs else None
        work = len(event.names) + GROUP_WORK / (MAX_NEAR_EVENTS if bounds.may_close_often else MAX_EVENTS)
        if run is None or run.closes or (bounds.sessions and clock - run.last_score > bounds.quiet_ms - run.shorter_ms):
            runs.append(run_of(event, stamp, clock, bounds.aggregates))
            runs[-1].is_early = bounds.leading
            return work + RUN_WORK
        if run.is_early:
            runs.append(run_of(event, stamp, clock, bounds.aggregates))
            return work + RUN_WORK
        if (since := clock - run.last_score) > PAUSE_MS:
            chunk.pauses.append(since)
            chunk.paused.append(event.group)
        extend(run, event, stamp, clock, bounds.aggregates)
        return work


def run_of(event: ScoredEvent, stamp_ms: int, score_ms: int, aggregates: Aggregates | None) -> GroupRun:
    """Create a run that has a single event; ``stamp_ms`` is the timestamp of its record, or the score if it has none."""
    names = dict(event.changed) if aggregates is None else aggregates.begun(event.changed)
    ids: list[bytes | int] | None = [event.id, event.offset] if event.id else None
    return GroupRun(
        event.offset, event.offset, 1, stamp_ms, stamp_ms, score_ms, score_ms, names, event.closes, shorter_ms=event.shorter_ms,
        ids=ids,
    )  # fmt: skip


def extend(run: GroupRun, event: ScoredEvent, stamp_ms: int, score_ms: int, aggregates: Aggregates | None) -> None:
    """Add the next event of the same group to ``run``; the arguments are those of :func:`run_of`."""
    run.last_offset, run.last_score, run.closes, run.shorter_ms = event.offset, score_ms, event.closes, event.shorter_ms
    run.events += 1
    if run.ids is not None:
        run.ids += (event.id, event.offset)
    run.low_ms, run.high_ms = min(run.low_ms, stamp_ms), max(run.high_ms, stamp_ms)
    names = cast("dict[str, Any]", run.names)
    if aggregates is None:
        names.update(event.changed)
    else:
        aggregates.join(names, event.changed)
