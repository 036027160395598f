"""The version guard (pure): it determines which changes of a batch of folded records are written to the read store.

The version is stored for each cell, that is for each (fold, group, name). One version per group would lose updates: if
two records of a group arrive out of order, the older one may contain a name that the newer one lacks.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from enum import StrEnum
from typing import Final, NamedTuple, TypeAlias


class JsonText(str):
    """A list or an object as compact JSON; it differs from a text with the same characters."""

    __slots__ = ()


class CarriedJson(JsonText):
    """A list or an object in a folded record, with a number that must not be rounded, see :class:`CarriedDecimal`."""

    __slots__ = ()


class CarriedDecimal(Decimal):
    """A number in a folded record whose digits no double keeps. Unlike a decimal from a database, it must not be rounded."""

    __slots__ = ()


Value: TypeAlias = int | float | Decimal | str | bytes | None
"""A value of a cell: a number, true or false, text, :class:`JsonText` or bytes. None: the name was deleted in the source."""


class Cell(NamedTuple):
    """Primary key of a stored value: fold, group and changed name.

    Attributes:
        fold: Name of the fold.
        group_key: Canonical group key as text.
        name: Changed name.
    """

    fold: str
    group_key: str
    name: str


@dataclass(frozen=True, slots=True)
class CellChange:
    """A change of a cell, announced by a folded record.

    Attributes:
        value: The value in the record, or the current value from the source. None: the name was deleted, or its value is still to
            be read from the source.
        is_group_gone: Whether the source reports that the whole group was deleted. If so, the store deletes all names of the group.
        returned: If a query returned none of the requested names: up to five other names that it returned for the group.
    """

    cell: Cell
    version: int
    value: Value = None
    is_group_gone: bool = False
    returned: tuple[str, ...] = ()

    @property
    def key(self) -> tuple[Cell, int]:
        """Cell and version, which identify the change."""
        return self.cell, self.version


@dataclass(frozen=True, slots=True)
class StoredCell:
    """The stored version and value of a cell. A version that was reset is -1; the value of a deleted name is None."""

    version: int
    value: Value


class Verdict(StrEnum):
    """The outcome of a change, which is also a value of the metric label ``result``."""

    WRITTEN = "written"
    STALE = "stale"
    UNCHANGED = "unchanged"


BEFORE_RESET: Final = 0
"""Version of the changes of a record that was folded before the last reset of its fold. It is newer than the version -1 of a value
that was reset, and older than the version of any record that was folded since the reset."""


@dataclass(slots=True)
class MergeResult:
    """The writes that a batch requires.

    Attributes:
        written: Changes whose cell is not stored, or whose version is newer and whose value differs from the stored one.
        confirmed: Changes that have a newer version but the same value as the stored cell. Only the version is written. Otherwise,
            a record with a version in between would be accepted, and an older value would overwrite the newer one.
        stale: Number of changes that the version guard rejects.
        unchanged: Number of changes whose value is stored already, including ``confirmed``.
    """

    written: list[CellChange] = field(default_factory=list)
    confirmed: list[CellChange] = field(default_factory=list)
    stale: int = 0
    unchanged: int = 0


def newest(changes: Iterable[CellChange]) -> list[CellChange]:
    """Select one change for each cell: the one with the highest version, and the first of several with this version.

    Args:
        changes: Changes in the order in which they were read.

    Returns:
        The changes, in the order in which their cells first occur.
    """
    best: dict[Cell, CellChange] = {}
    for change in changes:
        former = best.get(change.cell)
        if former is None or change.version > former.version:
            best[change.cell] = change
    return list(best.values())


def with_the_rest(changes: Sequence[CellChange], stored_cells: Iterable[Cell]) -> list[CellChange]:
    """Complete the deletion of groups: add a deletion for each stored cell of a deleted group that ``changes`` lacks.

    Args:
        changes: At most one change per cell.
        stored_cells: All stored cells of the deleted groups.

    Returns:
        The changes, and then the deletions. A deletion has the highest version among the changes of its group, so that no older
        record restores the value.
    """
    versions: dict[tuple[str, str], int] = {}
    for change in changes:
        if change.is_group_gone:
            group = change.cell[:2]
            versions[group] = max(change.version, versions.get(group, change.version))
    named = {change.cell for change in changes}
    return [*changes, *(CellChange(cell, versions[cell[:2]]) for cell in stored_cells if cell not in named)]


def is_same(left: Value, right: Value) -> bool:
    """Return whether two values are equal in type and value: ``1``, ``1.0`` and ``"1"`` are three different values."""
    return type(left) is type(right) and left == right


def decide(change: CellChange, stored: StoredCell | None) -> Verdict:
    """Decide whether a change is written, is stale, or equals the stored value.

    A change with the stored version but another value is stale. Its record was processed twice, and the value may be the older of
    the two: a former owner may have been suspended between its query of the source and its write. If the value is the newer one, a
    record with a higher version will announce it.
    """
    if stored is None:
        return Verdict.WRITTEN
    if change.version < stored.version:
        return Verdict.STALE
    if is_same(change.value, stored.value):
        return Verdict.UNCHANGED
    return Verdict.STALE if change.version == stored.version else Verdict.WRITTEN


def merge(stored: Mapping[Cell, StoredCell], changes: Iterable[CellChange]) -> MergeResult:
    """Compare a batch with the stored cells by the version guard; return the writes that it requires.

    Args:
        stored: The stored cells, at least those of ``changes``.
        changes: At most one change per cell, see :func:`newest`.
    """
    merged = MergeResult()
    for change in changes:
        present = stored.get(change.cell)
        match decide(change, present):
            case Verdict.WRITTEN:
                merged.written.append(change)
            case Verdict.STALE:
                merged.stale += 1
            case Verdict.UNCHANGED:
                merged.unchanged += 1
                if present is not None and change.version > present.version:
                    merged.confirmed.append(change)
    return merged
