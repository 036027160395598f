"""The port of sources, which return current values, and the source for values that the records carry (pure).

The SQL of ``read_stores.NAME.sql`` receives two parameters and returns three columns:

* ``:groups``: the group keys. SQLite receives a JSON array for ``json_each(:groups)``, with the text of each number, too;
  PostgreSQL receives an array of text for ``= ANY(:groups)``, or ``account_id::text = ANY(:groups)`` if the groups are numbers;
* ``:names``: the changed names in the same form;
* rows ``(group, name, value)``, at most one for each pair.

It may return more pairs than requested. A pair without a row is deleted: its value becomes NULL. A row without a name and a value
reports that its whole group is deleted. A row belongs to the group of the same type, text or number; if there is none, to the group
with the same text, because ids are often text in one place and numbers in another.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from streams_app.read_store.core.merge import CellChange


class ValueSource(Protocol):
    """Port of a source of current values: a query, a user's function, or the records themselves.

    Its methods raise :class:`~streams_app.errors.TryAgainError` if the values are not available: a
    :class:`~streams_app.read_store.core.errors.SourceFailedError` if some of the groups may be the cause, a
    :class:`~streams_app.read_store.core.errors.TooSlowError` if there may be too many of them.
    """

    carries_values: bool
    """Whether records must contain the values."""

    async def current(self, changes: Sequence[CellChange]) -> list[CellChange]:
        """Return the changes with current values, which are at least as new as the records that announced the changes."""

    async def check(self) -> None:
        """Send the source an empty request, to detect errors of access and configuration."""

    async def close(self) -> None:
        """Interrupt a running request and release all connections."""


def by_fold(changes: Sequence[CellChange]) -> list[list[CellChange]]:
    """Return a list of changes for each fold; within a fold, they stay in order."""
    found: dict[str, list[CellChange]] = {}
    for change in changes:
        found.setdefault(change.cell.fold, []).append(change)
    return list(found.values())


class CarriedSource:
    """The source for values that records carry (folds with ``keep = "last"``)."""

    carries_values = True

    async def current(self, changes: Sequence[CellChange]) -> list[CellChange]:
        """Return the changes unchanged, because the records carry the values."""
        return list(changes)

    async def check(self) -> None:
        """Do nothing, because there is no server."""

    async def close(self) -> None:
        """Do nothing, because there is no connection."""
