"""The values that the records carry."""

from __future__ import annotations

from collections.abc import Sequence

from streams_app.read_store.core.merge import CellChange


class CarriedSource:
    """The values in the records (folds with ``keep = "last"``)."""

    carries_values = True

    async def current(self, changes: Sequence[CellChange]) -> list[CellChange]:
        """As they are."""
        return list(changes)

    async def check(self) -> None:
        """Always well."""

    async def close(self) -> None:
        """Holds nothing."""
