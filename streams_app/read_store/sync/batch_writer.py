"""Writes batches in transactions that the store finishes within its timeout."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from streams_app.clock import Clock
from streams_app.read_store.core.batch_size import BatchSize
from streams_app.read_store.core.errors import TooSlowError
from streams_app.read_store.core.merge import CellChange
from streams_app.read_store.core.store import CheckpointStep, Counts, ReadStore
from streams_app.settings import ReadStoreSettings

logger = logging.getLogger(__name__)


class BatchWriter:
    """Writes changes to one store; after a timeout, the following transactions are smaller."""

    def __init__(self, store: ReadStore, declared: ReadStoreSettings, clock: Clock) -> None:
        self._store = store
        self._name = declared.name
        self._clock = clock
        self.size = BatchSize(declared.timeout_ms)

    async def apply(self, changes: Sequence[CellChange], step: CheckpointStep) -> Counts:
        """Write changes, in several transactions if necessary; the last one advances the checkpoint.

        All transactions but the last leave the checkpoint unchanged. If the store has no checkpoint of the partition yet, all
        changes are written in one transaction.

        Raises:
            TooSlowError: A transaction exceeded the timeout; the transactions before it are done. Repeat the call with the same
                step: its transactions are smaller, and do not change what was written before.
            CheckpointError, NotStorableError: See :meth:`.ReadStore.apply`; the transactions before the failed one are done.
        """
        if step.after is None:
            return await self._write(changes, step)
        *before, last = self.size.parts(changes)
        done = [await self._write(part, step._replace(to=step.after)) for part in before]
        done.append(await self._write(last, step))
        return Counts(sum(one.written for one in done), sum(one.stale for one in done), sum(one.unchanged for one in done))

    async def _write(self, changes: Sequence[CellChange], step: CheckpointStep) -> Counts:
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
