"""Requests the current values of a batch, even if some of its groups make the source fail.

If the value of one group makes a query fail, for example in a cast, the query fails for the whole batch. The batch is then bisected
until the failing groups are isolated, and the other groups are synced. If the source is unavailable or the query is wrong, however,
requests fail for every group. Therefore a group is rejected only if the source answers for another group, or for an empty request,
before and after the bisection.
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

MAX_REMEMBERED: Final = 4
"""Maximum number of groups per fold that are remembered because the source has answered for them. If a batch fails, these groups
are requested to find out whether the source itself works."""

MAX_SAMPLES: Final = 8
"""Maximum number of groups of a failing batch that are requested one by one, to find one for which the source answers."""


class CurrentValues:
    """The source of one read store, queried in batches so small that the source answers within its timeout."""

    def __init__(self, declared: ReadStoreSettings, clock: Clock) -> None:
        self._source = open_source(declared)
        self._clock = clock
        self._section = declared.section
        self._answered: dict[str, deque[CellChange]] = {}
        self.carries_values = self._source.carries_values
        self.size = BatchSize(declared.timeout_ms)

    async def of(self, changes: Sequence[CellChange]) -> tuple[list[CellChange], dict[Cell, str]]:
        """Request the current values of changes.

        Args:
            changes: Changes of one fold, at most one per cell.

        Returns:
            The changes with their values, except those that make the source fail; and the cells of these, each with the reason.

        Raises:
            TooSlowError: The source exceeded ``timeout``; the next call sends smaller batches.
            TryAgainError: The source is unavailable, or fails regardless of the groups.
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

    async def close(self) -> None:
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
        answered = self._answered.setdefault(changes[0].cell.fold, deque(maxlen=MAX_REMEMBERED))
        if row_key(changes[0]) not in map(row_key, answered):
            answered.append(changes[0])
        return found

    async def _bisect(self, changes: Sequence[CellChange], error: SourceFailedError) -> dict[Cell, str]:
        """Find the cells that make the source fail, with the reason of each.

        Raises:
            SourceFailedError: The source fails for every request, or none of these changes makes the source fail again.
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
        """Find a request that the source answers although it fails for a batch, which shows that the source itself works.

        Returns:
            The changes of this request: a single change, or none if the source answers only an empty request.

        Raises:
            SourceFailedError: The source answers none of the requests that were tried.
        """
        groups: dict[RowKey, CellChange] = {}
        for change in changes:
            groups.setdefault(row_key(change), change)
        known = [one for one in self._answered.get(changes[0].cell.fold, ()) if row_key(one) not in groups]
        for one in [*known, *list(groups.values())[:MAX_SAMPLES]]:
            if await self._fault([one]) is None:
                return [one]
        # If the source has never answered for a group, an error about a value is blamed on the value; otherwise syncing would stop.
        if error.is_data_error and not known and await self._fault([]) is None:
            return []
        raise error

    async def _fault(self, changes: Sequence[CellChange]) -> str | None:
        """Send the source a request, which may be empty; return the text of its error, or None if it answers."""
        try:
            await (self._source.current(changes) if changes else self._source.check())
        except SourceFailedError as error:
            return error.why
        return None
