"""What the scripts are called with: a chunk as ``fold.lua`` reads it, acknowledged records as ``finish.lua`` does (pure).

Sessions that begin and end within the chunk are ready for the outbox already: the script only looks whether their group has been
open before. Everything else goes through the open groups.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from operator import attrgetter
from typing import Any, Final, NamedTuple

import msgpack
import orjson

from streams_app.folding.core.chunks import Chunk, Run
from streams_app.folding.core.names import NameSet, of_mask, size_of, without_values
from streams_app.folding.core.record import Sealed
from streams_app.folding.store.keys import INFO_FIELD

PLAIN_NAMES: Final = 1_000
"""A group with more names is written in several calls of Redis."""

_FIRST_OFFSET = attrgetter("first_offset")

_pack = msgpack.Packer(use_bin_type=False, autoreset=True).pack


@dataclass(frozen=True, slots=True)
class Bounds:
    """The numbers of a fold that scripts decide with; times in ms.

    Attributes:
        quiet_ms: Quiet period.
        hold_ms: Max hold.
        max_events: 0 = no bound.
        max_changed: Names in one group.
        outbox_limit: Records sealed and not yet acknowledged, beyond which nothing is folded.
    """

    quiet_ms: int
    hold_ms: int
    max_events: int
    max_changed: int
    outbox_limit: int


Plain = tuple[bytes, int, int, list[Any]]
"""A group of one run that no bound closes by itself: member, first offset, last score (ms), and its sidecar if it opens with the
run."""


class Closed(NamedTuple):
    """A session that begins and ends within a chunk.

    Attributes:
        sealed: As it is in the outbox, unless its group was open before.
        packed: The same, as Redis holds it.
        first_score: Of its first event, ms.
        last_score: Of its last one.
    """

    sealed: Sealed
    packed: bytes
    first_score: int
    last_score: int


@dataclass(slots=True)
class Arguments:
    """Of one chunk.

    Attributes:
        groups: msgpack array of ``[group, [run, …]]`` of those that are not plain.
        plain: All others that stay open.
        closed: Sessions that begin and end within the chunk; those of one group in offset order.
        gaps_close: ``sessions``: a gap closes a group while folding.
        others: How many runs are in ``groups``.
    """

    groups: bytes
    plain: list[Plain] = field(default_factory=list)
    closed: list[Closed] = field(default_factory=list)
    gaps_close: bool = True
    others: int = 0

    @property
    def size(self) -> int:
        """Sessions, groups, and runs of those that are not plain."""
        return self.others + len(self.plain) + len(self.closed)


def arguments_of(
    chunk: Chunk,
    bounds: Bounds,
    *,
    gaps_close: bool,
    keeps_values: bool,
    partitions: int,
    epoch: bytes,
    singles: Mapping[bytes, list[Run]] | None = None,
) -> Arguments:
    """Packs a chunk.

    Args:
        chunk: To be folded.
        bounds: Of the fold.
        gaps_close: ``sessions``: a gap closes a group while folding.
        keeps_values: The last value of each name is carried.
        partitions: Of the source, for the version of a record.
        epoch: Of the state in Redis.
        singles: Groups to be sent as one run an event: bounds fall inside their runs.
    """
    plain: list[Plain] = []
    others: list[Any] = []
    closed: list[Closed] = []
    single = singles or {}
    for member, runs in chunk.groups.items():
        whole = single.get(member, runs)
        ended = 0
        if gaps_close and whole is runs:
            ended = _ended(runs, chunk.clock_ms, bounds)
        closed += [_closed(member, run, _names(run, keeps_values=keeps_values), bounds, partitions) for run in whole[:ended]]
        if ended == len(whole):
            continue
        run = whole[-1]
        if ended == len(whole) - 1 and _is_plain(run, bounds):
            plain.append((member, run.first_offset, run.last_score, _fields(run, epoch, keeps_values=keeps_values)))
        else:
            others.append((member, [_packable(run, keeps_values=keeps_values) for run in whole[ended:]]))
    return Arguments(_pack(others), plain, closed, gaps_close, sum(len(runs) for _, runs in others))


def packed_closed(sessions: Iterable[Closed]) -> bytes:
    """As scripts want them: group, first offset, first and last score, packed entry of each."""
    values: list[Any] = []
    for sealed, packed, first_score, last_score in sessions:
        values += (sealed.member, sealed.first_offset, first_score, last_score, packed)
    return _pack(values)


def packed_plain(groups: Iterable[Plain]) -> bytes:
    """As scripts want them: group, first offset, last score, fields of each."""
    return _pack(list(chain.from_iterable(groups)))


def _names(run: Run, *, keeps_values: bool) -> dict[str, bytes]:
    if keeps_values:
        return {name: orjson.dumps(value) for name, value in run.changed.items()}
    return _names_only(run)


def _names_only(run: Run) -> NameSet:
    names = run.names
    return of_mask(names) if isinstance(names, int) else without_values(names)


def _packable(run: Run, *, keeps_values: bool) -> tuple[Any, ...]:
    return (
        run.first_offset, run.last_offset, run.events, run.low_ms, run.high_ms, run.first_score, run.last_score,
        size_of(run.names), dict(_names(run, keeps_values=keeps_values)),
    )  # fmt: skip


def _is_plain(run: Run, bounds: Bounds) -> bool:
    names = size_of(run.names)
    return (
        run.last_score - run.first_score < bounds.hold_ms
        and names <= bounds.max_changed
        and names <= PLAIN_NAMES
        and (not bounds.max_events or run.events < bounds.max_events)
    )


def _fields(run: Run, epoch: bytes, *, keeps_values: bool) -> list[Any]:
    """The sidecar of a group that opens with this run; times since it was opened, as small numbers take less room."""
    opened = run.first_score
    numbers = (
        epoch, run.first_offset, run.last_offset - run.first_offset, opened, run.last_score - opened, run.events,
        run.low_ms - opened, run.high_ms - run.low_ms, size_of(run.names),
    )  # fmt: skip
    fields: list[Any] = [INFO_FIELD, _pack(numbers)]
    if keeps_values:
        for name, value in run.changed.items():
            fields += (name, orjson.dumps(value))
    else:
        fields += _names_only(run).fields
    return fields


def _ended(runs: list[Run], clock_ms: int, bounds: Bounds) -> int:
    """How many of the runs have ended; none, where another bound than silence may close one of them."""
    ended = len(runs) - (clock_ms - runs[-1].last_score <= bounds.quiet_ms)
    for number in range(ended):
        run = runs[number]
        if (
            run.last_score - run.first_score >= bounds.hold_ms
            or (bounds.max_events and run.events >= bounds.max_events)
            or size_of(run.names) > bounds.max_changed
        ):
            return 0
    return ended


def _closed(member: bytes, run: Run, names: dict[str, bytes], bounds: Bounds, partitions: int) -> Closed:
    hold_due, quiet_due = run.first_score + bounds.hold_ms, run.last_score + bounds.quiet_ms
    reason, due = ("max_hold", hold_due) if hold_due <= quiet_due else ("quiet", quiet_due)
    numbers = member, run.first_offset, run.last_offset, run.events, run.low_ms, run.high_ms, reason, due, partitions
    # An array of ten, the last of which may be packed already.
    packed = b"\x9a" + _pack(numbers)[1:] + (names.packed if type(names) is NameSet else _pack(names))
    # Thousands at a time: the constructors of named tuples are slow.
    sealed = tuple.__new__(Sealed, (*numbers, names))
    return tuple.__new__(Closed, (sealed, packed, run.first_score, run.last_score))


def ranges_of(sent: Sequence[Sealed], pending: Iterable[Sealed]) -> list[tuple[int, int, int]]:
    """First offsets of what was sent, as ranges in which nothing else is pending: (lowest, highest, how many)."""
    gone = sorted(map(_FIRST_OFFSET, sent))
    others = sorted(set(map(_FIRST_OFFSET, pending)).difference(gone))
    ranges: list[tuple[int, int, int]] = []
    begin = 0
    while begin < len(gone):
        at = bisect_right(others, gone[begin])
        end = bisect_left(gone, others[at]) if at < len(others) else len(gone)
        ranges.append((gone[begin], gone[end - 1], end - begin))
        begin = end
    return ranges
