"""What open groups take in Redis (pure): an estimate from the layout of state, see ``docs/internals.md``.

A group stands in two sorted sets and has a hash of its own. Measured with 20 000 groups of 0 to 200 names, 10 to 100 bytes a
member, on Redis 7.0 and Valkey 9.1: the estimate lies between the two, within a quarter of either. Values, which
``keep = "last"`` adds, are not in it.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from streams_app.tuning.columns import NUMBERED, Columns, Times
from streams_app.tuning.splitting import Positions

GROUP_BYTES: Final = 300
"""Of a group without its name and those that changed: 360 with Redis 7, 240 with Valkey 9."""

NAME_BYTES: Final = 4
"""Beside the name itself, in a small hash."""

LARGE_NAME_BYTES: Final = 45
"""The same in a hash that is large, or has a long name: 60 with Redis 7, 30 with Valkey 9."""

SMALL_NAMES: Final = 512
SMALL_NAME_BYTES: Final = 64
"""Up to here Redis packs a hash, unless it is told otherwise (``hash-max-listpack-*``)."""

_ENOUGH: Final = 30


def group_bytes(names: NDArray[np.int64], name_bytes: float, key_bytes: float, prefix_bytes: int) -> NDArray[np.float64]:
    """What each group takes.

    Args:
        names: How many changed names each of them has.
        name_bytes: Mean length of a name.
        key_bytes: Mean length of a group's member: it stands in both sorted sets and in the key of the hash.
        prefix_bytes: Length of what stands before it there.
    """
    is_small = (names <= SMALL_NAMES) & (name_bytes <= SMALL_NAME_BYTES)
    each = name_bytes + np.where(is_small, NAME_BYTES, LARGE_NAME_BYTES)
    return GROUP_BYTES + prefix_bytes + 3 * key_bytes + names * each


class SomeRecords:
    """The records of some groups: what they hold at an instant."""

    def __init__(self, columns: Columns, starts: Positions, closes: Times) -> None:
        """Looks at the first groups.

        Args:
            columns: Sorted.
            starts: Where the records begin.
            closes: When they close, ms after the first score.
        """
        # Of the groups that come first by their hashes, which is as good as any choice by lot.
        events = min(NUMBERED, len(columns.after_ms))
        count = int(np.searchsorted(starts, np.int32(events)))
        self._columns = columns
        self._records = np.repeat(np.arange(count), np.diff(starts[:count], append=events))
        self._after_ms = columns.after_ms[:events].astype(np.int64)
        self._opens, self._closes = self._after_ms[starts[:count]], closes[:count].astype(np.int64)

    def mean_bytes(self, instant_ms: int, prefix_bytes: int) -> float:
        """Mean size of those that are open at an instant after the first score; of all of them where those are few."""
        is_open = (self._opens <= instant_ms) & (instant_ms <= self._closes)
        if np.count_nonzero(is_open) < _ENOUGH:
            is_open[:] = True
            instant_ms = int(self._after_ms.max())
        is_there = is_open[self._records] & (self._after_ms <= instant_ms)
        names = self._names_of(self._records[is_there], self._columns.numbers[: len(self._records)][is_there])[is_open]
        sets = self._columns.sets
        return float(group_bytes(names, sets.name_bytes, self._columns.key_bytes, prefix_bytes).mean())

    def _names_of(self, records: NDArray[np.int64], numbers: NDArray[np.uint32]) -> NDArray[np.int64]:
        """How many different names each record has."""
        sets = self._columns.sets
        if sets.are_counted:
            totals = np.bincount(records, numbers, minlength=len(self._opens))
            return np.minimum(totals, sets.max_changed).astype(np.int64)
        held: dict[int, set[int]] = {}
        for record, number in set(zip(records.tolist(), numbers.tolist(), strict=True)):
            held.setdefault(record, set()).update(sets.names_of(number))
        found = np.zeros(len(self._opens), np.int64)
        for record, names in held.items():
            found[record] = len(names)
        return found
