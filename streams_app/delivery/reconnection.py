"""Buffers batches that were fetched after a reconnection until the log is known to be the one that was read before.

A broker that restarts on an older copy of its disk may have the same topic id and leader epoch as before, but its connections are
closed. So after each reconnection, the log is compared with fingerprints of the records that were read. Without that comparison, a
reader whose position is above the lost events would continue after them. Fingerprints of the records that it reads there would
match the new log, so that no later comparison would show the loss.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Final

from streams_app.delivery.batch import TP, Batch
from streams_app.delivery.dependency_errors import DEPENDENCY_ERRORS
from streams_app.errors import text_of
from streams_app.retries import retried

logger = logging.getLogger(__name__)

RETRY_SECONDS: Final = 0.5
"""Delay after which a comparison is repeated if the broker did not answer."""


class Reconnection:
    """Buffers the batches of one partition after a reconnection, until its log is compared with the records that were read."""

    def __init__(self, tp: TP, is_same_log: Callable[[], Awaitable[bool]], on_fatal: Callable[[BaseException], None]) -> None:
        """Prepare for a new claim. Its first batch is buffered until the log has been compared, as after a reconnection.

        Args:
            is_same_log: Compares the log with the records that were read; returns whether it still contains them. If it raises a
                dependency error, because the broker does not answer, the comparison is repeated.
            on_fatal: Called with any other error of the comparison, or with an error of the delivery of the buffered batches.
        """
        self._tp = tp
        self._is_same_log = is_same_log
        self._on_fatal = on_fatal
        self._connection: object = None
        self._waiting: list[Batch] = []
        self._task: asyncio.Task[None] | None = None

    @property
    def is_waiting(self) -> bool:
        return bool(self._waiting)

    def buffer(self, batch: Batch, deliver: Callable[[Batch], None]) -> bool:
        """Buffer a batch if the client has reconnected since the last comparison, or if earlier batches are still buffered.

        Return whether the batch was buffered. If so, ``deliver`` is called with each buffered batch in order, once the comparison
        shows that the log is unchanged; if not, the caller delivers it.
        """
        if batch.connection is self._connection and not self._waiting:
            return False
        self._waiting.append(batch)
        if self._task is None:
            self._task = asyncio.create_task(self._compare(deliver), name=f"compare the log of {self._tp}")
            self._task.add_done_callback(self._ended)
        return True

    def end(self) -> None:
        """Drop the buffered batches: the next claim of the partition reads them again."""
        self._waiting.clear()
        if self._task is not None:
            self._task.cancel()

    async def _compare(self, deliver: Callable[[Batch], None]) -> None:
        while self._waiting:
            fetched, connection = len(self._waiting), self._waiting[-1].connection
            if not await retried(self._is_same_log, DEPENDENCY_ERRORS, self._could_not_compare):
                self._waiting.clear()
                break
            self._connection = connection
            compared, self._waiting = self._waiting[:fetched], self._waiting[fetched:]
            for batch in compared:
                deliver(batch)

    async def _could_not_compare(self, error: BaseException) -> float:
        logger.debug("the log could not be compared, trying again source=%s error=%s", self._tp, text_of(error))
        return RETRY_SECONDS

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._task = None
        if not task.cancelled() and (error := task.exception()) is not None:
            self._on_fatal(error)
