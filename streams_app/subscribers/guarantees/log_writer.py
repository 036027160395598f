"""The task that writes a log of one partition to Redis: :class:`.AttemptLog`, write-behind, or :class:`.BeginLog`, write-ahead."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from streams_app.delivery.dependency_errors import DEPENDENCY_ERRORS, waiting_for_label
from streams_app.errors import text_of
from streams_app.reported_backoff import ReportedBackoff
from streams_app.subscribers.state.store import SubscriberStore

logger = logging.getLogger(__name__)


class LogWriter:
    """Writes scheduled changes, one write at a time; a failed write is repeated until it succeeds.

    A write includes all changes that were scheduled during the write before it.

    Attributes:
        changed: Set to schedule a write.
        whose: Names of the subscriber and of its partition, for logs.
    """

    def __init__(
        self,
        store: SubscriberStore,
        write_once: Callable[[], Awaitable[None]],
        *,
        failure_text: str,
        recovery_text: str,
        pause: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        """Create a writer.

        Args:
            write_once: Writes all scheduled changes. After an error, the outcome is unknown, and the next call repeats the write.
            failure_text: Log message of failed writes.
            recovery_text: Log message of the first successful write after failed ones.
            pause: Awaited after a successful write; None: attempts wait for each write, and the next one follows at once.
        """
        self.changed = asyncio.Event()
        self.whose = store.keys.subscriber, store.keys.source
        self._store = store
        self._write_once = write_once
        self._failure_text = failure_text
        self._recovery_text = recovery_text
        self._pause = pause
        self._fault: str | None = None
        self._backoff = ReportedBackoff(first_seconds=0.1, longest_seconds=5.0)

    @property
    def is_failing(self) -> bool:
        return self._backoff.failures > 0

    async def forever(self) -> None:
        """Write until the task is cancelled.

        Raises:
            FencedError: Another owner has claimed the partition, or Redis has lost data that this log cannot write again.
        """
        while True:
            await self.changed.wait()
            self.changed.clear()
            try:
                await self._write_once()
                if self._backoff.succeeded():
                    logger.info("%s subscriber=%s source=%s", self._recovery_text, *self.whose)
                if self._pause is not None:
                    await self._pause()
            except DEPENDENCY_ERRORS as error:
                self._fault = waiting_for_label(error)
                if self._backoff.should_report:
                    logger.warning("%s subscriber=%s source=%s error=%s", self._failure_text, *self.whose, text_of(error))
                self.changed.set()
                await asyncio.sleep(self._backoff.failed())

    def sample_wait(self) -> str | None:
        """Return the dependency for which a write has waited since the previous call: ``redis``, ``redis-memory`` or ``broker``."""
        fault = self._fault
        if not self.is_failing:
            self._fault = None
        # A frozen Redis reports no error, and the time-out of the client is too long to wait for.
        is_stalled = self._store.sample_stalled()
        return fault or ("redis" if is_stalled else None)
