"""The port of rebuilding: a new store is filled beside the current one, and replaces it in one atomic step."""

from __future__ import annotations

import secrets
from collections.abc import Awaitable, Callable, Collection, Mapping
from typing import TYPE_CHECKING, Final, Protocol, TypeVar

from streams_app.delivery.batch import TP
from streams_app.errors import ConfigurationError, StreamsAppError
from streams_app.read_store.core.store import ReadStore

if TYPE_CHECKING:
    from streams_app.settings import ReadStoreSettings

T = TypeVar("T")

NEW_SUFFIX: Final = "_new"
FORMER_SUFFIX: Final = "_old"

OWNER: Final = TP("", -2)
"""Pseudo-partition of the new store. Instead of an offset, its checkpoint is the token of the rebuild that owns the new store. The
switch removes it."""


class OvertakenError(StreamsAppError):
    """The new store is gone, or belongs to another rebuild that may not have filled it yet; the current store was not replaced."""

    def __init__(self, table: str) -> None:
        super().__init__(f"{table}{NEW_SUFFIX} is not the table that this one has filled")


class RebuildOwnership:
    """Distinguishes the new store of one rebuild, by a token, from those that other rebuilds create under the same name."""

    def __init__(self, table: str, store: ReadStore) -> None:
        """``table`` is the name of the current table, ``store`` the new store."""
        self._table = table
        self._store = store
        self._token = 0
        self._has_switched = False

    async def claim(self) -> None:
        """Write a random token into the new store. If two rebuilds do this, the later one owns the store."""
        self._token = secrets.randbits(62)
        self._has_switched = False
        await self._store.set_checkpoint(OWNER, self._token, 0)

    def check(self, checkpoints: Mapping[TP, int] | None) -> bool:
        """Check that this rebuild owns the new store, and whether the switch is still necessary.

        Must be called in the transaction of the switch, if the database has transactions.

        Args:
            checkpoints: Checkpoints of the new store; None means that there is no new store.

        Returns:
            True if the switch is necessary; False if an earlier switch succeeded and its reply was lost.

        Raises:
            OvertakenError: The new store does not have the token of this rebuild.
        """
        if checkpoints is None and self._has_switched:
            return False
        if checkpoints is None or checkpoints.get(OWNER) != self._token:
            raise OvertakenError(self._table)
        return True

    def begin_switch(self) -> None:
        """Record that a switch is attempted. If the new store is then gone, :meth:`check` infers that the switch has succeeded."""
        self._has_switched = True


class Rebuilding(Protocol):
    """The part of a rebuild that depends on the database.

    Every method raises :class:`~streams_app.errors.TryAgainError` if the database is unavailable.
    """

    async def prepare(self) -> list[str]:
        """Remove the remains of an interrupted rebuild, and create the empty new store.

        Returns:
            Sentences for the operator: what was removed or changed, and which columns will not be copied.

        Raises:
            ConfigurationError: A table that does not belong to this store has the name of the new or the former table.
        """

    async def switch(self, recreated: Collection[TP]) -> Collection[TP]:
        """Replace the current store by the new one in one atomic step, unless a checkpoint is lower in the new one.

        Args:
            recreated: Partitions whose topics were recreated. For these, the new store need not reach the checkpoint of the current
                store.

        Returns:
            The partitions whose checkpoint is lower in the new store than in the current one; if there are any, nothing was
            changed. Empty if the switch is done, by this call or an earlier one.

        Raises:
            OvertakenError: The new store is not the one that this rebuild prepared.
            ConfigurationError: A constraint of the current table rejects rows of the new one; nothing was changed.
        """

    async def with_writers_paused(self, function: Callable[[], Awaitable[T]]) -> T:
        """Run a function, which may call :meth:`switch`, and return its result.

        If the database can block writers, workers cannot write to the current store while the function runs, and wait.
        """

    async def close(self) -> None:
        """Release all connections."""


def settings_of_new(declared: ReadStoreSettings) -> ReadStoreSettings:
    """Return the settings of the new store, whose table has the suffix ``_new``."""
    return declared.model_copy(update={"table": f"{declared.table}{NEW_SUFFIX}"})


def behind(old: Mapping[TP, int], new: Mapping[TP, int], recreated: Collection[TP]) -> set[TP]:
    """Return the partitions whose checkpoint is lower in the new store than in the current one (pure).

    The partitions in ``recreated`` are ignored. A partition that only the current store has is also ignored, because it belongs to
    a fold that was removed from the settings.
    """
    return {tp for tp, offset in new.items() if tp not in recreated and offset < old.get(tp, offset)}


def check_table_names(declared: ReadStoreSettings, tables: Collection[str]) -> None:
    """Check that no table outside this store has the name of the new or the former table.

    A table belongs to a store if its checkpoint table exists, which has the same name with the suffix ``_progress``.
    """
    names = [f"{declared.table}{suffix}" for suffix in (NEW_SUFFIX, FORMER_SUFFIX)]
    why = "so it is not the store's; rename it, or name another table"
    if foreign := [name for name in names if name in tables and f"{name}_progress" not in tables]:
        raise ConfigurationError([f"{declared.section}.table: {name} has no {name}_progress beside it, {why}" for name in foreign])


def own_columns(declared: ReadStoreSettings) -> list[str]:
    """Return the columns that a store writes in a table with a row per group."""
    return ["fold", "group_key", "versions", "updated_ms", *declared.columns.values()]


def columns_not_copied(declared: ReadStoreSettings, columns: Collection[str]) -> list[str]:
    """Return a warning if users have added columns to a table with a row per group, because a rebuild does not copy them (pure).

    Args:
        columns: Writable columns of the table of this store.
    """
    if declared.shape != "groups":
        return []
    own = own_columns(declared)
    if not (added := [column for column in columns if column not in own]):
        return []
    return [f"the store does not write {', '.join(added)}: what is there will be in {declared.table}{FORMER_SUFFIX} alone"]
