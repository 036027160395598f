"""Whether what a store holds is what it should hold (pure)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum

from streams_app.read_store.core.merge import Cell, CellChange, Stored, is_same


class DifferenceKind(StrEnum):
    """What is wrong with a cell."""

    WRONG = "wrong"
    """The store has another value than the source."""
    GONE = "gone"
    """The source does not know the value any more."""
    MISSING = "missing"
    """The store does not have the value, though a record that it has taken named it."""
    REFUSED = "refused"
    """The store can never hold what the source has."""


@dataclass(frozen=True, slots=True)
class Difference:
    """A cell of which the store holds something else than it should.

    Attributes:
        kind: What is wrong.
        change: What it should hold, the value as the store would hold it; and the version of that.
        stored: What it holds.
        why: Of a refused value, the reason in words.
    """

    kind: DifferenceKind
    change: CellChange
    stored: Stored | None
    why: str = ""

    @property
    def cell(self) -> Cell:
        """Which cell."""
        return self.change.cell


def difference(change: CellChange, stored: Stored | None, *, is_carried: bool) -> Difference | None:
    """What is wrong with one cell; None: nothing.

    A cell that is not there is as good as one without a value.

    Args:
        change: What it should hold, the value as the store would hold it.
        stored: What it holds.
        is_carried: The value is that of a record, and as old: a store that has a newer one is right. One whose guard was lowered
            (a version below 0) holds values of records that nobody can tell from older ones any more; it is right, too.
    """
    if stored is None:
        return None if change.value is None else Difference(DifferenceKind.MISSING, change, None)
    if is_same(change.value, stored.value) or (is_carried and not 0 <= stored.version <= change.version):
        return None
    return Difference(DifferenceKind.GONE if change.value is None else DifferenceKind.WRONG, change, stored)


def differences(changes: Iterable[CellChange], stored: Mapping[Cell, Stored], *, is_carried: bool) -> list[Difference]:
    """What is wrong with several cells, see :func:`difference`."""
    found = (difference(change, stored.get(change.cell), is_carried=is_carried) for change in changes)
    return [one for one in found if one is not None]


def stays(before: Difference, after: Difference) -> bool:
    """Whether two looks found the same: neither the store nor the source has moved on since."""
    return before.kind is after.kind and before.stored == after.stored and is_same(before.change.value, after.change.value)
