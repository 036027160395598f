"""Groups the events of a fetched range before Redis sees them (pure).

A *run* is what neighbouring events of one group add to its open fold. Most groups of a batch are one run; with
``sessions`` a gap longer than the quiet period begins a new one. The script answers ``detail`` for the few groups whose
bounds fall inside a run; those are sent again with one run an event.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import msgpack
import orjson

MAX_GROUPS: Final = 2_000
"""Groups in one script call: a group costs Redis about 8 us, and no script may hold it longer than 20 ms."""

MAX_NAMES: Final = 20_000
"""Changed names in one script call, for the same reason."""


class FoldEvent(NamedTuple):
    """One event as a fold sees it.

    Attributes:
        offset: In the source partition.
        timestamp_ms: Of the record; negative where the producer gave none.
        group: Member bytes (see :func:`streams_app.codec.member_of`).
        names: Changed name → value, as decoded.
    """

    offset: int
    timestamp_ms: int
    group: bytes
    names: dict[str, Any]


@dataclass(slots=True)
class Run:
    """What neighbouring events of one group add up to; times in ms."""

    first_offset: int
    last_offset: int
    events: int
    low_ms: int
    high_ms: int
    first_score: int
    last_score: int
    names: dict[str, Any]

    def packed(self, *, keep_values: bool) -> list[Any]:
        """In the order in which ``fold.lua`` reads it."""
        flat: list[Any] = []
        for name, value in self.names.items():
            flat.append("n" + name)
            flat.append(orjson.dumps(value) if keep_values else b"")
        return [
            self.first_offset, self.last_offset, self.events, self.low_ms, self.high_ms,
            self.first_score, self.last_score, flat,
        ]  # fmt: skip


@dataclass(slots=True)
class Chunk:
    """A sub-range that one script call folds.

    Attributes:
        to: Offset of the fence afterwards.
        clock_ms: Record clock after it.
        groups: Member → its runs in offset order.
        events: The events it was made of, in offset order.
        scores: Score of each of them.
    """

    to: int
    clock_ms: int
    groups: dict[bytes, list[Run]]
    events: Sequence[FoldEvent]
    scores: list[int]

    def packed(self, *, keep_values: bool, detail: frozenset[int] = frozenset()) -> bytes:
        """The ``groups`` argument of ``fold.lua``.

        Args:
            keep_values: Carry the last value of each name.
            detail: Positions (from 0) of groups to be sent as one run an event.
        """
        groups = []
        for position, (member, runs) in enumerate(self.groups.items()):
            chosen: Iterable[Run] = self._single_events(member) if position in detail else runs
            groups.append([member, [run.packed(keep_values=keep_values) for run in chosen]])
        return msgpack.packb(groups, use_bin_type=False)

    def _single_events(self, member: bytes) -> Iterator[Run]:
        for event, score in zip(self.events, self.scores, strict=True):
            if event.group == member:
                stamp = event.timestamp_ms if event.timestamp_ms >= 0 else score
                yield Run(event.offset, event.offset, 1, stamp, stamp, score, score, event.names)


@dataclass(frozen=True, slots=True)
class Scoring:
    """How the events of a batch get their scores.

    Attributes:
        clock_ms: Partition clock (``merge``) or record clock (``sessions``) before the batch.
        now_ms: Wall clock: no score is beyond it.
        live_ms: Score of every event where the reader was at the end of the partition just before the batch came;
            None while it is behind.
        gap_ms: A gap longer than this begins a new run; None where only bounds close groups while folding.
    """

    clock_ms: int
    now_ms: int
    live_ms: int | None
    gap_ms: int | None


def chunks_of(events: Sequence[FoldEvent], end: int, scoring: Scoring) -> Iterator[Chunk]:
    """Cuts the events of one range into sub-ranges that a script call can fold.

    Args:
        events: In offset order.
        end: Offset of the fence after the whole range.
        scoring: How events get their scores.

    Yields:
        Chunks in offset order; the last one ends at ``end``. At least one, as an empty range moves the fence too.
    """
    clock = max(scoring.clock_ms, scoring.live_ms or 0)
    now, gap = scoring.now_ms, scoring.gap_ms
    groups: dict[bytes, list[Run]] = {}
    scores: list[int] = []
    names_held, begin = 0, 0
    for position, event in enumerate(events):
        offset, stamp, member, names = event
        if clock < stamp:
            clock = min(stamp, now) if now > clock else clock
        if stamp < 0:
            stamp = clock
        if names_held >= MAX_NAMES or len(groups) >= MAX_GROUPS:
            yield Chunk(events[position - 1].offset, scores[-1], groups, events[begin:position], scores)
            groups, scores, names_held, begin = {}, [], 0, position
        runs = groups.get(member)
        if runs is None:
            groups[member] = [Run(offset, offset, 1, stamp, stamp, clock, clock, dict(names))]
            names_held += len(names) + 1
        else:
            run = runs[-1]
            if gap is not None and clock - run.last_score > gap:
                runs.append(Run(offset, offset, 1, stamp, stamp, clock, clock, dict(names)))
                names_held += len(names) + 1
            else:
                run.last_offset, run.last_score = offset, clock
                run.events += 1
                if stamp < run.low_ms:
                    run.low_ms = stamp
                elif stamp > run.high_ms:
                    run.high_ms = stamp
                known = len(run.names)
                run.names.update(names)
                names_held += len(run.names) - known
        scores.append(clock)
    yield Chunk(end, clock, groups, events[begin:], scores)
