"""Current values of a batch, whatever some of its groups do to the source.

A query that casts fails for all groups because of one. So the batch is divided until what fails stands alone, and everybody goes on
with the rest. A source that is away, or a query that is wrong, fails for everything: nothing is blamed on a group unless another
one, or no group at all, is answered before and after the search.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Sequence
from typing import Final

from streams_app.clock import Clock
from streams_app.read_store.core.batch_size import BatchSize
from streams_app.read_store.core.bisect_rejected import bisect_rejected
from streams_app.read_store.core.errors import SourceFailedError, TooSlowError
from streams_app.read_store.core.group_rows import RowKey, row_key
from streams_app.read_store.core.merge import Cell, CellChange
from streams_app.read_store.registry import open_source
from streams_app.settings import ReadStoreSettings

logger = logging.getLogger(__name__)

MOST_REMEMBERED: Final = 4
"""Groups of each fold that the source has answered for."""

MOST_SAMPLES: Final = 8
"""Groups of a batch that are asked for alone to see whether the source answers at all."""


class CurrentValues:
    """The source of one store, asked in batches that it can answer.

    Attributes:
        carries_values: The values are those of the records.
        size: How many cells are asked for at once.
    """

    def __init__(self, declared: ReadStoreSettings, clock: Clock) -> None:
        """Opens nothing.

        Raises:
            ConfigurationError: The source cannot be used.
        """
        self._source = open_source(declared)
        self._clock = clock
        self._section = declared.section
        self._answered: dict[str, deque[CellChange]] = {}
        self.carries_values = self._source.carries_values
        self.size = BatchSize(declared.timeout_ms)

    async def of(self, changes: Sequence[CellChange]) -> tuple[list[CellChange], dict[Cell, str]]:
        """Ask for the values of changes of one fold, at most one a cell.

        Returns:
            The changes with their values, without those that make the source fail; and of these the reason.

        Raises:
            TooSlowError: The source exceeded ``timeout``; asked once more, smaller batches are sent.
            TryAgainError: The source is away, or fails for reasons of its own.
        """
        if self.carries_values or not changes:
            return list(changes), {}
        found: list[CellChange] = []
        failed: dict[Cell, str] = {}
        for part in self.size.parts(changes):
            left = part
            while left:
                try:
                    found += await self._asked(left)
                    break
                except SourceFailedError as error:
                    failed |= await self._bisect(left, error)
                    left = [change for change in left if change.cell not in failed]
        return found, failed

    async def check(self) -> None:
        """Try the source without asking for anything."""
        await self._source.check()

    async def close(self) -> None:
        """Interrupt what runs and let go of the source."""
        await self._source.close()

    async def _asked(self, changes: Sequence[CellChange]) -> list[CellChange]:
        began_ms = self._clock.monotonic_ms()
        try:
            found = await self._source.current(changes)
        except TooSlowError:
            if self.size.exceeded(len(changes)):
                logger.warning(
                    "the source exceeds its timeout, smaller batches follow source=%s cells=%d timeout_ms=%d",
                    self._section, len(changes), self.size.timeout_ms,
                )  # fmt: skip
            raise
        if self.size.finished(len(changes), self._clock.monotonic_ms() - began_ms):
            logger.info("the source is fast enough for whole batches source=%s", self._section)
        answered = self._answered.setdefault(changes[0].cell.fold, deque(maxlen=MOST_REMEMBERED))
        if row_key(changes[0]) not in map(row_key, answered):
            answered.append(changes[0])
        return found

    async def _bisect(self, changes: Sequence[CellChange], error: SourceFailedError) -> dict[Cell, str]:
        """Find the cells that make the source fail, with the reason of each.

        Raises:
            SourceFailedError: The source fails for everything, or no longer for any of them.
        """
        control = await self._control(changes, error)
        bisection = bisect_rejected(sorted(changes, key=lambda change: change.cell))
        part = next(bisection)
        try:
            while True:
                part = bisection.send(await self._fault(part))
        except StopIteration as stopped:
            found: dict[Cell, str] = stopped.value
        if not found or await self._fault(control) is not None:
            raise error
        return {cell: f"its source fails: {why}" for cell, why in found.items()}

    async def _control(self, changes: Sequence[CellChange], error: SourceFailedError) -> list[CellChange]:
        """What the source answers while it fails for a batch: a group, or no group at all.

        Raises:
            SourceFailedError: It answers nothing.
        """
        groups: dict[RowKey, CellChange] = {}
        for change in changes:
            groups.setdefault(row_key(change), change)
        known = [one for one in self._answered.get(changes[0].cell.fold, ()) if row_key(one) not in groups]
        for one in [*known, *list(groups.values())[:MOST_SAMPLES]]:
            if await self._fault([one]) is None:
                return [one]
        # Without a group that was ever answered for, an error about a value is blamed on the value: nothing would go on otherwise.
        if error.is_data_error and not known and await self._fault([]) is None:
            return []
        raise error

    async def _fault(self, changes: Sequence[CellChange]) -> str | None:
        """Why the source fails for changes, or for none; None: it does not."""
        try:
            await (self._source.current(changes) if changes else self._source.check())
        except SourceFailedError as error:
            return error.why
        return None
