"""Rebuilds a read store: fills a new one beside the one in use, then switches to it, while workers and readers continue.

The new store is filled with current values for the records of the folds' output topics. Then it receives those cells of the store
in use whose records retention has removed. The switch happens once the new store has applied everything that the other one has, so
that no value becomes older. In their next transaction, workers find the checkpoints of the new store, and continue from there.
Until the switch, the store in use is not changed. A rebuild that is killed leaves a second table, which the next rebuild removes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from streams_app.clock import Clock
from streams_app.delivery.batch import TP
from streams_app.errors import ConfigurationError, TryAgainError
from streams_app.formatting import counted
from streams_app.operations.folded_topics import AnnouncedChanges, FoldedTopics
from streams_app.operations.repairing import repaired
from streams_app.operations.retrying import with_retries
from streams_app.operations.verify import BATCH, left_of
from streams_app.read_store.core.merge import Cell, CellChange, StoredCell
from streams_app.read_store.core.rebuilding import FORMER_SUFFIX, OvertakenError
from streams_app.read_store.core.store import (
    CheckpointError,
    CheckpointStep,
    NotStorableError,
    Repair,
    check_formats,
    former_end_of,
    former_ends,
    replays_of,
    reset_of,
)
from streams_app.read_store.registry import open_rebuilding, open_store
from streams_app.read_store.sync.batch_writer import BatchWriter
from streams_app.read_store.sync.current_values import CurrentValues
from streams_app.settings import ReadStoreSettings, Settings
from streams_app.settings.databases import database_of

MAX_ATTEMPTS: Final = 100
"""Maximum number of attempts to switch. An attempt fails only if, at that moment, the store in use has applied something that the
new store has not applied yet."""

FREE_ATTEMPTS: Final = 3
"""Number of attempts to switch that do not block workers. Later attempts block the writes of workers if the database can."""

ALONE: Final = "there is no store in use of this form: what retention has removed from the topics will not be in the new one"


@dataclass(slots=True)
class RebuildResult:
    """Result of a rebuild.

    Attributes:
        kept: Number of cells copied from the store in use, because their records are gone or their version is newer.
        unstorable: Number of cells that were skipped, because the store can never hold their values or the source fails for them.
        rejected: Number of records that were skipped, because they are not folded records.
        is_alone: Whether there was no store in use that could be read.
    """

    records: int = 0
    kept: int = 0
    unstorable: int = 0
    rejected: int = 0
    is_alone: bool = False


class Rebuild:
    """Fills a new table or index for one read store, then puts it in the place of the one in use."""

    def __init__(
        self,
        settings: Settings,
        declared: ReadStoreSettings,
        clock: Clock,
        *,
        on_found: Callable[[str], None] = lambda _: None,
        on_progress: Callable[[str, int, int | None], None] = lambda *_: None,
    ) -> None:
        """Prepare a rebuild, without connecting.

        Args:
            on_found: Called before the fill with one sentence for each fact that an operator should know.
            on_progress: Called with a message, the amount of work done, and the total; None: the total is unknown.
        """
        self.done = RebuildResult()
        self._settings = settings
        self._declared = declared
        self._clock = clock
        self._on_found = on_found
        self._on_progress = on_progress
        self._rebuilding, self._new = open_rebuilding(declared)
        self._old = open_store(declared)
        self._source = CurrentValues(declared, clock)
        self._writer = BatchWriter(self._new, declared, clock)
        self._stands: dict[TP, int] = {}
        self._former: dict[TP, int] = {}
        self._beside = {replays_of(declared.dead_letters), *map(reset_of, declared.folds)}

    async def run(self) -> RebuildResult:
        """Fill the new store and switch to it.

        Raises:
            ConfigurationError: A topic does not exist, or a constraint of the table rejects its new rows.
            TryAgainError: The store, its source or Kafka does not answer, or another rebuild is in progress; nothing was switched.
        """
        try:
            async with FoldedTopics.opened(self._settings, self._declared) as topics:
                for line in await with_retries(self._rebuilding.prepare):
                    self._on_found(line)
                self.done.is_alone = await self._is_alone()
                if self.done.is_alone:
                    self._on_found(ALONE)
                else:
                    check_formats(self._declared.name, await with_retries(self._old.checkpoints))
                log_bounds = await topics.log_bounds()
                self._former = {} if self.done.is_alone else former_ends(await with_retries(self._old.checkpoints), log_bounds)
                for tp, (begin, _) in log_bounds.items():
                    self._stands[tp] = begin
                    await self._begin(tp, begin)
                await self._read(topics, log_bounds)
                await self._keep()
                await self._switch(topics)
        except OvertakenError as error:
            raise TryAgainError(
                f"another rebuild of {self._declared.name} is in progress: {error}; nothing was switched"
            ) from error
        finally:
            for each in (self._source, self._new, self._old, self._rebuilding):
                await each.close()
        return self.done

    async def _is_alone(self) -> bool:
        try:
            return bool(await with_retries(self._old.missing))
        except ConfigurationError:
            return True  # the table has other columns

    async def _begin(self, tp: TP, offset: int) -> None:
        await with_retries(lambda: self._new.set_checkpoint(tp, offset, self._clock.now_ms()))

    async def _read(self, topics: FoldedTopics, log_bounds: Mapping[TP, tuple[int, int]]) -> None:
        """Apply the records of the folds' output topics, up to their current ends, to the new store."""
        ranges = {tp: (self._stands[tp], end) for tp, (_, end) in log_bounds.items() if tp in self._stands}
        total, done = left_of(log_bounds, self._stands), 0
        async for part in topics.read(ranges, self._former):
            await self._apply(part)
            self.done.records += part.records
            self.done.rejected += part.rejected
            done += part.end - part.begin
            self._on_progress(f"{self.done.records:,} folded records read", done, total)

    async def _apply(self, part: AnnouncedChanges) -> None:
        changes = await self._possible(part.changes)
        step = CheckpointStep(part.tp, self._stands[part.tp], part.end)
        try:
            while unstorable := await self._write(changes, step):
                self.done.unstorable += len(unstorable)
                changes = [change for change in changes if change.cell not in unstorable]
        except CheckpointError as error:
            raise TryAgainError(f"another rebuild of {self._declared.name} is in progress: {error}") from error
        self._stands[part.tp] = part.end

    async def _write(self, changes: Sequence[CellChange], step: CheckpointStep) -> Collection[Cell]:
        """Write changes into the new store. If the store cannot hold some of the values, write nothing and return their cells."""
        try:
            await with_retries(lambda: self._writer.apply(changes, step))
        except NotStorableError as error:
            if not error.cells:
                raise  # no single row is to blame, and nothing was written
            return error.cells.keys()
        return ()

    async def _possible(self, changes: Sequence[CellChange]) -> list[CellChange]:
        """Return the changes with current values. Count and omit those that the store can never hold or whose source fails."""
        current, _ = await with_retries(lambda: self._source.of(changes))
        possible = [change for change in current if self._new.rejection(change) is None]
        self.done.unstorable += len(changes) - len(possible)
        return possible

    async def _keep(self) -> None:
        """Copy those cells from the store in use for which :func:`is_kept` is true."""
        if self.done.is_alone:
            return
        progress = await with_retries(self._old.checkpoints)
        resets = progress.keys() & set(map(former_end_of, self._stands))
        # The checkpoints are read before the first cell, so that the switch detects later changes.
        for what in self._beside | resets:
            await self._begin(what, progress.get(what, 0))
        is_level = all(progress.get(tp, -1) >= offset for tp, offset in self._stands.items())
        seen = 0
        for fold in self._declared.folds:
            after: Cell | None = None
            while batch := await with_retries(lambda fold=fold, after=after: self._old.cells(fold, after, BATCH)):  # type: ignore[misc]  # mypy knows no type of a lambda with a default
                after = batch[-1][0]
                seen += len(batch)
                await self._keep_batch(dict(batch), is_level=is_level)
                self._on_progress(f"{seen:,} cells of the present store compared", seen, None)

    async def _keep_batch(self, batch: Mapping[Cell, StoredCell], *, is_level: bool) -> None:
        found = await with_retries(lambda: self._new.read(list(batch)))
        is_carried = self._declared.source == "carried"
        kept = [
            cell for cell, stored in batch.items() if is_kept(stored, found.get(cell), is_level=is_level, is_carried=is_carried)
        ]
        wanted = [CellChange(cell, batch[cell].version, batch[cell].value) for cell in kept]
        versions = {cell: stored.version for cell, stored in found.items()}
        possible = await self._possible(wanted)  # also a cell without a value: its version rejects older values
        repairs = [Repair(change, versions.get(change.cell)) for change in possible]
        written, unstorable = await repaired(self._new, repairs, self._clock.now_ms)
        # If the current value cannot be read or stored, the previous value stays, as in a worker.
        done = {change.cell for change in possible} - unstorable.keys()
        last = [Repair(change, versions.get(change.cell)) for change in wanted if change.cell not in done]
        as_before, _ = await repaired(self._new, last, self._clock.now_ms)
        self.done.kept += written + as_before
        self.done.unstorable += len(unstorable)

    async def _switch(self, topics: FoldedTopics) -> None:
        for number in range(MAX_ATTEMPTS):
            if number < FREE_ATTEMPTS:
                left = await self._try_to_switch(topics)
            else:
                left = await with_retries(lambda: self._rebuilding.with_writers_paused(lambda: self._try_to_switch(topics)))
            if not left:
                return
            if not self._beside.isdisjoint(left):
                await self._keep()  # dead letters were replayed meanwhile, or a fold was reset: no topic shows that
            await asyncio.sleep(0.05)
        raise TryAgainError(f"read store {self._declared.name}: workers stay ahead of the new table; nothing was switched")

    async def _try_to_switch(self, topics: FoldedTopics) -> Collection[TP]:
        """Apply new records to the new store, then switch to it, unless the store in use has applied more.

        Returns:
            The partitions in which the store in use has applied more; empty if the switch is done.
        """
        # Checkpoints first, then the ends: a checkpoint above an end is from another log, so the topic was created again.
        taken = {} if self.done.is_alone else await with_retries(self._old.checkpoints)
        log_bounds = await topics.log_bounds()
        await self._read(topics, log_bounds)
        recreated = {tp for tp, (_, end) in log_bounds.items() if taken.get(tp, end) > end}
        return await with_retries(lambda: self._rebuilding.switch(recreated))


