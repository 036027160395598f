"""The sets of changed names of a simulated fold: each distinct set is stored once (pure).

:func:`limit_names` ends a record before the event with which it would have more than ``max_changed`` names, as the fold does.
"""

from __future__ import annotations

from array import array
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from streams_app.folding.core.names import names_of_mask

MAX_CACHED_BYTES: Final = 16_000_000
"""Approximate size limit of the lookup table, in bytes. A set that was removed from the table and occurs again is stored
twice until duplicates are removed."""

SET_BYTES: Final = 200
NAME_BYTES: Final = 70
"""Memory, in bytes, of a set in the lookup table, and of each name of the set without its characters."""

MAX_BYTES: Final = 24_000_000
"""Maximum size of all stored sets, in bytes: some 670 000 sets with three names each."""

_CROWDED: Final = 0.75
"""Fraction of the limit that may be in use after unused sets were removed; above it, they would soon be removed again."""


class NameSets:
    """Stores each distinct set of changed names once, and identifies it by a number. A name is represented by its 64-bit hash."""

    def __init__(self, max_changed: int) -> None:
        self.max_changed = max_changed
        self._numbers: dict[Any, int] = {}
        self._cached_bytes = 0
        self._ends = array("I")
        self._hashes = array("q")
        self._contents = array("q")
        self._different: set[int] = set()
        self._names_seen = self._bytes_seen = 0

    def __len__(self) -> int:
        return len(self._ends)

    def numbers(self, names: Iterable[Mapping[str, Any] | int]) -> list[int]:
        """Return, for each event, the number of its set of changed names, a mapping or a mask; new sets are added."""
        keys: list[Any] = [one if type(one) is int else tuple(one) for one in names]  # type: ignore[arg-type]  # the rest is mappings
        found: list[Any] = list(map(self._numbers.get, keys))
        if None in found:
            found = [self._new(key) if number is None else number for key, number in zip(keys, found, strict=True)]
        return found

    def _new(self, key: Any) -> int:
        number = self._numbers.get(key)
        if number is not None:  # the batch contains this set twice
            return number
        names = names_of_mask(key) if type(key) is int else key
        size_bytes = sum(len(name.encode()) for name in names)
        self._names_seen += len(names)
        self._bytes_seen += size_bytes
        hashes = list(map(hash, names))
        if len(self._different) <= self.max_changed:
            self._different.update(hashes)
        self._hashes.extend(hashes)
        self._ends.append(len(self._hashes))
        self._contents.append(hash(frozenset(hashes)))
        number = len(self._ends) - 1
        self._cached_bytes += SET_BYTES + NAME_BYTES * len(names) + size_bytes
        if self._cached_bytes > MAX_CACHED_BYTES:
            self._clear_cache()
        self._numbers[key] = number
        return number

    def _clear_cache(self) -> None:
        self._numbers.clear()
        self._cached_bytes = 0

    @property
    def may_close(self) -> bool:
        """Whether the bound ``max_changed`` may close a group: more different names than that occur in all sets together."""
        return len(self._different) > self.max_changed

    @property
    def is_full(self) -> bool:
        return self._bytes > MAX_BYTES

    @property
    def is_crowded(self) -> bool:
        """Whether the sets take most of :data:`MAX_BYTES` even after unused ones were removed, so that they will soon exceed it."""
        return self._bytes > _CROWDED * MAX_BYTES

    @property
    def _bytes(self) -> int:
        return 8 * len(self._hashes) + (4 + 8) * len(self._ends)

    @property
    def name_bytes(self) -> float:
        """Mean length of a name in the sets, in bytes of UTF-8; 0 if there are none."""
        return self._bytes_seen / max(1, self._names_seen)

    def sizes(self) -> NDArray[np.int64]:
        """Return the number of names in each stored set, by the number of the set."""
        return np.diff(np.frombuffer(self._ends, np.uint32), prepend=0).astype(np.int64)

    def counts(self, numbers: NDArray[np.uint32]) -> NDArray[np.int64]:
        """Return how many names each of these sets has."""
        return self.sizes()[numbers]

    def names_of(self, number: int) -> Sequence[int]:
        """Return the hashes of the names in a set."""
        return self._hashes[self._ends[number - 1] if number else 0 : self._ends[number]]

    def keep(self, is_used: NDArray[np.bool_]) -> NDArray[np.uint32]:
        """Remove unused sets and duplicates; return the new number of each set at its old number, 0 for unused sets."""
        used = np.flatnonzero(is_used)
        contents = np.frombuffer(self._contents, np.int64)[used]
        _, at, same_as = np.unique(contents, return_index=True, return_inverse=True)
        by_age = np.argsort(at)
        ages = np.empty(len(at), np.uint32)
        ages[by_age] = np.arange(len(at))
        numbers = np.zeros(len(is_used), np.uint32)
        numbers[used] = ages[same_as]
        self._keep(used[at[by_age]])
        return numbers

    def _keep(self, kept: NDArray[np.int64]) -> None:
        sizes = self.sizes()
        is_kept = np.zeros(len(sizes), bool)
        is_kept[kept] = True
        hashes = np.frombuffer(self._hashes, np.int64)[np.repeat(is_kept, sizes)]
        contents = np.frombuffer(self._contents, np.int64)[kept]
        self._hashes, self._ends, self._contents = array("q"), array("I"), array("q")
        self._hashes.frombytes(hashes.tobytes())
        self._ends.frombytes(np.cumsum(sizes[kept]).astype(np.uint32).tobytes())
        self._contents.frombytes(contents.tobytes())
        self._clear_cache()


