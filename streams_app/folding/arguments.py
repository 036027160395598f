"""What the scripts are called with: a chunk as ``fold.lua`` reads it, acknowledged records as ``finish.lua`` does (pure).

Sessions that begin and end within the chunk are ready for the outbox already: the script only looks whether their group has been
open before. Everything else goes through the open groups.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import msgpack
import orjson

from streams_app.folding.batch import Chunk, Run
from streams_app.folding.record import Sealed

CLOSED_FIELDS: Final = 5
"""Values of one closed session in the argument: group, first offset, first and last score, packed entry."""

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


@dataclass(slots=True)
class Arguments:
    """Of one call.

    Attributes:
        open_groups: msgpack array of ``[group, [run, …]]``.
        closed: msgpack array, :data:`CLOSED_FIELDS` values a session.
        sealed: The same sessions, as they are in the outbox unless the script says otherwise.
    """

    open_groups: bytes
    closed: bytes
    sealed: list[Sealed] = field(default_factory=list)


def arguments_of(
    chunk: Chunk,
    bounds: Bounds,
    *,
    gaps_close: bool,
    keeps_values: bool,
    partitions: int,
    singles: Mapping[bytes, list[Run]] | None = None,
) -> Arguments:
    """Packs a chunk.

    Args:
        chunk: To be folded.
        bounds: Of the fold.
        gaps_close: ``sessions``: a gap closes a group while folding.
        keeps_values: The last value of each name is carried.
        partitions: Of the source, for the version of a record.
        singles: Groups to be sent as one run an event: bounds fall inside their runs.
    """
    open_groups: list[Any] = []
    closed: list[Any] = []
    sealed: list[Sealed] = []
    single = singles or {}
    for member, runs in chunk.groups.items():
        whole = single.get(member, runs)
        ended = 0
        if gaps_close and whole is runs:
            ended = _ended(runs, chunk.clock_ms, bounds)
        for run in whole[:ended] if ended else ():
            names = _names(run.names, keeps_values=keeps_values)
            entry = _sealed(member, run, names, bounds, partitions)
            sealed.append(entry)
            closed += (member, run.first_offset, run.first_score, run.last_score, _pack(entry))
        if ended < len(whole):
            open_groups.append((member, [_packable(run, keeps_values=keeps_values) for run in whole[ended:]]))
    return Arguments(_pack(open_groups), _pack(closed), sealed)


def _names(names: Mapping[str, Any], *, keeps_values: bool) -> dict[str, bytes]:
    if keeps_values:
        return {name: orjson.dumps(value) for name, value in names.items()}
    return dict.fromkeys(names, b"")


def _packable(run: Run, *, keeps_values: bool) -> tuple[Any, ...]:
    return (
        run.first_offset, run.last_offset, run.events, run.low_ms, run.high_ms, run.first_score, run.last_score,
        len(run.names), _names(run.names, keeps_values=keeps_values),
    )  # fmt: skip


def _ended(runs: list[Run], clock_ms: int, bounds: Bounds) -> int:
    """How many of the runs have ended; none, where another bound than silence may close one of them."""
    ended = len(runs) - (clock_ms - runs[-1].last_score <= bounds.quiet_ms)
    for number in range(ended):
        run = runs[number]
        if (
            run.last_score - run.first_score >= bounds.hold_ms
            or (bounds.max_events and run.events >= bounds.max_events)
            or len(run.names) > bounds.max_changed
        ):
            return 0
    return ended


def _sealed(member: bytes, run: Run, names: dict[str, bytes], bounds: Bounds, partitions: int) -> Sealed:
    hold_due, quiet_due = run.first_score + bounds.hold_ms, run.last_score + bounds.quiet_ms
    reason, due = ("max_hold", hold_due) if hold_due <= quiet_due else ("quiet", quiet_due)
    return Sealed(
        member, run.first_offset, run.last_offset, run.events, run.low_ms, run.high_ms, reason, due, partitions, names
    )  # fmt: skip


def ranges_of(sent: Sequence[Sealed], pending: Iterable[Sealed]) -> list[tuple[int, int, int]]:
    """First offsets of what was sent, as ranges in which nothing else is pending: (lowest, highest, how many)."""
    gone = sorted(entry.first_offset for entry in sent)
    held = set(gone)
    others = sorted(entry.first_offset for entry in pending if entry.first_offset not in held)
    ranges: list[tuple[int, int, int]] = []
    begin = 0
    while begin < len(gone):
        at = bisect_right(others, gone[begin])
        end = bisect_left(gone, others[at]) if at < len(others) else len(gone)
        ranges.append((gone[begin], gone[end - 1], end - begin))
        begin = end
    return ranges
