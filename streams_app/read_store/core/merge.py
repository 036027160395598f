"""The version guard: the effect of a batch of folded records on the read store (pure).

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
        cell: The cell.
        version: Version of the folded record.
        value: The value in the record, or the one read from the source.
        is_group_gone: Whether the source reports that the whole group is deleted; then all its names in the store are deleted.
    """

    cell: Cell
    version: int
    value: Value = None
    is_group_gone: bool = False

    @property
    def key(self) -> tuple[Cell, int]:
        """Cell and version, which identify the change."""
        return self.cell, self.version


@dataclass(frozen=True, slots=True)
class Stored:
    """The stored version and value of a cell."""

    version: int
    value: Value


class Verdict(StrEnum):
    """The outcome of a change; the values are those of the metric label ``result``."""

    WRITTEN = "written"
    STALE = "stale"
    UNCHANGED = "unchanged"


BEFORE_RESET: Final = 0
"""Version given to records from before the last reset of their fold: newer than a value whose version was reset, older than that of
any record folded since."""


@dataclass(slots=True)
class Merged:
    """The writes that a batch requires.

    Attributes:
        written: Changes of cells that are not stored, or with a newer version and another value than stored.
        confirmed: Changes with a newer version of the stored value, of which only the version is written. Otherwise a record with a
            version in between would be accepted, and an older value would overwrite the newer one.
        stale: Number of rejected changes.
        unchanged: Number of changes with the stored value, including ``confirmed``.
    """

    written: list[CellChange] = field(default_factory=list)
    confirmed: list[CellChange] = field(default_factory=list)
    stale: int = 0
    unchanged: int = 0


def newest(changes: Iterable[CellChange]) -> list[CellChange]:
    """Select one change for each cell: the first one of the highest version.

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
    """Add a deletion for each stored name of a deleted group that the changes do not contain.

    Args:
        changes: At most one change per cell.
        stored_cells: Cells that the store has of the deleted groups.

    Returns:
        The changes; each added one has the highest version that names its group, so that no older record restores its value.
    """
    versions: dict[tuple[str, str], int] = {}
    for change in changes:
        if change.is_group_gone:
            group = change.cell[:2]
            versions[group] = max(change.version, versions.get(group, change.version))
    named = {change.cell for change in changes}
    return [*changes, *(CellChange(cell, versions[cell[:2]]) for cell in stored_cells if cell not in named)]


def is_same(left: Value, right: Value) -> bool:
    """Return whether two values are equal as stored: ``1``, ``1.0`` and ``"1"`` are three values."""
    return type(left) is type(right) and left == right


def decide(change: CellChange, stored: Stored | None) -> Verdict:
    """Decide whether a change is written, is stale, or equals the stored value.

    An equal version with another value is stale: the same record was processed twice, and the second query of the source may be the
    older one (a former owner that was suspended between query and write). A later value of the source is announced by a record of
    a higher version.
    """
    if stored is None:
        return Verdict.WRITTEN
    if change.version < stored.version:
        return Verdict.STALE
    if is_same(change.value, stored.value):
        return Verdict.UNCHANGED
    return Verdict.STALE if change.version == stored.version else Verdict.WRITTEN


def merge(stored: Mapping[Cell, Stored], changes: Iterable[CellChange]) -> Merged:
    """Compare a batch with the stored cells by the version guard; return the writes that it requires.

    Args:
        stored: The stored cells, at least those of ``changes``.
        changes: At most one change per cell, see :func:`newest`.
    """
    merged = Merged()
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
