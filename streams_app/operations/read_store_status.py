"""Creates the tables of a read store, and shows what it has: its checkpoints, how far it is behind, and the cells of one group."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass

from streams_app.delivery.batch import TP
from streams_app.errors import ConfigurationError
from streams_app.fold import Fold
from streams_app.operations.folded_topics import FoldedTopics
from streams_app.operations.verify_result import cell_text
from streams_app.read_store.core.record import group_column
from streams_app.read_store.core.store import ReadableStore, check_formats
from streams_app.read_store.registry import open_store
from streams_app.settings import ReadStoreSettings, Settings


@dataclass(frozen=True, slots=True)
class GroupCell:
    """A stored value of a group.

    Attributes:
        value: The value as JSON, or ``-`` for NULL, as ``read-store verify`` shows it.
        version: Version of the record that has written it; -1 if it was reset.
    """

    name: str
    value: str
    version: int


async def create_tables(declared: ReadStoreSettings) -> list[str]:
    """Create missing tables of a read store, as :meth:`.ReadStore.initialise` does; return a sentence about each table."""
    store = open_store(declared)
    try:
        return await store.initialise()
    finally:
        await store.close()


@asynccontextmanager
async def opened_store(declared: ReadStoreSettings) -> AsyncIterator[ReadableStore]:
    """Return a read store whose tables exist, for an ``async with`` block.

    Raises:
        ConfigurationError: A table is missing or does not fit.
        TryAgainError: The store does not answer.
    """
    store = open_store(declared)
    try:
        if missing := await store.missing():
            init = f"streams-app read-store init --store {declared.name}"
            raise ConfigurationError([f"read store {declared.name}: no {' and no '.join(missing)}; run `{init}`"])
        yield store
    finally:
        await store.close()


async def checkpoints_of(settings: Settings, declared: ReadStoreSettings) -> dict[TP, int]:
    """Return the next offset that a read store reads of each partition of its topics that was ever synced.

    Raises:
        NewerFormatError: A newer version has written the store.
    """
    topics = {settings.fold(name).output for name in declared.folds}
    async with opened_store(declared) as store:
        checkpoints = await store.checkpoints()
    check_formats(declared.name, checkpoints)
    return {tp: offset for tp, offset in checkpoints.items() if tp.topic in topics and tp.partition >= 0}


async def log_bounds_of(settings: Settings, declared: ReadStoreSettings) -> dict[TP, tuple[int, int]]:
    """Return the first and the last stable offset of each partition of the topics of a read store."""
    async with FoldedTopics.opened(settings, declared) as topics:
        return await topics.log_bounds()


async def cells_of_group(declared: ReadStoreSettings, fold: Fold, members: Sequence[bytes], most: int) -> list[GroupCell]:
    """Return at most ``most`` stored values of a group, by name.

    Args:
        members: The members that the key of the group may mean, see :func:`.keys_typed`; the first that is stored counts.
    """
    async with opened_store(declared) as store:
        for member in members:
            cells = sorted(await store.names([(fold.name, group_column(member))]))[:most]
            if cells:
                found = await store.read(cells)
                return [GroupCell(cell.name, cell_text(one.value), one.version) for cell, one in sorted(found.items())]
    return []
