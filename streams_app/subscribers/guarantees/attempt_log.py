"""What a subscriber that may be called again tells Redis of its attempts: written beside the work, which waits for suspects alone.

Redis then knows which events were running when a process died, and how often an event was tried. Without it attempts count anew.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import suppress
from typing import Final

from streams_app.backoff import Backoff
from streams_app.delivery.processor import OffsetAndMetadata
from streams_app.delivery.retry import waiting_for_label
from streams_app.delivery.scripts import FencedError
from streams_app.errors import text_of
from streams_app.redis_access.client import REDIS_ERRORS, trouble_text
from streams_app.subscribers.execution.executor import Attempt
from streams_app.subscribers.state.store import AttemptEntry, Begin, SubscriberStore

logger = logging.getLogger(__name__)

ANOTHER_OWNER: Final = "token"

PAUSE_SECONDS: Final = 0.02
"""Between two writes that nobody waits for: what changes after a quiet moment is told at once, of a stream of short calls what is
under way now and then. Telling Redis of each would cost more than the calls."""


class AttemptLog:
    """Brings what Redis has of a partition in line with what is the case, again and again."""

    def __init__(
        self, store: SubscriberStore, progress: OffsetAndMetadata, now_ms: Callable[[], int], running: Collection[Attempt] = ()
    ) -> None:
        """Nothing is known to be in Redis.

        Args:
            store: Of the claim.
            progress: The low watermark, and what is finished above it.
            now_ms: Wall clock.
            running: Calls that have not ended, as they are at any time: those that have begun are to be known. Most have ended
                before anybody is told of them.
        """
        self._store = store
        self._whose = store.keys.subscriber, store.keys.source
        self._progress = progress
        self._told_progress: OffsetAndMetadata | None = None
        self._now_ms = now_ms
        self._wanted: dict[int, AttemptEntry] = {}
        self._has: dict[int, AttemptEntry] = {}
        self._unwritten: set[int] = set()
        self._running = running
        self._written, self._hurry = asyncio.Event(), asyncio.Event()
        self._is_claimed = self._was_claimed = self._is_idle = False
        self._changed = asyncio.Event()
        self._fault: str | None = None
        self._backoff = Backoff(first_seconds=0.1, longest_seconds=5.0)

    async def claim(self, seconds: float) -> dict[int, AttemptEntry]:
        """What Redis has from the owners before; nothing where it does not answer within ``seconds``.

        Raises:
            FencedError: Another owner came between.
        """
        try:
            async with asyncio.timeout(seconds):
                return await self._claim()
        except (*REDIS_ERRORS, TimeoutError) as error:
            logger.warning("attempts count anew, %s subscriber=%s source=%s", trouble_text(error), *self._whose)
            return {}

    def waits_for(self) -> str | None:
        """What Redis has refused since this was asked last, or does still: ``redis-memory`` where it was full, else ``redis``."""
        fault = self._fault
        if not self._backoff.failures:
            self._fault = None
        # One that is frozen refuses nothing: its time-out takes longer than anybody should wait to see it.
        is_waiting = self._store.is_waiting()
        return fault or ("redis" if is_waiting else None)

    def keep(self, offset: int, entry: AttemptEntry) -> None:
        """Notes what is to be known of an event that runs, or is to be tried again."""
        if self._is_idle:
            self._hurry.set()
        self._want(offset, entry)

    def _want(self, offset: int, entry: AttemptEntry) -> None:
        if self._wanted.get(offset) != entry:
            self._wanted[offset] = entry
            self._unwritten.add(offset)
            self._changed.set()

    def progressed(self, progress: OffsetAndMetadata) -> None:
        """Notes the low watermark, and what is finished above it; told Redis together, as the note is of that watermark."""
        if progress != self._progress:
            self._progress = progress
            self._changed.set()

    def look(self) -> None:
        """There are calls that will run."""
        self._changed.set()

    def drop(self, offsets: Iterable[int]) -> None:
        """Notes that events are finished."""
        wanted = self._wanted
        if known := [offset for offset in offsets if offset in wanted]:
            for offset in known:
                del wanted[offset]
            self._unwritten.update(known)
            self._changed.set()

    async def told(self, offsets: Sequence[int], seconds: float) -> None:
        """Waits until Redis knows what is to be known of events: up to ``seconds``, and not at all while Redis takes no marks."""
        if self._backoff.failures:
            return
        try:
            async with asyncio.timeout(seconds):
                while not self._is_claimed or any([self._has.get(one) != self._wanted.get(one) for one in offsets]):
                    self._written.clear()
                    self._hurry.set()
                    await self._written.wait()
        except TimeoutError:
            logger.warning(
                "Redis does not take marks in time, going on without subscriber=%s source=%s offsets=%d-%d",
                *self._whose, min(offsets), max(offsets),
            )  # fmt: skip

    async def forever(self) -> None:
        """Writes what has changed, one script in flight.

        Raises:
            FencedError: Another owner came between.
        """
        while True:
            await self._changed.wait()
            self._changed.clear()
            try:
                await self.write_once()
                self._backoff.succeeded()
                await self._pause()
            except (*REDIS_ERRORS, TimeoutError) as error:
                self._fault = waiting_for_label(error)
                if not self._backoff.failures:
                    logger.warning(
                        "Redis does not take marks, going on without subscriber=%s source=%s error=%s", *self._whose, text_of(error)
                    )
                self._changed.set()
                await asyncio.sleep(self._backoff.failed())

    async def _pause(self) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(PAUSE_SECONDS):
                await self._hurry.wait()
        self._hurry.clear()

    async def write_within(self, seconds: float) -> None:
        """Writes what has changed, if that is possible within ``seconds``; called while :meth:`forever` does not run."""
        try:
            async with asyncio.timeout(seconds):
                self._changed.clear()
                await self.write_once()
        except (FencedError, *REDIS_ERRORS, TimeoutError) as error:
            self._changed.set()
            logger.info(
                "the last marks of a partition are not in Redis subscriber=%s source=%s error=%s", *self._whose, text_of(error)
            )

    async def write_once(self) -> None:
        """Writes what has changed since the last time.

        Raises:
            FencedError: Another owner came between.
            RedisError, OSError, TimeoutError: The outcome is unknown.
        """
        try:
            if not self._is_claimed:
                await self._claim()
            await self._write()
        except FencedError as error:
            self._is_claimed = False
            if error.cause == ANOTHER_OWNER:
                raise
            # Redis was wiped or rolled back: what it is to know is told once more.
            self._changed.set()
        except BaseException:  # also where it was cancelled: nobody knows what the script has written
            self._is_claimed = False
            raise

    async def _claim(self) -> dict[int, AttemptEntry]:
        kept = await self._store.claim(self._progress.offset, again=self._was_claimed)
        self._is_claimed = self._was_claimed = True
        self._has = {} if kept is None else dict(kept.open)
        self._told_progress = None if kept is None else OffsetAndMetadata(kept.fence, kept.note)
        self._unwritten = self._wanted.keys() | self._has.keys()
        return dict(self._has)

    def _see_begun(self) -> None:
        for call in self._running:
            if not call.begun_ms:
                # It waits for a slot. A slot that takes it tells nobody.
                self._changed.set()
            elif call.outcome is None and not call.whose.deaths:
                # Of suspects is said what is to be known of them.
                self._want(call.whose.offset, AttemptEntry(call.whose.attempts))

    async def _write(self) -> None:
        self._see_begun()
        written, self._unwritten = self._unwritten, set()
        now = {offset: self._wanted.get(offset) for offset in written if self._wanted.get(offset) != self._has.get(offset)}
        progress = self._progress
        self._is_idle = not now
        begun = [Begin(offset, entry) for offset, entry in now.items() if entry is not None and entry.is_begun]
        waiting = [(offset, entry) for offset, entry in now.items() if entry is not None and not entry.is_begun]
        gone = [offset for offset, entry in now.items() if entry is None]
        if begun:
            await self._store.begin(begun, self._now_ms())
        if waiting or gone or progress != self._told_progress:
            await self._store.end(gone, waiting, *progress)
            self._told_progress = progress
        for offset, entry in now.items():
            if entry is None:
                del self._has[offset]
            else:
                self._has[offset] = entry
        self._written.set()
