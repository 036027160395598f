"""Begin log, a write-ahead log: an attempt starts only after Redis has recorded that it begins.

A write of the log is a few requests, one after another. While writes fail, no event starts.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Final, Protocol

from streams_app.delivery.dependency_errors import DEPENDENCY_ERRORS
from streams_app.delivery.offset_metadata import OffsetAndMetadata
from streams_app.delivery.scripts import FencedError
from streams_app.errors import text_of
from streams_app.subscribers.execution.executor import Attempt, AttemptOutcome
from streams_app.subscribers.execution.in_flight_event import InFlightEvent
from streams_app.subscribers.guarantees.guarantee import ANOTHER_OWNER
from streams_app.subscribers.guarantees.log_writer import LogWriter
from streams_app.subscribers.state.store import AttemptEntry, Begin, StoredState, SubscriberStore

logger = logging.getLogger(__name__)

COMMIT_SECONDS: Final = 0.05
"""Outcomes that no other commit has included after this time are committed separately."""

STATE_CAUSES: Final = ("no-state", "number")
"""Causes for which scripts reject a request if Redis has lost all or the newest of its data."""

MAX_AT_ONCE: Final = 1_000
"""Maximum number of event ids in one script."""


class Starter(Protocol):
    """Port to the dispatcher, which starts attempts."""

    def start(self, attempts: Sequence[Attempt]) -> None: ...

    def withdrawn(self, attempts: list[Attempt]) -> None: ...


class BeginLog:
    """Records in Redis that events of one partition begin, and later their outcomes, under one claim.

    If another owner has claimed the partition, or Redis has lost data, :meth:`write_progress`, :meth:`write_once` and
    :attr:`writer` raise a FencedError. After another error, the outcome of a write is unknown, and the next one repeats the
    request.

    Attributes:
        writer: Writes the scheduled changes, each write at once.
        done: Events that have succeeded, but whose outcomes are not written yet, by offset.
        is_fenced: Whether another process has claimed the partition, so that this log can no longer write outcomes.
        has_no_state: Whether Redis has lost the state of the partition, or its newest part, with outcomes that were written.
    """

    def __init__(
        self,
        store: SubscriberStore,
        progress: Callable[[], OffsetAndMetadata | None],
        now_ms: Callable[[], int],
        starter: Starter,
        on_recorded: Callable[[Sequence[Attempt]], Awaitable[Sequence[Attempt]]],
        on_learned: Callable[[], None],
        ids: list[tuple[int, str]],
        commit_ends: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        """Initialize an empty log; :meth:`.Guarantee.take_over` reads the state in Redis.

        Args:
            progress: Returns the low watermark, with the finished offsets above it as metadata. It returns None while neither this
                position nor any outcome may be written to Redis.
            on_recorded: Called with attempts that are recorded as begun in Redis; returns those that may start. The others are
                cancelled.
            on_learned: Called each time event ids were written, so that a paused reader can continue.
            ids: Offset and id of each event whose id is not written yet; this log adds and removes them.
            commit_ends: Commits outcomes. It is called after :data:`COMMIT_SECONDS`, unless a commit by ``on_recorded`` has
                included the outcomes earlier. None if outcomes need no commit.
        """
        self.done: dict[int, InFlightEvent] = {}
        self.is_fenced = self.has_no_state = False
        self._store = store
        self._whose = store.keys.subscriber, store.keys.source
        self.writer = LogWriter(store, self.write_once, on_failure=self._report_failure, on_recovery=self._report_recovery)
        self._progress = progress
        self._now_ms = now_ms
        self._starter = starter
        self._on_recorded = on_recorded
        self._on_learned = on_learned
        self._commit_ends = commit_ends
        self._has_uncommitted = self._is_commit_due = False
        self._stored: set[int] = set()
        self._ids = ids
        self._entries: dict[int, AttemptEntry | None] = {}
        self._new: list[tuple[Attempt, Begin]] = []
        self._sending: list[tuple[Attempt, Begin]] = []
        self._in_redis: list[Attempt] = []
        self._is_stopped = self._is_behind = False
        self._written_low = 0
        self._writing = asyncio.Lock()

    async def claim(self, fence: int) -> StoredState:
        """Take over the state of former owners in Redis, and return it.

        If Redis has none, create a state with this fence. From then on, Redis counts as having the ids of all events below it.
        """
        kept = await self._store.claim(fence)
        assert kept is not None  # the script creates a state if there is none
        self._stored = set(kept.open)
        return kept

    async def write_progress(self) -> None:
        """Write the low watermark and its metadata to Redis, without outcomes of attempts.

        While ids that Redis has lost are read back from the log, do nothing, because a low watermark in Redis implies that Redis
        has the ids of all events below it.
        """
        if progress := self._progress():
            await self._store.end((), (), *progress)

    # ---- scheduling of writes

    def schedule_ids(self, ids: Iterable[tuple[int, str]]) -> None:
        """Schedule a write of event ids that Redis has lost, each with its offset; no attempt begins before they are written."""
        self._ids += ids
        self.writer.changed.set()

    def schedule_begins(self, begins: Iterable[tuple[Attempt, Begin]]) -> None:
        """Schedule a write that records events as begun; their attempts start after the write."""
        self._new += begins
        self.writer.changed.set()

    def keep(self, offset: int, entry: AttemptEntry) -> None:
        """Schedule a write of the entry of an event that waits for its next attempt."""
        self._entries[offset] = entry
        self.writer.changed.set()
        self._schedule_commit()

    def drop(self, offsets: Iterable[int]) -> None:
        """Schedule the removal of the entries of finished events."""
        stored, entries = self._stored, self._entries
        if dropped := [offset for offset in offsets if offset in stored or offset in entries]:
            entries.update(dict.fromkeys(dropped))
            self.writer.changed.set()
            self._schedule_commit()

    def _schedule_commit(self) -> None:
        if self._commit_ends is not None and not self._has_uncommitted:
            self._has_uncommitted = True
            asyncio.get_running_loop().call_later(COMMIT_SECONDS, self._commit_soon)

    def _commit_soon(self) -> None:
        self._is_commit_due = self._has_uncommitted
        self.writer.changed.set()

    def stop(self) -> None:
        """Start no more attempts.

        Attempts whose write is only scheduled are cancelled now. Those in the current write are cancelled after the reply of Redis.
        """
        self._is_stopped = True
        new, self._new = self._new, []
        self._withdraw([attempt for attempt, _ in new])

    def schedule_progress(self, low: int) -> None:
        """If the low watermark ``low`` is higher than at the last write, schedule a write of it and its metadata."""
        if low > self._written_low:
            self._is_behind = True
            self.writer.changed.set()

    # ---- writing

    def _report_failure(self, error: str) -> None:
        logger.warning("no event starts until it can be recorded as begun subscriber=%s source=%s error=%s", *self._whose, error)

    def _report_recovery(self) -> None:
        logger.info("events start again subscriber=%s source=%s", *self._whose)

    async def write_once(self) -> None:
        """Write all scheduled changes once: event ids, then outcomes, then attempts that begin. Commit outcomes if that is due."""
        async with self._writing:
            try:
                await self._write_ids()
                await self._write_ends()
                await self._write_begins()
                await self._commit()
            except FencedError as error:
                self._rejected(error)
                raise

    async def current_write_ended(self, seconds: float) -> None:
        """If :meth:`write_once` is running, wait until this call has ended, for at most ``seconds``.

        The attempts that the call records as begun have then started, or were cancelled. After ``seconds``, log this and return:
        these attempts do not start.
        """
        try:
            async with asyncio.timeout(seconds), self._writing:
                return
        except TimeoutError:
            logger.info("begins were not written in time, their events do not start subscriber=%s source=%s", *self._whose)

    async def write_last(self, seconds: float) -> None:
        """Cancel attempts that have not started, and write the last outcomes.

        If the write fails or takes more than ``seconds``, log that the outcomes are not in Redis.
        """
        self._withdraw([*(attempt for attempt, _ in self._sending), *self._in_redis])
        self._sending, self._in_redis = [], []
        try:
            async with asyncio.timeout(seconds):
                await self._write_ends(is_last=True)
        except FencedError as error:
            self._rejected(error)
            self._report_unwritten(error)
        except DEPENDENCY_ERRORS as error:
            self._report_unwritten(error)

    def _rejected(self, error: FencedError) -> None:
        self.is_fenced = self.is_fenced or error.cause == ANOTHER_OWNER
        self.has_no_state = self.has_no_state or error.cause in STATE_CAUSES

    def _report_unwritten(self, error: BaseException) -> None:
        logger.info(
            "the outcomes of the last events are not in redis subscriber=%s source=%s error=%s", *self._whose, text_of(error)
        )

    async def _write_ids(self) -> None:
        while self._ids:
            some = self._ids[:MAX_AT_ONCE]
            await self._store.learn(some, self._now_ms())
            del self._ids[: len(some)]
            self._on_learned()

    async def _write_ends(self, *, is_last: bool = False) -> None:
        entries, done, progress = dict(self._entries), list(self.done), self._progress()
        # The last write happens even without outcomes: if the fence in Redis were below the commit, the next owner would have to
        # read event ids back from the log. While ids are unwritten, no progress is written, because the fence implies that Redis
        # has the ids of all events below it.
        if progress is None or self._ids or not (entries or is_last or self._is_behind):
            return
        finished = [offset for offset, entry in entries.items() if entry is None]
        waiting = [(offset, entry) for offset, entry in entries.items() if entry is not None]
        await self._store.end(finished, waiting, *progress)
        self._written_low, self._is_behind = progress.offset, False
        for offset, entry in entries.items():
            if self._entries[offset] is entry:
                del self._entries[offset]
        self._stored.difference_update(finished)
        self._stored.update(offset for offset, _ in waiting)
        for offset in done:
            self.done.pop(offset, None)

    async def _write_begins(self) -> None:
        if not self._sending:
            new, self._new = self._new, []
            self._withdraw([attempt for attempt, _ in new if attempt.is_dropped])
            self._sending = [(attempt, begin) for attempt, begin in new if not attempt.is_dropped]
            for _, begin in self._sending:
                # Its entry as a waiting event is obsolete: if it were written after the begin, the next owner would run the event.
                self._entries.pop(begin.offset, None)
        if self._sending:
            # A repeated request contains the same events, by which the script recognises it.
            firsts = await self._store.begin([begin for _, begin in self._sending], self._now_ms())
            sent, self._sending = self._sending, []
            if firsts.count(None) < len(firsts):
                self._end_duplicates([attempt for (attempt, _), first in zip(sent, firsts, strict=True) if first is not None])
                sent = [one for one, first in zip(sent, firsts, strict=True) if first is None]
            self._stored.update([begin.offset for _, begin in sent])
            self._in_redis += [attempt for attempt, _ in sent]
        if self._is_stopped:
            attempts, self._in_redis = self._in_redis, []
            self._withdraw(attempts)
        elif self._in_redis:
            begun = await self._on_recorded(self._in_redis)
            if begun:
                self._has_uncommitted = self._is_commit_due = False
            asked, self._in_redis = self._in_redis, []
            left = [attempt for attempt in asked if attempt not in begun] if len(begun) < len(asked) else []
            for attempt in begun:
                attempt.is_unrecorded = False
            self._starter.start(begun)
            self._withdraw(left)

    async def _commit(self) -> None:
        if self._is_commit_due and self._commit_ends is not None:
            self._is_commit_due = self._has_uncommitted = False
            try:
                await self._commit_ends()
            except BaseException:  # also when cancelled: the broker may or may not have the commit
                self._is_commit_due = self._has_uncommitted = True
                raise

    def _end_duplicates(self, attempts: list[Attempt]) -> None:
        for attempt in attempts:
            attempt.outcome = AttemptOutcome.DUPLICATE
        self._starter.withdrawn(attempts)

    def _withdraw(self, attempts: Sequence[Attempt]) -> None:
        withdrawn = list(attempts)
        for attempt in withdrawn:
            attempt.outcome = AttemptOutcome.CANCELLED
        self._starter.withdrawn(withdrawn)
