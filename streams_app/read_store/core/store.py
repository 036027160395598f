"""The ports of stores (pure): syncing needs :class:`ReadStore`; verify and rebuild need its extension :class:`ReadableStore`."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple, Protocol

from streams_app.delivery.batch import TP
from streams_app.errors import FORMAT, NewerFormatError, StreamsAppError, TryAgainError
from streams_app.read_store.core.merge import Cell, CellChange, StoredCell

TABLE_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,48}", re.ASCII)
"""Valid names of tables, which become part of SQL in quotes. The limit of the length leaves room for the suffix of the checkpoint
table; a server would truncate a longer name."""

_FORMAT: Final = "@format"


@dataclass(frozen=True, slots=True)
class Counts:
    """The result of a transaction: how many changes were written, stale or unchanged, see :meth:`ReadStore.apply`."""

    written: int = 0
    stale: int = 0
    unchanged: int = 0


class CheckpointStep(NamedTuple):
    """How one transaction changes the checkpoint of a partition.

    Attributes:
        after: Checkpoint that the store must have before the transaction. None means that it must have none for this partition.
        to: Checkpoint after the transaction: the next offset to be read.
    """

    tp: TP
    after: int | None
    to: int


def reset_of(fold: str) -> TP:
    """Return the key under which a store keeps the time of the last reset of a fold, in ms of the wall clock.

    The store keeps this number like the checkpoint of a partition, although no such partition exists.
    """
    return TP(fold, -3)


def former_end_of(tp: TP) -> TP:
    """Return the key under which a store keeps the end offset of a partition of an output topic at the last reset of its fold.

    Records below this offset were folded before the reset. The source of the fold may have been recreated then, so their versions
    cannot be compared with the versions of later records. If the broker has lost records since the reset, the offset is lowered to
    the first lost record. The store keeps it like the checkpoint of a partition, although no such partition exists.
    """
    return TP(f"{tp.topic}@reset", tp.partition)  # no topic has such a name


def format_of(tp: TP) -> TP:
    """Return the key under which a store keeps the format of a partition's values and checkpoint; without it, the format is 1.

    A version of this project that changes the format writes its number when it claims the partition. The store keeps it like the
    checkpoint of a partition, although no such partition exists.
    """
    return TP(f"{tp.topic}{_FORMAT}", tp.partition)  # no topic has such a name


def check_format(store: str, checkpoints: Mapping[TP, int], tp: TP) -> None:
    """Check that this version can read what a store has of a partition.

    Args:
        store: Name of the store.
        checkpoints: The result of :meth:`ReadStore.checkpoints`.
        tp: Partition of an output topic.

    Raises:
        NewerFormatError: A newer version has written it, in a format that this version does not know.
    """
    if (found := checkpoints.get(format_of(tp), FORMAT)) > FORMAT:
        raise NewerFormatError(f"{tp} in read store {store!r}", str(found))


def check_formats(store: str, checkpoints: Mapping[TP, int]) -> None:
    """Check by :func:`check_format` that this version can read what a store has of all partitions."""
    for tp in checkpoints:
        if tp.topic.endswith(_FORMAT):
            check_format(store, checkpoints, TP(tp.topic.removesuffix(_FORMAT), tp.partition))


def former_ends(checkpoints: Mapping[TP, int], tps: Iterable[TP]) -> dict[TP, int]:
    """Return, for each partition, the offset below which records are older than the last reset; 0 if there was no reset.

    Args:
        checkpoints: The result of :meth:`ReadStore.checkpoints`.
        tps: Partitions of output topics.
    """
    return {tp: checkpoints.get(former_end_of(tp), 0) for tp in tps}


def replays_of(dead_letters: str) -> TP:
    """Return the key under which a store counts the replays from its dead-letter topic ``dead_letters``.

    The store keeps this number like the checkpoint of a partition of that topic.
    """
    return TP(dead_letters, 0)


class CheckpointError(TryAgainError):
    """The checkpoint of a partition is not the one that a transaction expects.

    The stored checkpoint was not changed, and must be read again.
    """

    def __init__(self, what: str, tp: TP, found: int | None, expected: int | None) -> None:
        super().__init__(f"{what} has progress {found} for {tp}, expected {expected}")


class NotStorableError(StreamsAppError):
    """A store detected during a write that it can never hold some of the changes.

    The checkpoint was not changed. A store with transactions has written nothing. One without may have written the other changes.

    Attributes:
        cells: Rejected cells and the reason for each. If a repair fails in a store with transactions, these are all its cells,
            because any of them may be the cause.
        written: Number of cells that a repair has written in a store without transactions. None after other calls, and in a store
            with transactions.
    """

    def __init__(self, cells: Mapping[Cell, str], written: int | None = None) -> None:
        super().__init__(f"{len(cells)} changes can never be stored: {next(iter(cells.values()), '')}")
        self.cells = dict(cells)
        self.written = written


class ReadStore(Protocol):
    """The operations of a read store that syncing needs.

    Every method raises :class:`~streams_app.errors.TryAgainError` if the store is unavailable, locked or not initialised. The
    outcome may be unknown then, but the call can be repeated.
    """

    async def initialise(self) -> list[str]:
        """Create missing tables or indices; return a sentence for each table or index, also for existing ones.

        The call can be repeated.

        Raises:
            ConfigurationError: An existing table or index does not fit the store, or the folder of a file does not exist.
        """

    async def missing(self) -> list[str]:
        """Return the names of tables or indices that are missing or differ from the expected ones; empty if there are none.

        Raises:
            ConfigurationError: The existing table cannot store a row per group, for example because it lacks a column.
        """

    async def probe(self) -> None:
        """Try a write that leaves the store unchanged, to detect whether writes are accepted; the tables must exist."""

    async def checkpoints(self) -> dict[TP, int]:
        """Return the next offset to be read of each partition that was ever synced.

        The result also has entries that are no checkpoints. Their keys are no partitions, for example that of :func:`reset_of`, so
        a caller that looks up a partition never finds them.
        """

    async def apply(self, changes: Sequence[CellChange], step: CheckpointStep, now_ms: int) -> Counts:
        """Merge changes and write the checkpoint atomically; a store without transactions writes the checkpoint last.

        The transactions of a partition are a chain: each continues where the one before it ended. If a server has lost its last
        transactions, was restored from a copy, or has another writer, the chain breaks, and the call fails before records are
        skipped.

        Args:
            changes: At most one change per cell.
            step: The checkpoint that the store must have, and the checkpoint after the transaction. If the store already has the
                checkpoint after the transaction, the reply to an earlier call was lost. The changes are then merged again, which
                the version guard makes harmless.
            now_ms: Wall clock, for the column ``updated_ms``.

        Returns:
            The number of changes by their result; a change is one cell. ``written`` changes have set the value. ``stale`` changes
            were dropped, because the cell has a newer version, or another value of the same version. For ``unchanged`` changes, the
            cell already had the value; only its version may have increased.

        Raises:
            CheckpointError: The checkpoint is not the one that ``step`` expects, and was not changed. A store with transactions has
                written nothing.
            NotStorableError: The store can never hold some of the changes; the call may be repeated without them.
        """

    async def set_checkpoint(self, tp: TP, offset: int, now_ms: int) -> None:
        """Set the checkpoint of a partition, whatever the stored one is; after a topic was recreated, it becomes lower."""

    def rejection(self, change: CellChange) -> str | None:
        """Return the reason why the store can never hold a change, or None if it can. Do not apply a rejected change."""

    async def count_versioned(self, fold: str) -> int | None:
        """Count the values of a fold that are still protected by a version: records of older versions do not overwrite them.

        Values whose versions :meth:`reset_versions` has reset are not counted. None if the store was never initialised.
        """

    async def reset_versions(self, fold: str) -> None:
        """Reset the versions of a fold whose source was recreated: a record of any version may then overwrite a value."""

    async def close(self) -> None:
        """Interrupt a running statement and release all connections."""


class Repair(NamedTuple):
    """A value to be written into one cell, unless the cell has changed since it was read.

    Attributes:
        change: The value and version to be written.
        found: Version of the cell when it was read; None means that the cell did not exist.
    """

    change: CellChange
    found: int | None


class ReadableStore(ReadStore, Protocol):
    """A read store that can also be read and repaired, for ``streams-app read-store verify`` and ``rebuild``.

    Values are returned as the store holds them, and can be compared by :func:`.is_same`.
    """

    async def cells(self, fold: str, after: Cell | None, limit: int) -> list[tuple[Cell, StoredCell]]:
        """Read a page of the cells of a fold, including cells without a value, in the order of the store's key.

        Args:
            after: Last cell of the previous page; None means the first page.
            limit: Maximum number of cells. A store with a row or document per group may exceed it, because a page contains whole
                groups.

        Returns:
            The cells. A page may have fewer cells than ``limit`` although others follow; only an empty page shows that the previous
            one was the last.
        """

    async def read(self, cells: Sequence[Cell]) -> dict[Cell, StoredCell]:
        """Return the stored version and value of each of the given cells; cells that are not stored are omitted."""

    async def names(self, groups: Sequence[tuple[str, str]]) -> list[Cell]:
        """Return which cells of some groups are stored, without their values; each group is given as fold and group key."""

    async def remove_groups(self, groups: Sequence[tuple[str, str]]) -> int:
        """Remove everything that is stored of some groups, for ``streams-app forget``; each is given as fold and group key.

        SQLite also overwrites the bytes in its files. The call may be repeated. A record of a group that arrives afterwards is
        stored again.

        Returns:
            The number of removed rows or documents.
        """

    async def as_stored(self, changes: Sequence[CellChange]) -> list[CellChange]:
        """Return the changes with their values as the store would hold them; :meth:`rejection` must have accepted each change.

        Raises:
            NotStorableError: The store can never hold some of the changes; the call may be repeated without them.
        """

    async def repair(self, repairs: Sequence[Repair], now_ms: int, *, is_trial: bool = False) -> int:
        """Write values into cells whose version has not changed since they were read, even if the new version is older.

        A store with transactions writes all cells in one transaction.

        Args:
            now_ms: Wall clock, for the column ``updated_ms``.
            is_trial: Whether to roll everything back, and only detect rejected cells. A store without transactions then does
                nothing.

        Returns:
            The number of cells that were written, or would be written; 0 for a trial of a store without transactions.

        Raises:
            NotStorableError: The store can never hold some of the values. Its attribute ``written`` tells how many cells a store
                without transactions has written nevertheless.
        """
