"""The agent that keeps the read store in sync: loops and waits; what one pass does is in ``sync``.

A store or source that is down, locked or misconfigured is waited for in place: nothing is skipped, nothing is raised, folding
goes on, and ``streams_app_read_store_lag_records`` rises.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from itertools import groupby
from typing import Final

from streams_app.clock import Clock
from streams_app.delivery.batch import TP
from streams_app.errors import TryAgainError
from streams_app.metrics import Metrics
from streams_app.read_store.reader import OutputReader
from streams_app.read_store.sync import Record, Sync, SyncResult, steps
from streams_app.settings import Settings

logger = logging.getLogger(__name__)

FIRST_WAIT_MS: Final = 200
LONGEST_WAIT_MS: Final = 10_000
REPORT_EVERY_MS: Final = 2_000
STOP_SECONDS: Final = 2.0


class Patience:
    """How long to wait for something that fails, and what to say: one line when the fault changes, one when it ends."""

    def __init__(self, what: str, tell: Callable[[bool], None] = lambda _: None) -> None:
        """``tell`` is called with whether it works."""
        self._what = what
        self._tell = tell
        self._fault: str | None = None
        self._wait_ms = FIRST_WAIT_MS

    def failed(self, error: BaseException) -> int:
        """Notes a failure.

        Returns:
            Milliseconds to wait: 200, doubled with each failure in a row, at most 10 000.
        """
        self._tell(False)
        fault = str(error) or repr(error)
        if fault != self._fault:
            logger.warning("%s does not work, waiting for it error=%s", self._what, fault)
            self._fault = fault
        wait_ms, self._wait_ms = self._wait_ms, min(self._wait_ms * 2, LONGEST_WAIT_MS)
        return wait_ms

    def succeeded(self) -> None:
        """Notes that it works."""
        self._tell(True)
        if self._fault is not None:
            logger.info("%s works again", self._what)
        self._fault, self._wait_ms = None, FIRST_WAIT_MS


class ReadStoreAgent:
    """Reads the output topics of ``read_store.folds`` and syncs the store.

    Several workers share the partitions. At-least-once: a batch is repeated when its transaction did not take place; the version
    guard and the progress in the same transaction make that harmless.
    """

    def __init__(self, settings: Settings, metrics: Metrics, clock: Clock) -> None:
        """Connects nothing yet.

        Raises:
            ConfigurationError: ``[read_store]`` is missing or cannot be used.
        """
        self._settings = settings
        self._metrics = metrics
        self._clock = clock
        self._sync = Sync(settings, metrics, clock)
        self._sync_patience = Patience("read store sync", metrics.up.labels(component="read_store").set)
        self._kafka_patience = Patience("read store consumer")
        self._retry_at_ms: int | None = None
        self._report_at_ms = 0
        self.rejected_records = 0
        """Records skipped so far: on an output topic, but not a folded record of its fold."""

    async def run(self, stop: asyncio.Event) -> None:
        """Syncs until told to stop, then leaves the group; returns within about five seconds. Raises nothing.

        Args:
            stop: Set by the application.
        """
        working = asyncio.create_task(self._work(stop), name="read-store-work")
        stopping = asyncio.create_task(stop.wait(), name="read-store-stop")
        try:
            await asyncio.wait({working, stopping}, return_when=asyncio.FIRST_COMPLETED)
            await asyncio.wait({working}, timeout=STOP_SECONDS)
        finally:
            stopping.cancel()
            working.cancel()  # interrupts a query that does not end
            await asyncio.wait({working})
            await self._sync.close()

    async def sync_once(self, tp: TP, records: Sequence[Record]) -> SyncResult:
        """One batch into the store, see :meth:`streams_app.read_store.sync.Sync.sync_once`.

        Raises:
            TryAgainError: Source or store is away; nothing was written.
        """
        result = await self._sync.sync_once(tp, records, records[-1].offset + 1)
        self.rejected_records += result.rejected
        return result

    async def _work(self, stop: asyncio.Event) -> None:
        while not stop.is_set():
            reader = None
            wait_ms = 0
            try:
                reader = OutputReader(self._settings.kafka, self._settings.app_id, self._sync.topics)
                await reader.start()
                await self._read(reader, stop)
            except Exception as error:  # whatever it is: the worker beside it goes on folding
                wait_ms = self._kafka_patience.failed(error)
                logger.debug("read store consumer is made anew", exc_info=error)
            finally:
                if reader is not None:
                    await reader.stop()
            await self._wait(stop, wait_ms)

    async def _read(self, reader: OutputReader, stop: asyncio.Event) -> None:
        self._retry_at_ms = None
        while not stop.is_set():
            await self._step_once(reader)
            if self._clock.monotonic_ms() >= self._report_at_ms:
                await self._report_once(reader)
        await self._report_once(reader)

    async def _step_once(self, reader: OutputReader) -> None:
        """Fetches once and syncs it; where that fails, the partitions are paused until the next try."""
        if self._retry_at_ms is not None and self._clock.monotonic_ms() >= self._retry_at_ms:
            self._retry_at_ms = None
            reader.resume()
        try:
            if self._retry_at_ms is None and reader.needs_placing:
                await reader.place(await self._sync.progress())
                self._sync_patience.succeeded()
            # Also while it waits: a consumer that does not poll is put out of its group.
            records = await reader.poll()
            self._kafka_patience.succeeded()
            for tp, fetched in groupby(records, key=lambda record: TP(record.topic, record.partition)):
                for step in steps(list(fetched)):
                    result = await self.sync_once(tp, step)
                    reader.synced({tp: result.next_offset})
                    self._sync_patience.succeeded()
        except TryAgainError as error:
            self._retry_at_ms = self._clock.monotonic_ms() + self._sync_patience.failed(error)
            reader.suspend()

    async def _report_once(self, reader: OutputReader) -> None:
        self._report_at_ms = self._clock.monotonic_ms() + REPORT_EVERY_MS
        await reader.commit_once()
        lag = await reader.lag_records()
        if lag is not None:
            self._metrics.read_store_lag_records.labels(self._sync.store_name).set(lag)

    @staticmethod
    async def _wait(stop: asyncio.Event, wait_ms: int) -> None:
        try:
            await asyncio.wait_for(stop.wait(), wait_ms / 1000)
        except TimeoutError:
            return
