"""Groups the events of a fetched range before Redis sees them (pure).

A *run* is what neighbouring events of one group add to its open fold. Most groups of a batch are one run; with
``sessions`` a gap longer than the quiet period begins a new one. How runs become the arguments of a script is in
:mod:`streams_app.folding.store.arguments`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import msgspec

from streams_app.folding.core.names import mask_of, of_mask, size_of, unmasked

MAX_COST: Final = 200_000
"""Of the groups of a chunk, in quarters of a microsecond of Redis: what is done again where an attempt is given up. Many scripts do
it; :class:`Pace` sees to the one that folds the chunk."""

LIVE_COST: Final = 19_500
"""Of the groups of a chunk that is folded as its events come, by :data:`UPDATE_COST`: 5 ms. With a few names each they are as many
as one script may open. A busy worker calls more scripts, and nothing waits for one of them for long."""

OPEN_COST: Final = 12
"""Of a group, and of each further session of it."""

NAME_COST: Final = 2
"""Of a changed name of it; 1 while events are folded as they come."""

UPDATE_COST: Final = 110
"""Of a group of a chunk that is folded as its events come; in quarters of a microsecond of Redis. A single script has to do it."""

MOST_RUNS: Final = 100_000
LEAST_RUNS: Final = 20
"""Of a chunk, see :class:`Pace`."""

HELD_RUNS: Final = 350
"""As many as one script should look at one by one, at some 25 us each."""

Event = tuple[int, int, bytes, dict[str, Any] | int]
"""The fields of a :class:`FoldEvent`: a plain tuple is made in half the time, and there is one for each event."""


class FoldEvent(NamedTuple):
    """One event as a fold sees it.

    Attributes:
        offset: In the source partition.
        timestamp_ms: Of the record; negative where the producer gave none.
        group: Member bytes (see :func:`streams_app.codec.member_of`).
        names: Changed name → value, as decoded; where values are not kept perhaps the mask of the names.
    """

    offset: int
    timestamp_ms: int
    group: bytes
    names: dict[str, Any] | int

    @property
    def changed(self) -> Mapping[str, Any]:
        """Changed name → value; of a mask each with an empty one."""
        return unmasked(self.names)


class Run(msgspec.Struct, gc=False):
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
    """A sub-range that one script call folds.

    Attributes:
        above: Offsets above this one.
        to: Offset of the fence afterwards.
        start_ms: Clock before its first event.
        now_ms: Wall clock when it was made.
        clock_ms: Record clock after it.
        events: How many it was made of.
        groups: Member → its runs in offset order.
    """

    above: int
    to: int
    start_ms: int
    now_ms: int
    clock_ms: int
    events: int
    groups: dict[bytes, list[Run]]

    @property
    def runs(self) -> int:
        """How many of all groups."""
        return sum(map(len, self.groups.values()))


class Pace:
    """How many runs a chunk of a backlog may have, by how many of them the script that folds had to look at one by one.

    Those cannot be staged: a bound may fall inside them, or close their group.

    Attributes:
        runs: Of the next chunk.
    """

    def __init__(self) -> None:
        self.runs = MOST_RUNS

    @property
    def cost(self) -> int:
        """Of a run, so that this many fill a chunk."""
        return MAX_COST // self.runs

    def learn(self, runs: int, held: int) -> None:
        """Remembers a chunk: of its runs so many were looked at."""
        if held > HELD_RUNS:
            self.runs = max(LEAST_RUNS, min(self.runs, runs) * HELD_RUNS // held)
        elif 2 * held < HELD_RUNS and 2 * runs > self.runs:
            self.runs = min(MOST_RUNS, self.runs * 3 // 2)


@dataclass(frozen=True, slots=True)
class Scoring:
    """How the events of a batch get their scores, and what they cost.

    Attributes:
        clock_ms: Partition clock (``merge``) or record clock (``sessions``) before the batch.
        now_ms: Wall clock: no score is beyond it.
        arrived_ms: When the batch came, where the reader was at the end of the partition just before; None while it is behind.
            Where only bounds close groups, this is the score of every event.
        gap_ms: A gap longer than this begins a new run; None where only bounds close groups while folding.
        keeps_values: The last value of each name is wanted; else only the names are kept.
        pace: How long chunks may be; only used while it is behind.
    """

    clock_ms: int
    now_ms: int
    arrived_ms: int | None
    gap_ms: int | None
    keeps_values: bool = True
    pace: Pace | None = None


def chunks_of(events: Iterable[Event], end: int, scoring: Scoring, above: int = -1) -> Iterator[Chunk]:
    """Cuts the events of one range into sub-ranges that a script call can fold.

    Args:
        events: In offset order; left as they are.
        end: Offset of the fence after the whole range.
        scoring: How events get their scores.
        above: Offset that all events are above of, as the first chunk will say.

    Yields:
        Chunks in offset order, each by the pace at that moment; the last one ends at ``end``. At least one, as an empty range moves
        the fence too.
    """
    is_live = scoring.arrived_ms is not None
    clock = start = max(scoring.clock_ms, scoring.arrived_ms or 0) if scoring.gap_ms is None else scoring.clock_ms
    now, gap = scoring.now_ms, math.inf if scoring.gap_ms is None else scoring.gap_ms
    own: Callable[[dict[str, Any]], dict[str, Any] | int] = dict if scoring.keeps_values else _masked
    groups: dict[bytes, list[Run]] = {}
    count, cost, last = 0, 0, -1
    most, open_cost, name_cost = (LIVE_COST, UPDATE_COST, 1) if is_live else (MAX_COST, OPEN_COST, NAME_COST)
    pace = None if is_live else scoring.pace
    pace_cost = pace.cost if pace else 0
    for offset, timestamp_ms, member, names in events:
        if cost >= most:
            yield Chunk(above, last, start, now, clock, count, groups)
            groups, count, cost, above, start = {}, 0, 0, last, clock
            pace_cost = pace.cost if pace else 0
        # In one loop and without max and min: calls for each event would be dear.
        if clock < timestamp_ms:
            clock = timestamp_ms if timestamp_ms < now else max(now, clock)
        stamp = timestamp_ms if timestamp_ms >= 0 else clock
        count += 1
        last = offset
        runs = groups.get(member)
        if runs is None or clock - runs[-1].last_score > gap:
            held = names if isinstance(names, int) else own(names)
            run = Run(offset, offset, 1, stamp, stamp, clock, clock, held)
            cost += name_cost * (held.bit_count() if isinstance(held, int) else len(held))
            cost += pace_cost + (open_cost if runs is None else OPEN_COST)
            groups.setdefault(member, []).append(run)
            continue
        run = runs[-1]
        run.last_offset, run.last_score = offset, clock
        run.events += 1
        if stamp < run.low_ms:
            run.low_ms = stamp
        elif stamp > run.high_ms:
            run.high_ms = stamp
        held = run.names
        if isinstance(held, int) and isinstance(names, int):
            if held | names != held:
                run.names = held | names
                cost += name_cost * ((held | names).bit_count() - held.bit_count())
        else:
            cost += name_cost * _join(run, names)
    yield Chunk(above, end, start, now, clock, count, groups)


def _masked(names: dict[str, Any]) -> dict[str, Any] | int:
    mask = mask_of(names)
    return dict(names) if mask is None else mask


def _join(run: Run, names: dict[str, Any] | int) -> int:
    """Adds names to a run; returns how many it did not have."""
    held = run.names
    before = size_of(held)
    mask = names if isinstance(names, int) else mask_of(names) if isinstance(held, int) else None
    if isinstance(held, int) and mask is not None:
        run.names = held | mask
    else:
        if isinstance(held, int):
            held = run.names = dict(of_mask(held))
        held.update(unmasked(names))
    return size_of(run.names) - before


def single_events(events: Iterable[Event], chunk: Chunk, groups: frozenset[bytes]) -> dict[bytes, list[Run]]:
    """The events of some groups of a chunk, as one run each.

    Args:
        events: At least those the chunk was made of, in offset order.
        chunk: Made of them.
        groups: The members wanted.
    """
    clock = chunk.start_ms
    found: dict[bytes, list[Run]] = {group: [] for group in groups}
    for offset, stamp, group, names in events:
        if offset <= chunk.above:
            continue
        if offset > chunk.to:
            break
        clock = max(clock, min(stamp, chunk.now_ms))
        if group in groups:
            at_ms = stamp if stamp >= 0 else clock
            found[group].append(Run(offset, offset, 1, at_ms, at_ms, clock, clock, names))
    return found
