"""Batches on their way to a store, in transactions that it finishes within its time-out."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from streams_app.clock import Clock
from streams_app.read_store.core.batch_size import BatchSize
from streams_app.read_store.core.errors import TooSlowError
from streams_app.read_store.core.merge import CellChange
from streams_app.read_store.core.store import Counts, ProgressStep, ReadStore
from streams_app.settings import ReadStoreSettings

logger = logging.getLogger(__name__)


class BatchWriter:
    """Writes to one store; after a time-out the transactions that follow are smaller.

    Attributes:
        size: How many cells are written at once.
    """

    def __init__(self, store: ReadStore, declared: ReadStoreSettings, clock: Clock) -> None:
        """Opens nothing."""
        self._store = store
        self._name = declared.name
        self._clock = clock
        self.size = BatchSize(declared.timeout_ms)

    async def apply(self, changes: Sequence[CellChange], step: ProgressStep) -> Counts:
        """Write changes; the progress moves with the last of them.

        Several transactions need a progress that each of them leaves as it is: a step without one is a single transaction.

        Raises:
            TooSlowError: A transaction took too long; some before it may be done. Repeated with the same step, the call changes
                nothing that is there, and sends less at once.
            ProgressError: See :meth:`.ReadStore.apply`, likewise for the rest.
        """
        if step.after is None:
            return await self._write(changes, step)
        *before, last = self.size.parts(changes)
        done = [await self._write(part, step._replace(to=step.after)) for part in before]
        done.append(await self._write(last, step))
        return Counts(sum(one.written for one in done), sum(one.stale for one in done), sum(one.unchanged for one in done))

    async def _write(self, changes: Sequence[CellChange], step: ProgressStep) -> Counts:
        began_ms = self._clock.monotonic_ms()
        try:
            counts = await self._store.apply(changes, step, self._clock.now_ms())
        except TooSlowError:
            if changes and self.size.exceeded(len(changes)):
                logger.warning(
                    "the store exceeds its timeout, smaller batches follow store=%s cells=%d timeout_ms=%d",
                    self._name, len(changes), self.size.timeout_ms,
                )  # fmt: skip
            raise
        if self.size.finished(len(changes), self._clock.monotonic_ms() - began_ms):
            logger.info("the store is fast enough for whole batches store=%s", self._name)
        return counts
