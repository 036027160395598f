"""A new store that is filled beside the one in use and takes its place in one transaction."""

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
MOST_LETTERS: Final = 45
"""Of the name of a table, which gets a suffix."""


OWNER: Final = TP("", -2)
"""No partition: its progress in the new store says whose rebuild has made it. It is removed before anybody else reads it."""


class OvertakenError(StreamsAppError):
    """The new store is gone, or is another rebuild's, which may have filled it with nothing yet; nothing was switched."""

    def __init__(self, table: str) -> None:
        """Names the store in use."""
        super().__init__(f"{table}{NEW_SUFFIX} is not the table that this one has filled")


class RebuildOwnership:
    """Tells the new store of one rebuild from those that others make under the same name."""

    def __init__(self, table: str, store: ReadStore) -> None:
        """Asks nothing yet.

        Args:
            table: The store in use.
            store: The new one.
        """
        self._table = table
        self._store = store
        self._token = 0
        self._has_switched = False

    async def claim(self) -> None:
        """Notes in the new store that it is ours; of two rebuilds it is that of the last one."""
        self._token = secrets.randbits(62)
        self._has_switched = False
        await self._store.begin(OWNER, self._token, 0)

    def check(self, progress: Mapping[TP, int] | None) -> bool:
        """Whether there is still something to switch; to be called in the transaction of the switch.

        Args:
            progress: Of the new store; None: there is none.

        Returns:
            No: a switch has been done, whose reply was lost.

        Raises:
            OvertakenError: The new store is not ours.
        """
        if progress is None and self._has_switched:
            return False
        if progress is None or progress.get(OWNER) != self._token:
            raise OvertakenError(self._table)
        return True

    def mark_switching(self) -> None:
        """Notes that a switch is tried whose reply may be lost."""
        self._has_switched = True


class Rebuilding(Protocol):
    """What is particular to a kind of store. Its methods raise as those of :class:`.ReadStore` do."""

    async def prepare(self) -> list[str]:
        """Removes what a rebuild that did not end has left, and makes the new store empty; says what it found, a sentence each.

        Raises:
            ConfigurationError: Something could not follow the switch.
        """

    async def switch(self, recreated: Collection[TP]) -> Collection[TP]:
        """Puts the new store in the place of the other, in one transaction, unless it is behind it.

        Args:
            recreated: Partitions of which the store in use is not to be reached: their topics were made again.

        Returns:
            Partitions of which the new store is behind; nothing was done then. Empty: it is done, also if it was done before.

        Raises:
            OvertakenError: The new store is not the one that this rebuild has prepared.
        """

    async def with_writers_paused(self, function: Callable[[], Awaitable[T]]) -> T:
        """Runs a function, in which :meth:`switch` may be called, while workers wait with writing, if the store can let them."""

    async def close(self) -> None:
        """Lets go of the store."""


def settings_of_new(declared: ReadStoreSettings) -> ReadStoreSettings:
    """The settings of the store that is filled."""
    return declared.model_copy(update={"table": f"{declared.table}{NEW_SUFFIX}"})


def behind(old: Mapping[TP, int], new: Mapping[TP, int], recreated: Collection[TP]) -> set[TP]:
    """Partitions of which a new store has not everything that the old one has (pure).

    A partition that the new store does not know at all is of a fold that is no longer in the store.
    """
    return {tp for tp, offset in new.items() if tp not in recreated and offset < old.get(tp, offset)}


def check_table_names(declared: ReadStoreSettings, tables: Collection[str]) -> None:
    """Refuses tables under the names of the new and the former one that are not the store's: these have a progress beside them.

    Args:
        declared: The store in use.
        tables: Those that are there.

    Raises:
        ConfigurationError: There is one.
    """
    names = [f"{declared.table}{suffix}" for suffix in (NEW_SUFFIX, FORMER_SUFFIX)]
    told = "so it is not the store's; rename it, or name another table"
    if foreign := [name for name in names if name in tables and f"{name}_progress" not in tables]:
        raise ConfigurationError([f"{declared.section}.table: {name} has no {name}_progress beside it, {told}" for name in foreign])


def columns_not_copied(declared: ReadStoreSettings, columns: Collection[str]) -> list[str]:
    """What is said of the columns that people have added to a table with a row a group (pure); empty: there are none.

    Args:
        declared: The store in use.
        columns: Those of its table that can be written.
    """
    if declared.shape != "groups":
        return []
    own = {"fold", "group_key", "versions", "updated_ms", *declared.columns.values()}
    if not (added := [column for column in columns if column not in own]):
        return []
    return [f"the store does not write {', '.join(added)}: what is there will be in {declared.table}{FORMER_SUFFIX} alone"]
