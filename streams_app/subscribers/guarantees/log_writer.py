"""The task that writes a log of one partition to Redis: :class:`.AttemptLog`, write-behind, or :class:`.BeginLog`, write-ahead."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from streams_app.delivery.dependency_errors import DEPENDENCY_ERRORS, waiting_for_label
from streams_app.errors import text_of
from streams_app.reported_backoff import ReportedBackoff
from streams_app.subscribers.state.store import SubscriberStore


class LogWriter:
    """Writes scheduled changes, one write at a time; a failed write is repeated until it succeeds.

    A write includes all changes that were scheduled during the write before it.

    Attributes:
        changed: Set to schedule a write.
    """

    def __init__(
        self,
        store: SubscriberStore,
        write_once: Callable[[], Awaitable[None]],
        *,
        on_failure: Callable[[str], None],
        on_recovery: Callable[[], None],
        pause: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        """Create a writer.

        Args:
            write_once: Writes all scheduled changes. After an error, the outcome is unknown, and the next call repeats the write.
            on_failure: Logs the error of a write: the first one in a row, then one every ten minutes.
            on_recovery: Logs the first successful write after failed ones.
            pause: Awaited after a successful write; None: attempts wait for each write, and the next one follows at once.
        """
        self.changed = asyncio.Event()
        self._store = store
        self._write_once = write_once
        self._on_failure = on_failure
        self._on_recovery = on_recovery
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
                    self._on_recovery()
                if self._pause is not None:
                    await self._pause()
            except DEPENDENCY_ERRORS as error:
                self._fault = waiting_for_label(error)
                if self._backoff.should_report:
                    self._on_failure(text_of(error))
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
