"""Attempt log of a subscriber that may run events twice. It is a write-behind log: only attempts of suspects wait for a write.

The next owner reads from the log which events were running at a crash, and how many attempts each event has had. Without the log,
attempts are counted from 1.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import suppress
from typing import Final

from streams_app.delivery.offset_metadata import OffsetAndMetadata
from streams_app.delivery.scripts import FencedError
from streams_app.errors import text_of
from streams_app.redis_access.client import REDIS_ERRORS, redis_fault_text
from streams_app.subscribers.execution.executor import Attempt
from streams_app.subscribers.guarantees.guarantee import ANOTHER_OWNER
from streams_app.subscribers.guarantees.log_writer import LogWriter
from streams_app.subscribers.state.store import AttemptEntry, Begin, SubscriberStore

logger = logging.getLogger(__name__)

PAUSE_SECONDS: Final = 0.02
"""Pause between two writes that no attempt waits for. The first change after a time without changes is written at once. In a
stream of short attempts, only some attempts are written, because writing each of them would cost more than the attempts."""


class AttemptLog:
    """Writes the attempts of one partition to Redis, as one entry for each event that runs or waits for its next attempt.

    If another owner has claimed the partition, :meth:`claim`, :meth:`write_once` and :attr:`writer` raise a FencedError.

    Attributes:
        writer: Writes the scheduled changes; a write follows :data:`PAUSE_SECONDS` after the one before it, unless it is awaited.
    """

    def __init__(
        self, store: SubscriberStore, progress: OffsetAndMetadata, now_ms: Callable[[], int], running: Collection[Attempt] = ()
    ) -> None:
        """Initialize an empty log; :meth:`.Guarantee.take_over` reads the state in Redis.

        Args:
            running: Attempts without an outcome; the caller updates the collection. Each write includes those that have started;
                most attempts end before a write.
        """
        self._store = store
        self._whose = store.keys.subscriber, store.keys.source
        self.writer = LogWriter(
            store, self.write_once, on_failure=self._report_failure, on_recovery=self._report_recovery, pause=self._pause
        )
        self._progress = progress
        self._written_progress: OffsetAndMetadata | None = None
        self._now_ms = now_ms
        self._wanted: dict[int, AttemptEntry] = {}
        self._stored: dict[int, AttemptEntry] = {}
        self._unwritten: set[int] = set()
        self._running = running
        self._written, self._is_awaited = asyncio.Event(), asyncio.Event()
        self._is_claimed = self._was_claimed = self._is_idle = False

    async def claim(self, seconds: float) -> dict[int, AttemptEntry]:
        """Take over the attempt log of former owners, and return its entries by offset.

        If Redis does not answer within ``seconds``, return an empty dict: attempts are counted from 1 again.
        """
        try:
            async with asyncio.timeout(seconds):
                return await self._claim()
        except (*REDIS_ERRORS, TimeoutError) as error:
            logger.warning("attempt counts restart, %s subscriber=%s source=%s", redis_fault_text(error), *self._whose)
            return {}

    def keep(self, offset: int, entry: AttemptEntry) -> None:
        """Schedule a write of the entry of an event that runs or waits for its next attempt."""
        if self._is_idle:
            self._is_awaited.set()
        self._want(offset, entry)

    def _want(self, offset: int, entry: AttemptEntry) -> None:
        if self._wanted.get(offset) != entry:
            self._wanted[offset] = entry
            self._unwritten.add(offset)
            self.writer.changed.set()

    def schedule_progress(self, position: OffsetAndMetadata) -> None:
        """If the position has changed, schedule a write of it to Redis, because Kafka may remove its commit after the retention."""
        if position != self._progress:
            self._progress = position
            self.writer.changed.set()

    def schedule_write(self) -> None:
        """Schedule a write, because attempts are about to start; the write then includes those that have started."""
        self.writer.changed.set()

    def drop(self, offsets: Iterable[int]) -> None:
        """Schedule the removal of the entries of finished events."""
        wanted = self._wanted
        if dropped := [offset for offset in offsets if offset in wanted]:
            for offset in dropped:
                del wanted[offset]
            self._unwritten.update(dropped)
            self.writer.changed.set()

    async def written(self, offsets: Sequence[int], seconds: float) -> None:
        """Wait until Redis has the scheduled entries of the events at ``offsets``.

        After ``seconds``, log a warning and return. While writes fail, return at once. In both cases, the caller continues without
        the entries.
        """
        if self.writer.is_failing:
            return
        try:
            async with asyncio.timeout(seconds):
                while not self._is_claimed or any([self._stored.get(one) != self._wanted.get(one) for one in offsets]):
                    self._written.clear()
                    self._is_awaited.set()
                    await self._written.wait()
        except TimeoutError:
            logger.warning(
                "attempts are not written to redis in time, continuing without subscriber=%s source=%s offsets=%d-%d",
                *self._whose, min(offsets), max(offsets),
            )  # fmt: skip

    def _report_failure(self, error: str) -> None:
        logger.warning(
            "attempts cannot be written to redis, continuing without subscriber=%s source=%s error=%s", *self._whose, error
        )

    def _report_recovery(self) -> None:
        logger.info("attempts are written to redis again subscriber=%s source=%s", *self._whose)

    async def _pause(self) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(PAUSE_SECONDS):
                await self._is_awaited.wait()
        self._is_awaited.clear()

    async def write_within(self, seconds: float) -> None:
        """Write the scheduled changes once; :attr:`writer` must not run.

        If the write fails or takes more than ``seconds``, log this, and keep the changes for the next write.
        """
        try:
            async with asyncio.timeout(seconds):
                self.writer.changed.clear()
                await self.write_once()
        except (FencedError, *REDIS_ERRORS, TimeoutError) as error:
            self.writer.changed.set()
            logger.info(
                "the last attempts of a partition are not in redis subscriber=%s source=%s error=%s",
                *self._whose, text_of(error),
            )  # fmt: skip

    async def write_once(self) -> None:
        """Write the changes since the last write. If Redis has lost data, schedule a write of all entries instead."""
        try:
            if not self._is_claimed:
                await self._claim()
            await self._write()
        except FencedError as error:
            self._is_claimed = False
            if error.cause == ANOTHER_OWNER:
                raise
            # Redis was wiped or restored from an older copy, so all entries are written once more.
            self.writer.changed.set()
        except BaseException:  # also when cancelled: the script may or may not have been executed
            self._is_claimed = False
            raise

    async def _claim(self) -> dict[int, AttemptEntry]:
        kept = await self._store.claim(self._progress.offset, is_repeated=self._was_claimed)
        self._is_claimed = self._was_claimed = True
        self._stored = {} if kept is None else dict(kept.open)
        self._written_progress = None if kept is None else OffsetAndMetadata(kept.fence, kept.metadata)
        self._unwritten = self._wanted.keys() | self._stored.keys()
        return dict(self._stored)

    def _find_started(self) -> None:
        for attempt in self._running:
            if not attempt.begun_ms:
                # It is queued for an executor slot, and no call reports its start: check once more.
                self.writer.changed.set()
            elif attempt.outcome is None and not attempt.in_flight_event.crash_count:
                # The guarantee itself writes the entries of suspects.
                self._want(attempt.in_flight_event.offset, AttemptEntry(attempt.in_flight_event.attempts))

    async def _write(self) -> None:
        self._find_started()
        unwritten, self._unwritten = self._unwritten, set()
        changes = {at: self._wanted.get(at) for at in unwritten if self._wanted.get(at) != self._stored.get(at)}
        progress = self._progress
        self._is_idle = not changes
        begun = [Begin(offset, entry) for offset, entry in changes.items() if entry is not None and entry.is_begun]
        waiting = [(offset, entry) for offset, entry in changes.items() if entry is not None and not entry.is_begun]
        gone = [offset for offset, entry in changes.items() if entry is None]
        if begun:
            await self._store.begin(begun, self._now_ms())
        if waiting or gone or progress != self._written_progress:
            await self._store.end(gone, waiting, *progress)
            self._written_progress = progress
        for offset, entry in changes.items():
            if entry is None:
                del self._stored[offset]
            else:
                self._stored[offset] = entry
        self._written.set()
