"""Where the current values come from: the record itself, or a query of the write database.

The SQL of ``read_stores.NAME.sql`` gets two parameters and returns three columns:

* ``:groups``: the group keys. SQLite gets a JSON array for ``json_each(:groups)``, of a number also its text; PostgreSQL gets an
  array of text for ``= ANY(:groups)``, or ``account_id::text = ANY(:groups)`` where they are numbers;
* ``:names``: the changed names in the same form;
* rows ``(group, name, value)``, at most one for each pair.

It may return more pairs than asked for. A pair without a row is gone from the source: its value becomes NULL. A row without a name
and a value says so of its whole group. A row belongs to the group of its type, text or number; where there is none, to the one that
reads the same: ids are often text here and numbers there.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from streams_app.read_store.core.merge import CellChange


class ValueSource(Protocol):
    """Knows the current value of every cell.

    Its methods raise :class:`~streams_app.errors.TryAgainError` when the values cannot be had now: a
    :class:`~streams_app.read_store.core.errors.SourceFailedError` where some of the groups may be the cause, a
    :class:`~streams_app.read_store.core.errors.TooSlowError` where there may be too many of them.
    """

    carries_values: bool
    """The records must carry the values."""

    async def current(self, changes: Sequence[CellChange]) -> list[CellChange]:
        """The same changes with current values, at least as new as the records that announced them."""

    async def check(self) -> None:
        """Tries the source without asking for anything."""

    async def close(self) -> None:
        """Interrupts what is under way and lets go."""


def by_fold(changes: Sequence[CellChange]) -> list[list[CellChange]]:
    """Changes of each fold, in their order."""
    found: dict[str, list[CellChange]] = {}
    for change in changes:
        found.setdefault(change.cell.fold, []).append(change)
    return list(found.values())


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
