"""Where the bound on names parts the events of a group (pure)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from streams_app.tuning.name_sets import NameSets

_BLOCK: Final = 1 << 16
_KNOWN: Final = 2_000
"""Sets that are found again quickly."""


def limit_names(numbers: NDArray[np.uint32], ends: Sequence[int], sets: NameSets, following: NDArray[np.int32]) -> bool:
    """Lowers the next starts to where a record would have more names than the bound allows.

    Args:
        numbers: The sets of names of the events of some groups.
        ends: Where the groups end.
        sets: Of these numbers.
        following: For each event the position of the first later one that is kept out of its record.

    Returns:
        Whether it lowered any.
    """
    is_any, begin = False, 0
    # How many names the events of a group have, each counted as new, is an upper limit that tells nearly always.
    totals = _totals(numbers, ends, sets)
    for end, total in zip(ends, totals, strict=True):
        if total > sets.max_changed:
            limit = _by_count if sets.are_counted else _by_window
            is_any |= limit(numbers[begin:end], sets, following[begin:end], begin)
        begin = end
    return is_any


def _totals(numbers: NDArray[np.uint32], ends: Sequence[int], sets: NameSets) -> list[int]:
    """How many names the events of each group have, each counted as new."""
    if len(ends) == 1:
        return [sum(int(sets.counts(numbers[at : at + _BLOCK]).sum()) for at in range(0, len(numbers), _BLOCK))]
    upto = np.cumsum(sets.counts(numbers))[np.array(ends) - 1]
    found: list[int] = np.diff(upto, prepend=0).tolist()
    return found


def _by_count(numbers: NDArray[np.uint32], sets: NameSets, following: NDArray[np.int32], begin: int) -> bool:
    """In one group, if all names are different and a number is how many there are."""
    totals = np.cumsum(numbers, dtype=np.int64)
    is_any = False
    for at in range(0, len(numbers), _BLOCK):
        before = totals[at : at + _BLOCK] - numbers[at : at + _BLOCK]
        own = np.arange(at, at + len(before))
        stops = begin + np.maximum(np.searchsorted(totals, before + sets.max_changed, "right"), own + 1)
        is_any |= bool((stops < following[at : at + _BLOCK]).any())
        np.minimum(following[at : at + _BLOCK], stops, out=following[at : at + _BLOCK], casting="same_kind")
    return is_any


def _by_window(numbers: NDArray[np.uint32], sets: NameSets, following: NDArray[np.int32], begin: int) -> bool:
    """In one group: a window over its events, and how often it has each name. No more is held than the names of a window."""
    most, events = sets.max_changed, len(numbers)
    held: dict[int, int] = defaultdict(int)
    is_any, stop = False, 0
    ahead = _names(numbers, sets)
    coming = next(ahead)
    for start, leaving in enumerate(_names(numbers, sets)):
        while stop < events and (stop <= start or len(held) + sum(name not in held for name in coming) <= most):
            for name in coming:
                held[name] += 1
            stop += 1
            coming = next(ahead, ())
        if begin + stop < following[start]:
            following[start] = begin + stop
            is_any = True
        for name in leaving:
            held[name] -= 1
            if not held[name]:
                del held[name]
    return is_any


def _names(numbers: NDArray[np.uint32], sets: NameSets) -> Iterator[Sequence[int]]:
    """The names of one event after the other."""
    known: dict[int, Sequence[int]] = {}
    for begin in range(0, len(numbers), _BLOCK):
        for number in numbers[begin : begin + _BLOCK].tolist():
            names = known.get(number)
            if names is None:
                if len(known) >= _KNOWN:
                    known.clear()
                names = known[number] = sets.names_of(number)
            yield names
