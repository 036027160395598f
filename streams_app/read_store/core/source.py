"""The port of sources, from which read stores get current values (pure).

The module also contains the source for folds whose records contain the values themselves.

The SQL of ``read_stores.NAME.sql`` has two parameters:

* ``:groups``: the group keys. In SQLite, they are a JSON array, to be used as ``json_each(:groups)``. A numeric key is in the array
  twice, as a number and as text, so that it matches a column of either type. In PostgreSQL, the group keys are an array of text, to
  be used as ``= ANY(:groups)``, or as ``account_id::text = ANY(:groups)`` if the column is numeric. In MySQL, they are a list of
  text, to be used as ``IN (:groups)``.
* ``:names``: the changed names, in the same form.

The SQL returns rows ``(group, name, value)``, at most one for each pair of group and name; rows of other pairs are allowed. A
requested pair without a row counts as deleted: its value becomes NULL. A row whose name and value are NULL reports that the whole
group was deleted.

The groups 7 and "7" are different. A row of one of them is used for the other only if the query returns no row for that group and
the same name, because ids are often text in one place and numbers in another.
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
    """Split changes into a list for each fold; the changes of a fold stay in order."""
    found: dict[str, list[CellChange]] = {}
    for change in changes:
        found.setdefault(change.cell.fold, []).append(change)
    return list(found.values())


class CarriedSource:
    """The source for values that records carry (folds with ``keep = "last"``)."""

    carries_values = True

    async def current(self, changes: Sequence[CellChange]) -> list[CellChange]:
        return list(changes)

    async def check(self) -> None:
        """Do nothing, because there is no server."""

    async def close(self) -> None:
        """Do nothing, because there is no connection."""
