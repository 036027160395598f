"""Makes runs of the events of a fetched range, group by group, before Redis sees them (pure).

A *run* is what neighbouring events of one group add to its open fold. Most groups of a range are one run; with ``sessions`` a gap
longer than the quiet period begins a new one. How runs become the arguments of a script is in
:mod:`streams_app.folding.store.arguments`.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec

from streams_app.folding.core.closing import Bounds
from streams_app.folding.core.event import Event
from streams_app.folding.core.names import mask_of, names_of_mask, size_of, unmasked
from streams_app.folding.core.shard_clock import RangeTime

MOST_EVENTS: Final = 20_000
"""Most events in one run, as one script does all that a chunk does to a group."""

MOST_NEAR_EVENTS: Final = 1_000
"""Most events in one run where bounds may close the group very often: one script closes it so many times in some 10 ms."""

MOST_HOLDS: Final = 300
"""Where a run lasts so many times as long as max hold, the group closes very often."""

MOST_RUNS: Final = 1_000
"""Most runs of one group in a chunk, as one script folds them all."""

MOST_WIDE_RUNS: Final = 100
"""After so many runs, and each time again, the names of all runs of the group are counted."""

MOST_NAMES_OF_RUNS: Final = 50_000
"""Most names in all runs of one group together when they are counted."""

MOST_NAMES: Final = 5_000
"""Most names in one run before its last event; names that all have a bit are few and not counted."""

PAUSE_MS: Final = 1_000
"""A longer gap within a run is remembered, for the histogram of gaps; all shorter ones fall into its first bucket."""


class GroupRun(msgspec.Struct, gc=False):
    """What neighbouring events of one group add up to; times in ms."""

    first_offset: int
    last_offset: int
    events: int
    low_ms: int
    high_ms: int
    first_score: int
    last_score: int
    names: dict[str, Any] | int

    @property
    def changed(self) -> Mapping[str, Any]:
        """Changed name → last value; of a mask each with an empty one."""
        return unmasked(self.names)


@dataclass(slots=True)
class Chunk:
    """A range of offsets that is folded group by group; when the last one is done the fence moves to its end.

    Attributes:
        above: Offset before the chunk.
        to: Offset of the fence once the chunk is folded.
        time: What its scores were made with.
        start_ms: Score before its first event.
        clock_ms: Score of its last event.
        events: Number of its events.
        groups: Member → its runs in offset order.
        pauses: The gaps within runs that are longer than :data:`PAUSE_MS`.
        paused: For each of them the member whose run it is.
    """

    above: int
    to: int
    time: RangeTime
    start_ms: int
    clock_ms: int
    events: int
    groups: dict[bytes, list[GroupRun]]
    pauses: list[int] = field(default_factory=list)
    paused: list[bytes] = field(default_factory=list)


class ChunkCutter:
    """Makes chunks of the events of one fetched range: usually one."""

    def __init__(self, events: Iterable[Event], above: int, end: int, bounds: Bounds, *, keeps_values: bool) -> None:
        """Nothing is read before the first chunk is wanted.

        Args:
            events: Events of the range in offset order, all of them beyond ``above``; they are not changed.
            above: Offset before the range.
            end: Offset of the fence after the range.
            bounds: Bounds of the fold.
            keeps_values: The last value of each name is wanted; else only the names are kept.
        """
        self.above = above
        self.end = end
        self._events: Iterator[Event] = iter(events)
        self._bounds = bounds
        self._own: Callable[[dict[str, Any]], dict[str, Any] | int] = dict if keeps_values else _masked

    def next(self, time: RangeTime, start_ms: int, *, is_whole: bool = False) -> Chunk:
        """The next chunk; the last one ends at the end of the range.

        Args:
            time: What scores are made with.
            start_ms: Score before the first event.
            is_whole: Whether the chunk takes all that is left, however much it is: the range was begun by another owner.
        """
        clock, now, gap = start_ms, time.cap_ms, self._bounds.quiet_ms if self._bounds.sessions else math.inf
        own, pause = self._own, min(PAUSE_MS, gap)
        limits = min(MOST_EVENTS, MOST_NEAR_EVENTS), min(MOST_RUNS, MOST_WIDE_RUNS), MOST_NAMES
        most_events, most_runs, most_names = (math.inf,) * 3 if is_whole else limits
        groups: dict[bytes, list[GroupRun]] = {}
        pauses: list[int] = []
        paused: list[bytes] = []
        count, to, is_wide = 0, self.end, False
        for offset, timestamp_ms, member, names in self._events:
            # In one loop and without max and min: calls for each event would be dear.
            clock = clock if clock >= timestamp_ms else timestamp_ms if timestamp_ms < now else max(now, clock)
            stamp = timestamp_ms if timestamp_ms >= 0 else clock
            count += 1
            runs = groups.get(member)
            if runs is None or (since := clock - runs[-1].last_score) > pause:
                if runs is None or since > gap:
                    run = GroupRun(offset, offset, 1, stamp, stamp, clock, clock, names if isinstance(names, int) else own(names))
                    if runs is None:
                        groups[member] = [run]
                        continue
                    runs.append(run)
                    if len(runs) < most_runs or (most_runs := _more_runs(runs)):
                        continue
                    to = offset
                    break
                pauses.append(since)
                paused.append(member)
            run = runs[-1]
            run.last_offset, run.last_score = offset, clock
            run.events += 1
            if stamp < run.low_ms:
                run.low_ms = stamp
            elif stamp > run.high_ms:
                run.high_ms = stamp
            present = run.names
            if isinstance(present, int) and isinstance(names, int):
                run.names = present | names
            else:
                is_wide = _join(run, names) >= most_names
            if is_wide or (run.events >= most_events and not (most_events := self._more_events(run))):
                to = offset
                break
        chunk = Chunk(self.above, to, time, start_ms, clock, count, groups, pauses, paused)
        self.above = to
        return chunk

    def _more_events(self, run: GroupRun) -> int:
        """How many events a run may have from now on; 0: the chunk ends. Asked now and then: for each event it would be dear."""
        bounds, lasted_ms = self._bounds, run.last_score - run.first_score
        is_long = bounds.may_close_often or run.events >= MOST_EVENTS or lasted_ms >= MOST_HOLDS * bounds.hold_ms
        is_long |= bounds.exceeded_by(size_of(run.names)) is not None
        return 0 if is_long else run.events + MOST_NEAR_EVENTS


def _more_runs(runs: list[GroupRun]) -> int:
    """How many runs a group may have from now on; 0: the chunk ends."""
    is_long = len(runs) >= MOST_RUNS or sum(size_of(run.names) for run in runs) >= MOST_NAMES_OF_RUNS
    return 0 if is_long else len(runs) + MOST_WIDE_RUNS


def digest_of(chunk: Chunk) -> bytes:
    """Tells whether somebody else who reads the events of a chunk finds the same groups with the same events."""
    found = hashlib.blake2b(digest_size=12)
    for member in sorted(chunk.groups):
        runs = chunk.groups[member]
        # Not run by run: with other settings the same events make other runs.
        events = sum(run.events for run in runs)
        found.update(b"%d %s %d %d %d;" % (len(member), member, runs[0].first_offset, runs[-1].last_offset, events))
    return found.digest()


def _masked(names: dict[str, Any]) -> dict[str, Any] | int:
    mask = mask_of(names)
    return dict(names) if mask is None else mask


def _join(run: GroupRun, names: dict[str, Any] | int) -> int:
    """Adds names to a run, at least one of the two is a mapping; how many there are, 0 if all of them have a bit."""
    present = run.names
    mask = names if isinstance(names, int) else mask_of(names) if isinstance(present, int) else None
    if isinstance(present, int) and mask is not None:
        run.names = present | mask
        return 0
    if isinstance(present, int):
        present = run.names = dict(names_of_mask(present))
    present.update(unmasked(names))
    return len(present)
