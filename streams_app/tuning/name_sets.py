"""The sets of names that events change, each kept once: what the bound on names needs (pure)."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from streams_app.folding.core.closing import FEW_NAMES
from streams_app.folding.core.names import of_mask

MOST_KNOWN: Final = 100_000
"""Sets that are found again. What is forgotten is kept once more when it comes back, which costs room and nothing else."""

MOST_BYTES: Final = 40_000_000
"""Of all sets: with three names each some 1.4 million."""


class NameSets:
    """Numbers the sets of names that occur. A name is its 64-bit hash.

    Attributes:
        max_changed: Bound of the fold on the names of a group.
        are_counted: The names did not fit: a set is told by how many names it has, and its number is that.
    """

    def __init__(self, max_changed: int) -> None:
        self.max_changed = max_changed
        self.are_counted = False
        self._known: dict[Any, int] = {}
        self._ends = array("I")
        self._hashes = array("q")
        self._different: set[int] = set()
        self._unlike = self._names_seen = self._bytes_seen = 0

    def numbers(self, names: Iterable[Mapping[str, Any] | int]) -> list[int]:
        """The number of the set of each event; masks and mappings are two ways to say one."""
        keys: list[Any] = [one if type(one) is int else tuple(one) for one in names]  # type: ignore[arg-type]  # the rest is mappings
        found: list[Any] = list(map(self._known.get, keys))
        if None in found:
            found = [self._new(key) if number is None else number for key, number in zip(keys, found, strict=True)]
        return found

    def _new(self, key: Any) -> int:
        number = self._known.get(key)
        if number is not None:  # the batch has it twice
            return number
        if len(self._known) >= MOST_KNOWN:
            self._known.clear()
        names = of_mask(key) if type(key) is int else key
        number = len(names)
        self._names_seen += number
        self._bytes_seen += sum(map(len, names))
        if len(self._different) <= self.max_changed:
            self._different.update(map(hash, names))
        if not self.are_counted:
            self._hashes.extend(map(hash, names))
            self._ends.append(len(self._hashes))
            number = len(self._ends) - 1
        self._known[key] = number
        return number

    @property
    def may_close(self) -> bool:
        """Whether so many different names occur that a group could reach the bound."""
        return len(self._different) > self.max_changed

    @property
    def is_full(self) -> bool:
        """Whether the sets take more room than there is."""
        return 8 * len(self._hashes) + 4 * len(self._ends) > MOST_BYTES

    @property
    def may_be_counted(self) -> bool:
        """Whether the bound is so far off that an upper limit of the names of a group will do where the names do not fit."""
        return self.max_changed >= FEW_NAMES

    @property
    def name_bytes(self) -> float:
        """Mean length of a name in the sets."""
        return self._bytes_seen / max(1, self._names_seen)

    def sizes(self) -> NDArray[np.int64]:
        """How many names each set has, by its number."""
        return np.diff(np.frombuffer(self._ends, np.uint32), prepend=0).astype(np.int64)

    def counts(self, numbers: NDArray[np.uint32]) -> NDArray[np.int64]:
        """How many names each of these sets has."""
        return numbers.astype(np.int64) if self.are_counted else self.sizes()[numbers]

    def names_of(self, number: int) -> Sequence[int]:
        """The names of a set; where they did not fit as many that no other set has."""
        if self.are_counted:
            self._unlike += number
            return range(self._unlike - number, self._unlike)
        return self._hashes[self._ends[number - 1] if number else 0 : self._ends[number]]

    def keep(self, used: NDArray[np.int64]) -> None:
        """Forgets the sets that are not used any more; those that are get the numbers 0, 1, 2 in their order.

        Args:
            used: Numbers in rising order.
        """
        sizes = self.sizes()
        ends = np.frombuffer(self._ends, np.uint32)
        kept = np.zeros(len(sizes), bool)
        kept[used] = True
        of_kept = np.repeat(kept, sizes)
        hashes = np.frombuffer(self._hashes, np.int64)[of_kept]
        ends = np.cumsum(sizes[used]).astype(np.uint32)
        self._hashes, self._ends = array("q"), array("I")
        self._hashes.frombytes(hashes.tobytes())
        self._ends.frombytes(ends.tobytes())
        self._known.clear()

    def count_only(self) -> None:
        """Forgets the names; a set is its size from now on."""
        self.are_counted = True
        self._hashes, self._ends = array("q"), array("I")
        self._known.clear()
