"""Cuts ranges into chunks, and splits runs where a bound closes their group, for folds with ``keep = "events"`` (pure).

For *chunk* and *run*, see :mod:`streams_app.folding.core.chunks`. With ``keep = "events"``, a busy group may reach ``max_bytes`` in
nearly every chunk. Therefore, this module finds by binary search where a group closes. For all other folds,
:mod:`streams_app.folding.core.run_splitting` finds these places event by event.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from itertools import accumulate, pairwise
from typing import Final, NamedTuple, cast

from streams_app.folding.core.chunks import MAX_EVENTS, MAX_NEAR_EVENTS, PAUSE_MS, Chunk, ChunkCutter, GroupRun
from streams_app.folding.core.closing import Bounds
from streams_app.folding.core.event import DetailedEvent, ScoredEvent
from streams_app.folding.core.kept_events import SEPARATOR_BYTES
from streams_app.folding.core.model import OpenGroup
from streams_app.folding.core.shard_clock import RangeTime

MAX_KEPT: Final = 400_000
"""Maximum size of the events of one group in a chunk, in bytes, because one script writes all of them."""

MAX_RUNS: Final = 300
"""Maximum number of runs of one group in a chunk, because each of them may close the group."""


class KeptChunkCutter(ChunkCutter):
    """Cuts the events of one fetched range into chunks, for ``keep = "events"``. An event that closes its group ends a run."""

    def next(self, time: RangeTime, start_ms: int, *, is_whole: bool = False) -> Chunk:
        groups: dict[bytes, list[GroupRun]] = {}
        chunk = Chunk(self.above, self.end, time, start_ms, start_ms, 0, groups)
        clock, now, bounds = start_ms, time.cap_ms, self._bounds
        gap = bounds.quiet_ms if bounds.sessions else 2**62
        pause = min(PAUSE_MS, gap)
        max_events, max_kept, max_runs = MAX_EVENTS, MAX_KEPT, MAX_RUNS
        if bounds.may_close_often:
            max_events = MAX_NEAR_EVENTS
        if is_whole:
            max_events = max_kept = max_runs = 2**62
        totals: dict[bytes, list[int]] = {}
        count = 0
        for event in cast("Iterator[DetailedEvent]", self._events):
            offset, timestamp_ms, member, _, closes, json, shorter, _ = event
            clock = clock if clock >= timestamp_ms else timestamp_ms if timestamp_ms < now else max(now, clock)
            stamp = timestamp_ms if timestamp_ms >= 0 else clock
            count += 1
            size = len(json) + SEPARATOR_BYTES
            runs = groups.get(member)
            if runs is None:
                groups[member] = [self._run(event, stamp, clock, size, is_early=bounds.leading)]
                totals[member] = [1, size]
                continue
            run, total = runs[-1], totals[member]
            total[0] += 1
            total[1] += size
            since = clock - run.last_score
            begins = run.closes or since > gap - run.shorter_ms
            if begins or run.is_early:
                runs.append(self._run(event, stamp, clock, size, is_early=bounds.leading and begins))
            else:
                if since > pause:
                    chunk.pauses.append(since)
                    chunk.paused.append(member)
                run.last_offset, run.last_score, run.closes, run.shorter_ms = offset, clock, closes, shorter
                run.events += 1
                run.bytes_kept += size
                if stamp < run.low_ms:
                    run.low_ms = stamp
                elif stamp > run.high_ms:
                    run.high_ms = stamp
                cast("list[tuple[DetailedEvent, int]]", run.events_kept).append((event, clock))
            if total[0] >= max_events or total[1] >= max_kept or len(runs) >= max_runs:
                chunk.to = offset
                break
        self.above, chunk.clock_ms, chunk.events = chunk.to, clock, count
        return chunk

    @staticmethod
    def _run(event: DetailedEvent, stamp: int, clock: int, size: int, *, is_early: bool = False) -> GroupRun:
        offset, closes = event.offset, event.closes
        kept: list[tuple[ScoredEvent, int]] = [(event, clock)]
        return GroupRun(offset, offset, 1, stamp, stamp, clock, clock, {}, closes, kept, size, event.shorter_ms, is_early)


def split_kept_runs(runs: Sequence[GroupRun], open_group: OpenGroup | None, bounds: Bounds) -> list[GroupRun]:
    """Return the runs of a group, split wherever a bound closes the group, as :func:`.split_runs` does.

    Silence can close the group only between runs, not within one.
    """
    found: list[GroupRun] = []
    behind = -1 if open_group is None else open_group.last_offset
    state = None
    if open_group is not None:
        silent_ms = open_group.score_ms - open_group.shorter_ms
        state = _OpenGroupCounters(open_group.opened_ms, silent_ms, open_group.events, open_group.bytes_kept)
    for run in runs:
        pairs = cast("list[tuple[DetailedEvent, int]]", run.events_kept)
        begin = sum(event.offset <= behind for event, _ in pairs) if run.first_offset <= behind else 0
        if begin:
            found.append(_part_of(pairs[:begin]))
            found[-1].closes = False
        scores = [score for _, score in pairs]
        totals = [0, *accumulate(len(event.json) + SEPARATOR_BYTES for event, _ in pairs)]
        while begin < len(pairs):
            if state is not None and bounds.closes_before(state.opened_ms, state.silent_ms, scores[begin]):
                state = None
            if state is not None and not state.events:
                state = state._replace(opened_ms=scores[begin])
            is_alone = state is not None and state.kept + totals[begin + 1] - totals[begin] > bounds.max_bytes
            if (state is None or is_alone) and bounds.leading and not pairs[begin][0].closes:
                found.append(_part_of(pairs[begin : begin + 1]))
                state = _OpenGroupCounters(scores[begin], _silent_ms(pairs[begin]), 0, 0)
                begin += 1
                continue
            if state is None or is_alone:
                state = _OpenGroupCounters(scores[begin], scores[begin], 0, 0)
            left = bounds.events_left(state.events)
            end = min(
                bisect_right(totals, totals[begin] + bounds.max_bytes - state.kept) - 1,
                bisect_left(scores, state.opened_ms + bounds.hold_ms),
                len(pairs) if left is None else begin + left,
            )
            cuts = (begin, begin + 1, end) if is_alone and end > begin + 1 else (begin, end)
            found += [_part_of(pairs[low:high]) for low, high in pairwise(cuts)]
            events, kept = state.events + end - begin, state.kept + totals[end] - totals[begin]
            state = _OpenGroupCounters(state.opened_ms, _silent_ms(pairs[end - 1]), events, kept)
            if bounds.reached_by(state.events, closes=found[-1].closes) is not None:
                state = None
            begin = end
    return found


class _OpenGroupCounters(NamedTuple):
    """Counters of an open group while its runs are split; ``silent_ms`` is as :func:`_silent_ms` returns it, ``kept`` in bytes."""

    opened_ms: int
    silent_ms: int
    events: int
    kept: int


def _silent_ms(pair: tuple[DetailedEvent, int]) -> int:
    """Return the time after which the longest quiet period of the fold has to pass until silence closes the group."""
    event, score = pair
    return score - event.shorter_ms


def _part_of(pairs: list[tuple[DetailedEvent, int]]) -> GroupRun:
    (first, first_score), (last, last_score) = pairs[0], pairs[-1]
    stamps = [event.timestamp_ms if event.timestamp_ms >= 0 else score for event, score in pairs]
    size = sum(len(event.json) for event, _ in pairs) + SEPARATOR_BYTES * len(pairs)
    kept: list[tuple[ScoredEvent, int]] = [*pairs]
    return GroupRun(
        first.offset, last.offset, len(pairs), min(stamps), max(stamps), first_score, last_score, {}, last.closes, kept, size,
        last.shorter_ms,
    )  # fmt: skip
