"""Compares the values in a read store with the expected ones, which come from its source or from folded records (pure)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum

from streams_app.read_store.core.merge import Cell, CellChange, StoredCell, is_same


class DifferenceKind(StrEnum):
    """Ways in which a stored value can differ from the expected one."""

    WRONG = "wrong"
    """The store and the source have different values."""
    GONE = "gone"
    """The value was deleted in the source."""
    MISSING = "missing"
    """The store does not have the value, although it has applied a record that named it."""
    REFUSED = "refused"
    """The store can never hold the value of the source, or the source fails for the cell."""


@dataclass(frozen=True, slots=True)
class Difference:
    """A cell whose stored value differs from the expected one.

    Attributes:
        change: The expected value, as the store would hold it, and its version.
        stored: The stored version and value; None means that the cell is not stored.
        why: For the kind ``REFUSED``: the reason why the store rejects the value, or the error of the source. Otherwise empty.
    """

    kind: DifferenceKind
    change: CellChange
    stored: StoredCell | None
    why: str = ""

    @property
    def cell(self) -> Cell:
        return self.change.cell


def difference(change: CellChange, stored: StoredCell | None, *, is_carried: bool) -> Difference | None:
    """Compare the stored value of a cell with the expected one; return None if the stored value is correct.

    A cell that is not stored equals a cell without a value.

    Args:
        is_carried: Whether the expected value comes from a folded record. If so, a stored value of a newer version is also correct.
            A stored value whose version was reset (is below 0) counts as correct, because it is unknown which value is newer.
    """
    if stored is None:
        return None if change.value is None else Difference(DifferenceKind.MISSING, change, None)
    if is_same(change.value, stored.value) or (is_carried and not 0 <= stored.version <= change.version):
        return None
    return Difference(DifferenceKind.GONE if change.value is None else DifferenceKind.WRONG, change, stored)


def differences(changes: Iterable[CellChange], stored: Mapping[Cell, StoredCell], *, is_carried: bool) -> list[Difference]:
    """Compare several cells by :func:`difference`; return a difference for each cell whose stored value is wrong."""
    found = (difference(change, stored.get(change.cell), is_carried=is_carried) for change in changes)
    return [one for one in found if one is not None]


def stays(before: Difference, after: Difference) -> bool:
    """Return whether two checks of a cell found the same difference: neither the store nor the source has changed in between."""
    return before.kind is after.kind and before.stored == after.stored and is_same(before.change.value, after.change.value)