_BLOCK: Final = 1 << 16
NAMES_CACHED: Final = 2_000
"""Maximum number of sets that :func:`_names` caches."""


def limit_names(numbers: NDArray[np.uint32], ends: Sequence[int], sets: NameSets, following: NDArray[np.int32]) -> bool:
    """Make records end earlier where they would have more different changed names than ``sets.max_changed``.

    Args:
        numbers: For each event, the number of its set of changed names in ``sets``. The events are sorted by group.
        ends: For each group, the position after its last event.
        sets: The sets of changed names.
        following: For each event, the position after the last event of a record that begins with this event. Lowered in place.

    Returns:
        Whether any position was lowered.
    """
    is_any, begin = False, 0
    # The number of names of a group's events, counted with repetitions, is an upper limit that usually decides.
    totals = _totals(numbers, ends, sets)
    for end, total in zip(ends, totals, strict=True):
        if total > sets.max_changed:
            is_any |= _by_window(numbers[begin:end], sets, following[begin:end], begin)
        begin = end
    return is_any


def _totals(numbers: NDArray[np.uint32], ends: Sequence[int], sets: NameSets) -> list[int]:
    if len(ends) == 1:
        return [sum(int(sets.counts(numbers[at : at + _BLOCK]).sum()) for at in range(0, len(numbers), _BLOCK))]
    upto = np.cumsum(sets.counts(numbers))[np.array(ends) - 1]
    found: list[int] = np.diff(upto, prepend=0).tolist()
    return found


def _by_window(numbers: NDArray[np.uint32], sets: NameSets, following: NDArray[np.int32], begin: int) -> bool:
    """Apply :func:`limit_names` to one group, by a sliding window that counts each name; only the names in it are in memory."""
    most, events = sets.max_changed, len(numbers)
    in_window: dict[int, int] = defaultdict(int)
    is_any, stop = False, 0
    ahead = _names(numbers, sets)
    coming = next(ahead)
    for start, removed in enumerate(_names(numbers, sets)):
        while stop < events and (stop <= start or len(in_window) + sum(name not in in_window for name in coming) <= most):
            for name in coming:
                in_window[name] += 1
            stop += 1
            coming = next(ahead, ())
        if begin + stop < following[start]:
            following[start] = begin + stop
            is_any = True
        for name in removed:
            in_window[name] -= 1
            if not in_window[name]:
                del in_window[name]
    return is_any


def _names(numbers: NDArray[np.uint32], sets: NameSets) -> Iterator[Sequence[int]]:
    cached: dict[int, Sequence[int]] = {}
    for begin in range(0, len(numbers), _BLOCK):
        for number in numbers[begin : begin + _BLOCK].tolist():
            names = cached.get(number)
            if names is None:
                if len(cached) >= NAMES_CACHED:
                    cached.clear()
                names = cached[number] = sets.names_of(number)
            yield names
