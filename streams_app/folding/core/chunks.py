"""Aggregates the events of a fetched range by group, before they are sent to Redis (pure).

A *chunk* is a part of a range that Redis folds before the next part; most ranges are a single chunk. A *run* is the aggregate of
consecutive events of one group within a chunk. Most groups of a chunk have one run. With ``sessions``, a gap longer than the quiet
period begins a new run. :mod:`streams_app.folding.store.arguments` turns runs into arguments of a script.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, cast

import msgspec

from streams_app.folding.core.closing import Bounds
from streams_app.folding.core.event import FoldInput, PlainEvent, ScoredEvent
from streams_app.folding.core.names import mask_of, names_of_mask, size_of, unmasked
from streams_app.folding.core.shard_clock import RangeTime

MAX_EVENTS: Final = 20_000
"""Maximum number of events in one run, because one script applies all events of a group in a chunk."""

MAX_NEAR_EVENTS: Final = 1_000
"""Maximum number of events in one run if bounds may close its group very often, as so many closings take a script some 10 ms."""

MAX_HOLDS: Final = 300
"""A group counts as closing very often if its run lasts this many times the maximum hold."""

MAX_RUNS: Final = 1_000
"""Maximum number of runs of one group in a chunk, because one script folds all of them."""

MAX_WIDE_RUNS: Final = 100
"""Each time a group has this many more runs, the names in all its runs are counted, to decide whether the chunk ends."""

MAX_NAMES_OF_RUNS: Final = 50_000
"""A chunk ends if all runs of one group together have this many names; checked after every :data:`MAX_WIDE_RUNS` runs."""

MAX_NAMES: Final = 5_000
"""A chunk ends when a run has this many names. A bit mask of names is not checked, because it cannot contain so many."""

PAUSE_MS: Final = 1_000
"""Gaps within a run that are longer than this are stored for the histogram of gaps; shorter gaps belong to its first bucket."""


class GroupRun(msgspec.Struct, gc=False):
    """The aggregate of consecutive events of one group. Times and scores are in ms.

    Attributes:
        low_ms: Lowest record timestamp.
        high_ms: Highest record timestamp.
        names: Changed names with their values, or a bit mask of the names, see :mod:`streams_app.folding.core.names`.
        events_kept: The events with their scores; None if the fold does not keep events.
        bytes_kept: Size of the kept events, see :func:`streams_app.folding.core.kept_events.size_of_event`.
        shorter_ms: By how much the quiet period after the last event is shorter than the fold's longest one; 0 if events set none.
        is_early: Whether the run is a single event that ``leading`` may emit at once.
        packed_kept: The kept events, packed for storage; None until they are packed.
        ids: With ``dedupe_by``, the id and the offset of each event, one after the other; None if events are kept, which have them.
        duplicates: Number of duplicates that are left out after these events. A run of duplicates alone has no events.
    """

    first_offset: int
    last_offset: int
    events: int
    low_ms: int
    high_ms: int
    first_score: int
    last_score: int
    names: dict[str, Any] | int
    closes: bool = False
    events_kept: list[tuple[ScoredEvent, int]] | None = None
    bytes_kept: int = 0
    shorter_ms: int = 0
    is_early: bool = False
    packed_kept: bytes | None = None
    ids: list[bytes | int] | None = None
    duplicates: int = 0

    @property
    def changed(self) -> Mapping[str, Any]:
        """The values have no meaning if the fold keeps only names."""
        return unmasked(self.names)


@dataclass(slots=True)
class Chunk:
    """Events of consecutive offsets, by group. Redis folds one group after another, then moves the fence to the end of the chunk.

    Attributes:
        above: Last offset before the chunk.
        to: Last offset of the chunk, where the fence is once the chunk is folded.
        start_ms: Lowest score that an event of the chunk may have, see :meth:`.ShardClock.start_ms`.
        clock_ms: Score of its last event; ``start_ms`` if it has none.
        groups: The runs of each group, in offset order, by group key.
        pauses: The gaps within runs that are longer than :data:`PAUSE_MS`, in ms.
        paused: For each of these gaps, the group whose run contains it.
    """

    above: int
    to: int
    time: RangeTime
    start_ms: int
    clock_ms: int
    events: int
    groups: Mapping[bytes, list[GroupRun]]
    pauses: list[int] = field(default_factory=list)
    paused: list[bytes] = field(default_factory=list)


class ChunkCutter:
    """Cuts the events of one fetched range into chunks, usually a single one.

    Events are in offset order, all beyond ``above``; they are read when the first chunk is requested.
    """

    def __init__(self, events: Iterable[FoldInput], above: int, end: int, bounds: Bounds, *, keeps_values: bool) -> None:
        self.above = above
        self.end = end
        self._events: Iterator[FoldInput] = iter(events)
        self._bounds = bounds
        self._own: Callable[[dict[str, Any]], dict[str, Any] | int] = dict if keeps_values else _masked

    def next(self, time: RangeTime, start_ms: int, *, is_whole: bool = False) -> Chunk:
        """Read events and return them as the next chunk of the range; the last chunk ends at the end of the range.

        Args:
            is_whole: Whether the chunk takes all remaining events regardless of its size: a range that another owner has begun must
                stay one chunk.
        """
        clock, now, gap = start_ms, time.cap_ms, self._bounds.quiet_ms if self._bounds.sessions else math.inf
        own, pause = self._own, min(PAUSE_MS, gap)
        limits = min(MAX_EVENTS, MAX_NEAR_EVENTS), min(MAX_RUNS, MAX_WIDE_RUNS), MAX_NAMES
        max_events, max_runs, max_names = (math.inf,) * 3 if is_whole else limits
        groups: dict[bytes, list[GroupRun]] = {}
        pauses: list[int] = []
        paused: list[bytes] = []
        count, to, is_wide = 0, self.end, False
        for offset, timestamp_ms, member, names in cast("Iterator[PlainEvent]", self._events):
            # One loop without max() and min(), because a call per event would be expensive.
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
                    if len(runs) < max_runs or (max_runs := _more_runs(runs)):
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
                is_wide = _join(run, names) >= max_names
            if is_wide or (run.events >= max_events and not (max_events := self._more_events(run))):
                to = offset
                break
        chunk = Chunk(self.above, to, time, start_ms, clock, count, groups, pauses, paused)
        self.above = to
        return chunk

    def _more_events(self, run: GroupRun) -> int:
        """Return the number of events at which a run is checked again, as a check after each would be slow; 0 if the chunk ends."""
        bounds, lasted_ms = self._bounds, run.last_score - run.first_score
        is_long = bounds.may_close_often or run.events >= MAX_EVENTS or lasted_ms >= MAX_HOLDS * bounds.hold_ms
        is_long |= bounds.exceeded_by(size_of(run.names)) is not None
        return 0 if is_long else run.events + MAX_NEAR_EVENTS


def _more_runs(runs: list[GroupRun]) -> int:
    is_long = len(runs) >= MAX_RUNS or sum(size_of(run.names) for run in runs) >= MAX_NAMES_OF_RUNS
    return 0 if is_long else len(runs) + MAX_WIDE_RUNS


def digest_of(chunk: Chunk) -> bytes:
    """Return 12 bytes by which a worker detects that another worker reads other events from the same records.

    The digest covers each group with its first offset, its last offset and its number of events.
    """
    found = hashlib.blake2b(digest_size=12)
    for member in sorted(chunk.groups):
        runs = chunk.groups[member]
        # Independent of runs: with other settings, the same events form other runs.
        events = sum(run.events for run in runs)
        found.update(b"%d %s %d %d %d;" % (len(member), member, runs[0].first_offset, runs[-1].last_offset, events))
    return found.digest()


def _masked(names: dict[str, Any]) -> dict[str, Any] | int:
    mask = mask_of(names)
    return dict(names) if mask is None else mask


def _join(run: GroupRun, names: dict[str, Any] | int) -> int:
    """Add changed names to a run; return its number of names, 0 if they are a mask. At most one of the two may be a mask."""
    present = run.names
    mask = names if isinstance(names, int) else mask_of(names) if isinstance(present, int) else None
    if isinstance(present, int) and mask is not None:
        run.names = present | mask
        return 0
    if isinstance(present, int):
        present = run.names = dict(names_of_mask(present))
    present.update(unmasked(names))
    return len(present)
