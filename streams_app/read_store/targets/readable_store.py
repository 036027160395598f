"""What a store can do beside being written: tell what it holds, page by page, and take back what is wrong.

``streams-app read-store verify`` and ``rebuild`` need it; syncing does not.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from streams_app.read_store.core.merge import Cell, CellChange, Stored
from streams_app.read_store.targets.port import ReadStore


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

    async def held(self, changes: Sequence[CellChange]) -> list[CellChange]:
        """The same changes with values as the store would hold them. None of them is one that :meth:`refusal` refuses.

        Raises:
            NotStorableError: Of a store that cannot tell by :meth:`refusal` alone. Without those changes the call may be repeated.
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
