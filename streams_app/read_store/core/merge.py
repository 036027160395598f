"""What a batch of folded records does to the read store (pure).

The version guard is kept per cell, that is per (fold, group, name). One version per group would lose updates: when two records
of a group arrive out of order, the older one may carry a name that the newer one does not mention.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from enum import StrEnum
from typing import Final, NamedTuple, TypeAlias


class JsonText(str):
    """A list or an object as compact JSON, which is not the same as a text that reads like it."""

    __slots__ = ()


Value: TypeAlias = int | float | Decimal | str | bytes | None
"""What a cell holds: a number, true or false, text, :class:`JsonText`, bytes. None: the source knows the name no longer."""


class Cell(NamedTuple):
    """Primary key of the read store.

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
    """A cell that some folded record says has changed.

    Attributes:
        cell: Which one.
        version: Version of the folded record.
        value: As carried by the record, or as read from the source.
        is_group_gone: The source says that the whole group is gone: with it whatever other names the store has of it.
    """

    cell: Cell
    version: int
    value: Value = None
    is_group_gone: bool = False

    @property
    def key(self) -> tuple[Cell, int]:
        """What tells it from other changes."""
        return self.cell, self.version


@dataclass(frozen=True, slots=True)
class Stored:
    """What the store holds for a cell."""

    version: int
    value: Value


class Verdict(StrEnum):
    """What became of a change; the values are those of the metric label ``result``."""

    WRITTEN = "written"
    STALE = "stale"
    UNCHANGED = "unchanged"


BEFORE_RESET: Final = 0
"""Version of what a log has said that was made again since: it is newer than what a lowered guard has left and older than whatever
is folded now."""


@dataclass(slots=True)
class Merged:
    """What to do to the store.

    Attributes:
        written: New version and new value.
        confirmed: New version, same value: the value is not written, but the version is. Left behind, it would let a record
            between the two versions through, and the cell would go back.
        stale: How many were refused.
        unchanged: How many brought the value that is stored, ``confirmed`` among them.
    """

    written: list[CellChange] = field(default_factory=list)
    confirmed: list[CellChange] = field(default_factory=list)
    stale: int = 0
    unchanged: int = 0


def newest(changes: Iterable[CellChange]) -> list[CellChange]:
    """One change a cell: the one of the highest version, of equals the first.

    Args:
        changes: Changes in the order in which they were read.

    Returns:
        In the order in which the cells were first seen.
    """
    best: dict[Cell, CellChange] = {}
    for change in changes:
        known = best.get(change.cell)
        if known is None or change.version > known.version:
            best[change.cell] = change
    return list(best.values())


def with_the_rest(changes: Sequence[CellChange], known: Iterable[Cell]) -> list[CellChange]:
    """The changes, and one for each other name of the groups that are gone.

    Args:
        changes: At most one a cell.
        known: Cells that the store has of the groups that are gone.

    Returns:
        Each further change has the highest version that names its group, so that what an older record says does not come back.
    """
    versions: dict[tuple[str, str], int] = {}
    for change in changes:
        if change.is_group_gone:
            group = change.cell[:2]
            versions[group] = max(change.version, versions.get(group, change.version))
    named = {change.cell for change in changes}
    return [*changes, *(CellChange(cell, versions[cell[:2]]) for cell in known if cell not in named)]


def is_same(left: Value, right: Value) -> bool:
    """Equal as stored: ``1``, ``1.0`` and ``"1"`` are three values."""
    return type(left) is type(right) and left == right


def decide(change: CellChange, stored: Stored | None) -> Verdict:
    """Whether one change may be written.

    An equal version with another value is stale: it is the same record seen twice, and the second reading of the source may be
    the older one (a former owner that was suspended between reading and writing). Whatever the source has had since then is
    announced by a record of a higher version.
    """
    if stored is None:
        return Verdict.WRITTEN
    if change.version < stored.version:
        return Verdict.STALE
    if is_same(change.value, stored.value):
        return Verdict.UNCHANGED
    return Verdict.STALE if change.version == stored.version else Verdict.WRITTEN


def merge(stored: Mapping[Cell, Stored], changes: Iterable[CellChange]) -> Merged:
    """Decides about a batch.

    Args:
        stored: What the store holds, for the cells of ``changes`` at least.
        changes: At most one a cell, see :func:`newest`.
    """
    merged = Merged()
    for change in changes:
        known = stored.get(change.cell)
        match decide(change, known):
            case Verdict.WRITTEN:
                merged.written.append(change)
            case Verdict.STALE:
                merged.stale += 1
            case Verdict.UNCHANGED:
                merged.unchanged += 1
                if known is not None and change.version > known.version:
                    merged.confirmed.append(change)
    return merged
