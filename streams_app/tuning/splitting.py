"""Where the bounds on hold, events and names part the events of a group, whatever the quiet period is (pure).

A record that begins with some event ends before the first later one that a bound keeps out. This does not depend on the quiet
period, so it is worked out once for every event; the records of a candidate are chains of such steps within its sessions.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from typing import Final

import numpy as np
from numpy.typing import NDArray

from streams_app.folding.core.closing import Bounds
from streams_app.tuning.columns import Columns
from streams_app.tuning.name_sets import NameSets

Positions = NDArray[np.int32]

FEW: Final = 64
"""Chains: below that a plain loop is faster than numpy."""

_BLOCK: Final = 1 << 19


def blocks(firsts: NDArray[np.bool_]) -> Iterator[slice]:
    """Parts of sorted columns, each of some whole groups."""
    begin = 0
    while begin < len(firsts):
        end = begin + _BLOCK
        if end < len(firsts):
            end += int(firsts[end:].argmax())
            end = end if firsts[end] else len(firsts)
        end = min(end, len(firsts))
        yield slice(begin, end)
        begin = end


def next_starts(columns: Columns, bounds: Bounds) -> Positions | None:
    """For each event the position of the first later one that is kept out of a record that begins with it; at most its group's end.

    Args:
        columns: Sorted.
        bounds: What closes groups; the quiet period is not looked at.

    Returns:
        None where the bounds part no group.
    """
    found = np.empty(len(columns.scores), np.int32)
    is_any = False
    for block in blocks(columns.firsts):
        ends = np.append(np.flatnonzero(columns.firsts[block])[1:], block.stop - block.start)
        limits = np.repeat(ends, np.diff(ends, prepend=0))
        following = _by_hold(columns.scores[block], ends, bounds.hold_ms)
        if bounds.max_events:
            np.minimum(following, np.arange(len(following)) + bounds.max_events, out=following)
        np.minimum(following, limits, out=following)
        if columns.sets.may_close:
            _by_names(columns.numbers[block], ends, columns.sets, following)
        is_any = is_any or bool((following < limits).any())
        found[block] = following + block.start
    return found if is_any else None


def _by_hold(scores: NDArray[np.int64], ends: NDArray[np.int64], hold_ms: int) -> NDArray[np.int64]:
    """The position of the first later event that is the hold or more behind each event, possibly beyond its group."""
    low = scores.min()
    step = int(scores.max() - low) + 1
    # The scores of one group after those of the one before: they rise, and no group reaches into the next but one.
    places = np.repeat(np.arange(len(ends)) * (2 * step), np.diff(ends, prepend=0)) + (scores - low)
    return np.searchsorted(places, places + min(hold_ms, step)).astype(np.int64)


def _by_names(numbers: NDArray[np.uint32], ends: NDArray[np.int64], sets: NameSets, following: NDArray[np.int64]) -> None:
    """Lowers the next starts to where a record would have more names than the bound allows."""
    totals = np.cumsum(sets.counts(numbers))
    before, begin = 0, 0
    for end, total in zip(ends.tolist(), totals[ends - 1].tolist(), strict=True):
        # How many names its events have, each counted as new, is an upper limit that tells nearly always.
        if total - before > sets.max_changed:
            _limit_names(numbers[begin:end], sets, following, begin)
        before, begin = total, end


def _limit_names(numbers: NDArray[np.uint32], sets: NameSets, following: NDArray[np.int64], begin: int) -> None:
    """The same for the events of one group, which stand at ``begin``: a window over them, and how often it has each name."""
    most = sets.max_changed
    held: dict[int, int] = defaultdict(int)
    listed = [sets.names_of(number) for number in numbers.tolist()]
    stop = 0
    for start, names in enumerate(listed):
        if stop <= start:
            stop = start + 1
            for name in names:
                held[name] += 1
        while stop < len(listed):
            coming = listed[stop]
            if len(held) + sum(name not in held for name in coming) > most:
                break
            for name in coming:
                held[name] += 1
            stop += 1
        following[begin + start] = min(following[begin + start], begin + stop)
        for name in names:
            held[name] -= 1
            if not held[name]:
                del held[name]


def chained(starts: Positions, ends: Positions, following: Positions) -> Positions:
    """The positions at which the records of sessions begin, other than the sessions' own; in no order.

    Args:
        starts: Where the sessions begin that a bound may part.
        ends: Where they end.
        following: See :func:`next_starts`.
    """
    found = []
    at = following[starts]
    while len(at) > FEW:
        inside = at < ends
        at, ends = at[inside], ends[inside]
        found.append(at)
        at = following[at]
    rest: list[int] = []
    for first, end in zip(at.tolist(), ends.tolist(), strict=True):
        position = first
        while position < end:
            rest.append(position)
            position = int(following[position])
    return np.concatenate([*found, np.array(rest, np.int32)])