def is_kept(old: StoredCell, new: StoredCell | None, *, is_level: bool, is_carried: bool) -> bool:
    """Return whether a rebuild copies a cell from the store in use to the new store (pure).

    It does if the new store lacks the cell or has an older version of it. If the new store has a newer version, the cell is copied
    only if the store in use should have that version, too (``is_level``), but does not. There are two possible causes:

    * The versions in the store in use were reset, which makes them negative. Then the cell is copied: its value is current, and
      with the version of ``new``, the new store would reject everything that is folded from now on.
    * The record with the newer version became a dead letter. If values come from a source, the cell is copied all the same, because
      the rebuild then reads its current value. If records carry the values, it is not copied, because ``new`` has the newer value.

    So if records carry the values, a cell with an older version is copied only if this version is negative.

    Args:
        new: The cell in the new store, which has read the topics; None: it does not have the cell.
        is_level: Whether the store in use has applied everything that the new one has.
    """
    if new is None or old.version > new.version:
        return True
    return is_level and old.version < (0 if is_carried else new.version)


def summary(done: RebuildResult, declared: ReadStoreSettings) -> list[str]:
    """Describe the result of a rebuild for an operator, one sentence per fact."""
    table = declared.table
    database = database_of(declared.url)
    former = f"{table}{FORMER_SUFFIX}" if database and database.keeps_former_table else "without an alias"
    lines = [f"{counted(done.records, 'folded record')} read, {counted(done.kept, 'cell')} kept from the former table"]
    if done.unstorable:
        lines.append(
            f"{counted(done.unstorable, 'value')} passed over, which the store can never hold; the last one before it stays"
        )
    if done.rejected:
        lines.append(f"{counted(done.rejected, 'record')} of the topics passed over: not folded records")
    if done.is_alone:
        return [*lines, f"{table} is the new table; a former one of another form is {former} now, and was not read"]
    return [*lines, f"{table} is rebuilt; what was there is {former}, until the next rebuild or you drop it"]
