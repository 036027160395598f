"""What a read store can do."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple, Protocol

from streams_app.delivery.batch import TP
from streams_app.errors import StreamsAppError, TryAgainError
from streams_app.read_store.core.merge import Cell, CellChange, Stored

TABLE_NAME: Final = re.compile(r"(?!sqlite_)[A-Za-z_][A-Za-z0-9_]{0,48}", re.ASCII)
"""Becomes part of SQL text, within quotes. Short enough for the name of the table beside it, which a server would cut."""


@dataclass(frozen=True, slots=True)
class Counts:
    """What one transaction did, in cells."""

    written: int = 0
    stale: int = 0
    unchanged: int = 0


class ProgressStep(NamedTuple):
    """How far one transaction takes a partition.

    Attributes:
        tp: Partition of an output topic.
        after: Progress of the store that the transaction continues; None: the store has none of this partition.
        to: Progress after it: the next offset to be read.
    """

    tp: TP
    after: int | None
    to: int


def reset_of(fold: str) -> TP:
    """No partition: its progress says when a fold was reset last, by the wall clock in milliseconds."""
    return TP(fold, -3)


def former_end_of(tp: TP) -> TP:
    """No partition: its progress says where the log of ``tp`` ended when its fold was reset last.

    Every record below was folded from a source that may have been made again since, and its version says nothing any more.
    """
    return TP(f"{tp.topic}@reset", tp.partition)  # no topic has such a name


def former_ends(progress: Mapping[TP, int], tps: Iterable[TP]) -> dict[TP, int]:
    """Partition → the offset below which its records are of before the last reset; 0 where there was none."""
    return {tp: progress.get(former_end_of(tp), 0) for tp in tps}


def replays_of(dead_letters: str) -> TP:
    """No partition that is read: its progress says how often dead letters were put back into the store."""
    return TP(dead_letters, 0)


class ProgressError(TryAgainError):
    """The store does not stand where a transaction goes on; nothing was written. Its progress is to be read again."""

    def __init__(self, what: str, tp: TP, found: int | None, expected: int | None) -> None:
        """Says which store stands where."""
        super().__init__(f"{what} goes on with {tp} at {found}, not at {expected} where it was left")


class NotStorableError(StreamsAppError):
    """A store has found out while writing that it can never hold some of the changes; nothing was decided about the others.

    Attributes:
        cells: Cell → why, in words that go behind "it".
        written: Of a repair by a store without transactions: how many others were written, while ``cells`` are all that were not
            and why. None: nothing was written, and nobody has looked which of the cells are at fault.
    """

    def __init__(self, cells: Mapping[Cell, str], written: int | None = None) -> None:
        """Names the cells."""
        super().__init__(f"{len(cells)} changes can never be held: {next(iter(cells.values()), '')}")
        self.cells = dict(cells)
        self.written = written


class ReadStore(Protocol):
    """The read side.

    Every method raises :class:`~streams_app.errors.TryAgainError` when the store is away, locked or not initialised; nothing
    was changed then, and the call can be repeated.
    """

    async def initialise(self) -> list[str]:
        """Creates what is missing; says what it did, a sentence each. Can be repeated."""

    async def missing(self) -> list[str]:
        """What :meth:`initialise` would create; empty: nothing."""

    async def probe(self) -> None:
        """Tries whether the store can be written to, and leaves it as it was; the tables are there."""

    async def progress(self) -> dict[TP, int]:
        """The offset to go on with, for each partition ever synced."""

    async def apply(self, changes: Sequence[CellChange], step: ProgressStep, now_ms: int) -> Counts:
        """Merges changes and notes the progress, both or neither.

        The transactions of a partition are a chain: each goes on where the one before it ended. A server that has lost its last
        transactions, a restored copy or another owner breaks the chain, and whoever writes learns of it before anything is passed
        over.

        Args:
            changes: At most one a cell.
            step: Where the store must stand, and where it stands then. A store that is at ``step.to`` already has lost its reply
                only: the version guard makes the repetition harmless.
            now_ms: Wall clock, for the column ``updated_ms``.

        Raises:
            ProgressError: The store stands elsewhere; nothing was written.
            NotStorableError: The store found out only now; the call may be repeated without those changes.
        """

    async def begin(self, tp: TP, offset: int, now_ms: int) -> None:
        """Sets the progress of a partition whatever it is, also downwards: its topic was made again."""

    def rejection(self, change: CellChange) -> str | None:
        """Why the store can never hold a change, in words that go behind "it"; None: it can. Such a change is not to be applied."""

    async def count_versioned(self, fold: str) -> int | None:
        """Values of a fold that refuse an older version; None: the store has never been initialised."""

    async def reset_versions(self, fold: str) -> None:
        """Makes every value of a fold accept any version; the values stay. For a source that was made again."""

    async def close(self) -> None:
        """Interrupts what is under way and lets go of the store."""


class Repair(NamedTuple):
    """A cell that is to hold something else.

    Attributes:
        change: What it is to hold, and the version of that.
        found: Version of what it held when it was read; None: nothing was there. If that has changed, the cell is left alone.
    """

    change: CellChange
    found: int | None


class ReadableStore(ReadStore, Protocol):
    """A store whose cells can be read.

    Values are as the store holds them: two of them are the same if :func:`.is_same` says so. Every method raises
    :class:`~streams_app.errors.TryAgainError` as those of :class:`.ReadStore` do.
    """

    async def cells(self, fold: str, after: Cell | None, limit: int) -> list[tuple[Cell, Stored]]:
        """A page of the cells of a fold, those without a value among them, in the order of the store's key.

        Args:
            fold: Name of the fold.
            after: Last cell of the page before; None: from the first one on.
            limit: Number of cells; a store whose rows are whole groups may return the rest of the last one, too. An empty page: no
                more.
        """

    async def read(self, cells: Sequence[Cell]) -> dict[Cell, Stored]:
        """What the store holds of some cells; those it does not have are left out."""

    async def names(self, groups: Sequence[tuple[str, str]]) -> list[Cell]:
        """The cells that the store has of some groups, each a fold and a group key."""

    async def as_stored(self, changes: Sequence[CellChange]) -> list[CellChange]:
        """The same changes with values as the store would hold them. None of them is one that :meth:`rejection` refuses.

        Raises:
            NotStorableError: The store found out only now; the call may be repeated without those changes.
        """

    async def repair(self, repairs: Sequence[Repair], now_ms: int, *, is_trial: bool = False) -> int:
        """Writes cells that are still as they were found, in one transaction if it has those, whatever their versions.

        Args:
            repairs: What is to be written.
            now_ms: Wall clock.
            is_trial: Everything is taken back, so that only what is refused is found out. A store without transactions does
                nothing.

        Returns:
            How many were written, or would be.

        Raises:
            NotStorableError: The store can never hold some of them; its attribute ``written`` says what became of the others.
        """
