"""Logs of events for a sample of groups, and the expected statistics."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator, Sequence

from streams_app.folding.core.chunks import Chunk, ChunkCutter
from streams_app.folding.core.closing import Bounds
from streams_app.folding.core.event import PlainEvent as Event
from streams_app.folding.core.group_sample import ObservedGroups
from streams_app.folding.core.shard_clock import RangeTime
from streams_app.health.metric_table import GAP_BUCKETS

BOUNDS_MS = [seconds * 1_000 for seconds in GAP_BUCKETS]

LATE = 10**15

SECOND, MINUTE, DAY = 1_000, 60_000, 86_400_000

GROUPS = [b"sa", b"sb", b"sc"]


def bounds(quiet_ms: int = 10 * SECOND, hold_ms: int = 60 * SECOND, max_events: int = 0, *, sessions: bool = True) -> Bounds:
    return Bounds(quiet_ms, hold_ms, max_events, 10_000, sessions)


def cut(events: Sequence[Event], ends: Sequence[int], session_gap_ms: int | None, start_ms: int = 0) -> list[Chunk]:
    """Return the events as chunks that end at these offsets."""
    chunks: list[Chunk] = []
    above = -1
    for end in ends:
        part = [event for event in events if above < event[0] <= end]
        bounds = Bounds(session_gap_ms or 0, hold_ms=LATE, sessions=session_gap_ms is not None)
        cutter = ChunkCutter(part, above, end, bounds, keeps_values=False)
        chunks.append(cutter.next(RangeTime(LATE, None), chunks[-1].clock_ms if chunks else start_ms))
        above = end
    return chunks


def log_of(steps: Sequence[tuple[int, bytes]], start_ms: int = DAY) -> list[Event]:
    """Return one event for each step: ms since the previous one, and its group."""
    events: list[Event] = []
    at_ms = start_ms
    for offset, (step_ms, group) in enumerate(steps):
        at_ms += step_ms
        events.append((offset, at_ms, group, {"n": 1}))
    return events


def added(seen: Iterator[ObservedGroups] | Sequence[ObservedGroups]) -> tuple[list[int], int, int, int]:
    """Return counts of gaps, their sum, groups begun, split folds."""
    counts, total, begun, split = [0] * (len(BOUNDS_MS) + 1), 0, 0, 0
    for each in seen:
        counts = [a + b for a, b in zip(counts, each.gaps.counts, strict=True)]
        total, begun, split = total + each.gaps.total_ms, begun + each.begun, split + each.split
    return counts, total, begun, split


def recomputed(events: Sequence[Event]) -> tuple[list[int], int, int]:
    """Compute counts of gaps, their sum and groups, one event at a time."""
    last: dict[bytes, int] = {}
    gaps = []
    clock = 0
    for _, at_ms, group, _ in events:
        clock = max(clock, at_ms)
        if group in last:
            gaps.append(clock - last[group])
        last[group] = clock
    counts = Counter(bisect_left(BOUNDS_MS, gap) for gap in gaps)
    return [counts[bucket] for bucket in range(len(BOUNDS_MS) + 1)], sum(gaps), len(last)
