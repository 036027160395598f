"""Where the bounds on hold, events and names part the events of a group, whatever the quiet period is (pure).

A record that begins with some event ends before the first later one that a bound keeps out. This does not depend on the quiet
period, so it is worked out once for every event; the records of a candidate are chains of such steps within its sessions.
"""

from __future__ import annotations

from collections import defaultdict
from typing import Final

import numpy as np
from numpy.typing import NDArray

from streams_app.folding.core.closing import Bounds
from streams_app.tuning.columns import Columns
from streams_app.tuning.name_sets import NameSets

Positions = NDArray[np.int32]

FEW: Final = 64
"""Chains: below that a plain loop is faster than numpy."""


def group_ends(hashes: NDArray[np.uint64]) -> Positions:
    """Where each group ends: the position after its last event."""
    return np.append(np.flatnonzero(hashes[1:] != hashes[:-1]) + 1, len(hashes)).astype(np.int32)


def next_starts(columns: Columns, bounds: Bounds) -> Positions:
    """For each event the position of the first later one that is kept out of a record that begins with it; at most its group's end.

    Args:
        columns: Sorted.
        bounds: What closes groups; the quiet period is not looked at.
    """
    ends = group_ends(columns.hashes)
    found = np.empty(len(columns.scores), np.int32)
    begin = 0
    for end in ends.tolist():
        scores = columns.scores[begin:end]
        found[begin:end] = begin + np.searchsorted(scores, scores + bounds.hold_ms)
        begin = end
    if bounds.max_events:
        np.minimum(found, np.arange(len(found), dtype=np.int64) + bounds.max_events, out=found, casting="unsafe")
    if columns.sets.may_close:
        begin = 0
        for end in ends.tolist():
            _limit_names(columns.numbers[begin:end], columns.sets, found, begin)
            begin = end
    return found


def _limit_names(numbers: NDArray[np.uint32], sets: NameSets, found: Positions, begin: int) -> None:
    """Lowers the next starts of the events of one group to where the names of a record would be more than the bound."""
    most = sets.max_changed
    held: dict[int, int] = defaultdict(int)
    listed = numbers.tolist()
    stop = 0
    for start, number in enumerate(listed):
        if stop <= start:
            stop = start + 1
            for name in sets.hashes_of(number):
                held[name] += 1
        while stop < len(listed):
            new = [name for name in sets.hashes_of(listed[stop]) if name not in held]
            if len(held) + len(new) > most:
                break
            for name in sets.hashes_of(listed[stop]):
                held[name] += 1
            stop += 1
        found[begin + start] = min(found[begin + start], begin + stop)
        for name in sets.hashes_of(number):
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
