"""Compares a read store with its value source, in bounded memory, while workers continue.

There are two passes. The first pass compares the cells of the store with the value source, batch by batch: it finds wrong and extra
cells. The second pass reads the output topics of the folds, up to the checkpoints of the store. It looks up the cells of each
record in the store: it finds missing cells. If records carry the values, there is no first pass. The second pass then also compares
each record with its cells, except cells that have a newer version.

A difference may be temporary: the value has changed in the source, but the group with this change is still open, or the store has
not applied the record of the group yet. So each difference is checked a second time. Before the second check, the comparison waits
some seconds, and then until the store has applied the topics up to their ends. A difference is reported if neither side has changed
and the group is not open. If records carry the values, the second check follows at once.

Records from before a reset of their fold prove nothing: the source topic may have been created again since, so that their versions
are not comparable and their values may be stale. They only show which cells exist; current values are read from the value source.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Final, TypeVar

from streams_app.clock import Clock
from streams_app.delivery.batch import TP
from streams_app.errors import ConfigurationError, TryAgainError
from streams_app.operations.folded_topics import FoldedTopics
from streams_app.operations.groups import open_groups
from streams_app.operations.repairing import repaired
from streams_app.operations.retrying import with_retries
from streams_app.operations.verify_result import VerifyResult
from streams_app.read_store.core.comparing import Difference, DifferenceKind, differences, stays
from streams_app.read_store.core.merge import Cell, CellChange, StoredCell
from streams_app.read_store.core.source import by_fold
from streams_app.read_store.core.store import NotStorableError, Repair, check_formats, former_ends
from streams_app.read_store.registry import open_store
from streams_app.read_store.sync.current_values import CurrentValues
from streams_app.settings import ReadStoreSettings, Settings

T = TypeVar("T")

BATCH: Final = 500
"""Number of cells in one request."""

MAX_SUSPECTS: Final = 10_000
"""Number of differences that are collected before they are checked a second time."""

MAX_REPORTED: Final = 1_000_000
"""Maximum number of reported differences; the comparison then ends."""

IDLE_SECONDS: Final = 10.0
"""Time without progress after which the comparison no longer waits for a store that is behind."""


class Verification:
    """Compares one read store with its value source; reports the differences, and repairs them on request."""

    def __init__(
        self,
        settings: Settings,
        declared: ReadStoreSettings,
        clock: Clock,
        *,
        is_repair: bool = False,
        wait_seconds: float = 5.0,
        on_difference: Callable[[Difference], None] = lambda _: None,
        on_progress: Callable[[str, int, int | None], None] = lambda *_: None,
    ) -> None:
        """Prepare a comparison, without connecting.

        Args:
            wait_seconds: Time between the two checks of a difference; must be longer than a change takes to reach its open group.
            on_progress: Called with a message, the number of cells or offsets compared so far, and their total.
        """
        self.done = VerifyResult()
        self._settings = settings
        self._declared = declared
        self._clock = clock
        self._is_repair = is_repair
        self._wait_seconds = wait_seconds
        self._on_difference = on_difference
        self._on_progress = on_progress
        self._store = open_store(declared)
        self._source = CurrentValues(declared, clock)
        self._may_write = True
        self._suspects: dict[Cell, CellChange] = {}
        self._reported: set[int] = set()

    async def run(self) -> VerifyResult:
        """Compare all cells and records, and return the result."""
        try:
            if missing := await with_retries(self._store.missing):
                init = f"streams-app read-store init --store {self._declared.name}"
                raise ConfigurationError([f"read store {self._declared.name}: no {' and no '.join(missing)}; run `{init}`"])
            check_formats(self._declared.name, await with_retries(self._store.checkpoints))
            async with FoldedTopics.opened(self._settings, self._declared) as topics:
                if not self._source.carries_values:
                    await self._compare_cells(topics)
                await self._compare_records(topics)
                await self._wait_for_store(topics, IDLE_SECONDS)
        finally:
            await self._source.close()
            await self._store.close()
        return self.done

    async def _compare_cells(self, topics: FoldedTopics) -> None:
        counts = [await with_retries(lambda fold=fold: self._store.count_versioned(fold)) for fold in self._declared.folds]  # type: ignore[misc]  # mypy knows no type of a lambda with a default
        total = sum(count or 0 for count in counts)
        for fold in self._declared.folds:
            after: Cell | None = None
            while not self.done.is_cut:
                batch = await with_retries(lambda fold=fold, after=after: self._store.cells(fold, after, BATCH))  # type: ignore[misc]  # as above
                if not batch:
                    break
                after = batch[-1][0]
                self.done.count_nulls(dict(batch))
                self.done.cells += len(batch)
                found = await self._compare([CellChange(cell, stored.version) for cell, stored in batch], dict(batch))
                await self._suspect((one.change for one in found), topics)
                self._on_progress(f"{self.done.cells:,} cells compared", self.done.cells, max(total, self.done.cells))
        await self._settle(topics)

    async def _compare_records(self, topics: FoldedTopics) -> None:
        progress = await with_retries(self._store.checkpoints)
        log_bounds = await topics.log_bounds()
        ranges = {tp: (begin, min(end, progress.get(tp, begin))) for tp, (begin, end) in log_bounds.items()}
        total, done = sum(max(0, end - begin) for begin, end in ranges.values()), 0
        async for part in topics.read(ranges, former_ends(progress, ranges)):
            for changes in _chunks(part.changes, BATCH):
                if self._source.carries_values:
                    found = [one.change for one in await self._compare(changes)]
                else:
                    stored = await self._read(changes)
                    found = [change for change in changes if change.cell not in stored]
                await self._suspect(found, topics)
            if self.done.is_cut:
                break
            done += part.end - part.begin
            self.done.records += part.records
            self.done.rejected += part.rejected
            self._on_progress(f"{self.done.records:,} folded records compared", done, total)
        await self._settle(topics)

    async def _compare(self, changes: Sequence[CellChange], stored: Mapping[Cell, StoredCell] | None = None) -> list[Difference]:
        """Compare cells with the value source, and return the differences. Without ``stored``, read the cells from the store."""
        current, failed = await with_retries(lambda: self._source.of(changes))
        possible: list[CellChange] = []
        if stored is None:
            stored = await self._read(changes)
        found = [
            Difference(DifferenceKind.REFUSED, change, stored.get(change.cell), failed[change.cell])
            for change in changes
            if change.cell in failed
        ]
        for change in current:
            if why := self._store.rejection(change):
                found.append(Difference(DifferenceKind.REFUSED, change, stored.get(change.cell), why))
            else:
                possible.append(change)
        storable, rejected = await self._storable(possible)
        found += [
            Difference(DifferenceKind.REFUSED, one, stored.get(one.cell), rejected[one.cell])
            for one in possible
            if one.cell in rejected
        ]
        return found + differences(storable, stored, is_carried=self._source.carries_values)

    async def _storable(self, changes: Sequence[CellChange]) -> tuple[list[CellChange], dict[Cell, str]]:
        """Convert values to what the store would return for them.

        Returns:
            The changes with converted values, and the cells whose values the store can never hold, each with the reason.
        """
        rejected: dict[Cell, str] = {}
        while True:
            left = [change for change in changes if change.cell not in rejected]
            try:
                return await with_retries(lambda left=left: self._store.as_stored(left)), rejected  # type: ignore[misc]  # as above
            except NotStorableError as error:
                if not error.cells.keys() - rejected.keys():
                    raise
                rejected |= error.cells

    async def _read(self, changes: Sequence[CellChange]) -> dict[Cell, StoredCell]:
        return await with_retries(lambda: self._store.read([change.cell for change in changes]))

    async def _suspect(self, changes: Iterable[CellChange], topics: FoldedTopics) -> None:
        for change in changes:
            pending = self._suspects.get(change.cell)
            if pending is None or change.version > pending.version:
                self._suspects[change.cell] = change
        if len(self._suspects) >= MAX_SUSPECTS:
            await self._settle(topics)

    async def _settle(self, topics: FoldedTopics) -> None:
        """Check all collected differences again, report those that persist, and repair them on request."""
        suspects, self._suspects = list(self._suspects.values()), {}
        first = await self._compare_all(suspects)
        if first and not self._source.carries_values:
            first = await self._recheck(first, topics)
        new = [one for cell, one in first.items() if hash(cell) not in self._reported]
        for chunk in _chunks(new, BATCH):
            rejected: dict[Cell, str] = {}
            try:
                rejected = await self._repair([one for one in chunk if one.kind is not DifferenceKind.REFUSED])
            finally:  # differences are reported even if the repair fails
                self._report(
                    replace(one, kind=DifferenceKind.REFUSED, why=rejected[one.cell]) if one.cell in rejected else one
                    for one in chunk
                )
        self.done.is_cut = len(self._reported) >= MAX_REPORTED

    def _report(self, found: Iterable[Difference]) -> None:
        for one in found:
            self._reported.add(hash(one.cell))
            self.done.differences += 1
            self._on_difference(one)

    async def _compare_all(self, changes: Sequence[CellChange]) -> dict[Cell, Difference]:
        return {one.cell: one for chunk in _chunks(changes, BATCH) for one in await self._compare(chunk)}

    async def _recheck(self, before: Mapping[Cell, Difference], topics: FoldedTopics) -> dict[Cell, Difference]:
        """Wait until changes in progress have reached the store, then compare again; return the differences that persist.

        If the store makes no progress, the wait ends after some seconds. Cells of open groups are left out, because they may still
        change.
        """
        await asyncio.sleep(self._wait_seconds)
        # Groups first, then the ends: the record of a group that is not open lies below the ends that the store has to pass.
        is_open = await self._open(before)
        # Do not wait a second time for a store that has made no progress.
        await self._wait_for_store(topics, 0 if self.done.behind else IDLE_SECONDS)
        after = await self._compare_all([one.change for one in before.values()])
        same = {cell: one for cell, one in after.items() if stays(before[cell], one) and cell[:2] not in is_open}
        self.done.on_their_way += len(after) - len(same)
        return same

    async def _open(self, cells: Iterable[Cell]) -> set[tuple[str, str]]:
        """Return fold and group of each given cell whose group is open."""
        found = set()
        for changes in by_fold([CellChange(cell, 0) for cell in cells]):
            fold, columns = changes[0].cell.fold, {change.cell.group_key for change in changes}
            try:
                found |= {(fold, column) for column in await open_groups(self._settings, fold, columns)}
            except TryAgainError as error:
                self.done.open_unknown = str(error)
        return found

    async def _wait_for_store(self, topics: FoldedTopics, idle_seconds: float) -> None:
        """Wait until the store has applied the topics up to their current ends, or has made no progress for ``idle_seconds``."""
        log_bounds = await topics.log_bounds()
        seen, since_ms = -1, self._clock.monotonic_ms()
        while True:
            progress = await with_retries(self._store.checkpoints)
            behind = left_of(log_bounds, progress)
            if behind != seen:
                seen, since_ms = behind, self._clock.monotonic_ms()
            if not behind or self._clock.monotonic_ms() - since_ms >= idle_seconds * 1000:
                left = {tp: (max(begin, progress.get(tp, begin)), end) for tp, (begin, end) in log_bounds.items()}
                self.done.behind = behind if behind and await topics.has_records(left) else 0
                return
            await asyncio.sleep(0.1)

    async def _repair(self, found: Sequence[Difference]) -> dict[Cell, str]:
        """Write the correct values into the store. If no repair is requested, roll the writes back.

        Even then the writes are tried, because only the store itself can show which values it can never hold.

        Returns:
            The cells whose values the store can never hold, each with the reason.
        """

        def repair(one: Difference) -> Repair:
            if one.stored is None:
                return Repair(one.change, None)
            # Never raise the version: a version above the current log would reject everything that is folded from now on.
            return Repair(replace(one.change, version=one.stored.version), one.stored.version)

        if not self._may_write:
            return {}
        try:
            written, rejected = await repaired(
                self._store, [repair(one) for one in found], self._clock.now_ms, is_trial=not self._is_repair
            )
        except TryAgainError:
            if self._is_repair:
                raise
            self._may_write = False  # a comparison without repair needs no right to write
            return {}
        self.done.repaired += written if self._is_repair else 0
        return rejected


def left_of(log_bounds: Mapping[TP, tuple[int, int]], progress: Mapping[TP, int]) -> int:
    """Return the number of offsets that a store has not applied, including offsets without a record (pure)."""
    return sum(max(0, end - max(begin, progress.get(tp, begin))) for tp, (begin, end) in log_bounds.items())


def _chunks(items: Sequence[T], size: int) -> Iterator[Sequence[T]]:
    for begin in range(0, len(items), size):
        yield items[begin : begin + size]
