"""The begin log, a write-ahead log: an attempt starts only after Redis has recorded that it begins.

One pass has one request in flight, and includes what has arrived meanwhile. A pass that fails is repeated until it succeeds; no
event starts meanwhile.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Final, NamedTuple, Protocol

from streams_app.backoff import Backoff
from streams_app.delivery.dependency_errors import DEPENDENCY_ERRORS, waiting_for_label
from streams_app.delivery.scripts import FencedError
from streams_app.errors import text_of
from streams_app.subscribers.execution.executor import Attempt, AttemptOutcome
from streams_app.subscribers.execution.in_flight_event import InFlightEvent
from streams_app.subscribers.guarantees.guarantee import ANOTHER_OWNER
from streams_app.subscribers.state.store import AttemptEntry, Begin, StoredState, SubscriberStore

logger = logging.getLogger(__name__)

COMMIT_SECONDS: Final = 0.05
"""An outcome that no commit includes after this time causes a commit of its own."""

MAX_AT_ONCE: Final = 1_000
"""Maximum number of event ids in one script."""


class Starter(Protocol):
    """What starts the attempts that may start."""

    def start(self, attempts: Sequence[Attempt]) -> None:
        """Start attempts."""

    def withdrawn(self, attempts: list[Attempt]) -> None:
        """Take back attempts that do not start; each has an outcome."""


class EndLog(NamedTuple):
    """The progress that is written with each outcome.

    Attributes:
        low: The low watermark.
        metadata: Metadata that says what is finished above it.
    """

    low: int
    metadata: str


class BeginLog:
    """Writes which events of one partition begin, and then what has become of them, under one claim.

    Attributes:
        done: Offset → event that has succeeded and is not yet finished in Redis.
        is_robbed: Whether another process has claimed the partition: what ends here from now on ends late.
    """

    def __init__(
        self,
        store: SubscriberStore,
        progress: Callable[[], EndLog | None],
        now_ms: Callable[[], int],
        starter: Starter,
        on_begun: Callable[[Sequence[Attempt]], Awaitable[Sequence[Attempt]]],
        on_learned: Callable[[], None],
        commit_ends: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        """Initialize an empty log; :meth:`.Guarantee.take_over` reads the state in Redis.

        Args:
            store: The store of this claim.
            progress: Returns what is finished now; None while neither that nor any outcome may be written.
            now_ms: Wall clock.
            starter: Starts the attempts.
            on_begun: Called with attempts whose begin is in Redis; returns those that may start. The others are withdrawn.
            on_learned: Called when event ids were written.
            commit_ends: Commits outcomes, :data:`COMMIT_SECONDS` later, unless a commit of what begins includes them earlier; None
                if outcomes need no commit.
        """
        self.done: dict[int, InFlightEvent] = {}
        self.is_robbed = False
        self._store = store
        self._whose = store.keys.subscriber, store.keys.source
        self._progress = progress
        self._now_ms = now_ms
        self._starter = starter
        self._on_begun = on_begun
        self._on_learned = on_learned
        self._commit_ends = commit_ends
        self._has_uncommitted = self._is_commit_due = False
        self._stored: set[int] = set()
        self._ids: list[tuple[int, str]] = []
        self._entries: dict[int, AttemptEntry | None] = {}
        self._new: list[tuple[Attempt, Begin]] = []
        self._sending: list[tuple[Attempt, Begin]] = []
        self._in_redis: list[Attempt] = []
        self._is_stopped = self._is_behind = False
        self._written_low = 0
        self._changed = asyncio.Event()
        self._pass = asyncio.Lock()
        self._fault: str | None = None
        self._backoff = Backoff(first_seconds=0.1, longest_seconds=5.0)

    async def claim(self, fence: int) -> StoredState:
        """Take over the state of former owners.

        Args:
            fence: The fence of a new state: event ids below it are known, or not needed.

        Raises:
            RedisError, OSError, TimeoutError: Redis does not answer: nothing may start without it.
        """
        kept = await self._store.claim(fence)
        assert kept is not None  # the script creates a state if there is none
        self._stored = set(kept.open)
        return kept

    async def write_progress(self) -> None:
        """Write the progress alone.

        Raises:
            RedisError, OSError, TimeoutError: Redis does not answer.
        """
        if progress := self._progress():
            await self._store.end((), (), *progress)

    @property
    def backlog(self) -> int:
        """Number of event ids that are not written yet."""
        return len(self._ids)

    def waits_for(self) -> str | None:
        """Return the `waiting_for` label of an outage since the last call, or of the current one; None if there was none."""
        fault = self._fault
        if not self._backoff.failures:
            self._fault = None
        # A frozen Redis refuses nothing, and its time-out is too long to wait for.
        is_waiting = self._store.is_waiting()
        return fault or ("redis" if is_waiting else None)

    # ---- what is to be written

    def learn(self, offset: int, own_id: str) -> None:
        """Schedule a write of the id of an event that was finished earlier; no attempt begins before it."""
        self._ids.append((offset, own_id))
        self._changed.set()

    def begin(self, begins: Iterable[tuple[Attempt, Begin]]) -> None:
        """Schedule a write of the begin of attempts, which start after it."""
        self._new += begins
        self._changed.set()

    def keep(self, offset: int, entry: AttemptEntry) -> None:
        """Schedule a write of the entry of an event that waits for its next attempt."""
        self._entries[offset] = entry
        self._changed.set()
        self._schedule_commit()

    def drop(self, offsets: Iterable[int]) -> None:
        """Schedule the removal of the entries of finished events."""
        stored, entries = self._stored, self._entries
        if dropped := [offset for offset in offsets if offset in stored or offset in entries]:
            entries.update(dict.fromkeys(dropped))
            self._changed.set()
            self._schedule_commit()

    def _schedule_commit(self) -> None:
        if self._commit_ends is not None and not self._has_uncommitted:
            self._has_uncommitted = True
            asyncio.get_running_loop().call_later(COMMIT_SECONDS, self._commit_soon)

    def _commit_soon(self) -> None:
        self._is_commit_due = self._has_uncommitted
        self._changed.set()

    def stop(self) -> None:
        """Start no more attempts; those whose begin is being written are withdrawn as soon as Redis has answered."""
        self._is_stopped = True
        new, self._new = self._new, []
        self._withdraw([attempt for attempt, _ in new])

    def low_moved(self, low: int) -> None:
        """Schedule a write of the low watermark even if no event has ended: it also moves over offsets without events."""
        if low > self._written_low:
            self._is_behind = True
            self._changed.set()

    # ---- writing

    async def forever(self) -> None:
        """Write scheduled changes, one script at a time.

        Raises:
            FencedError: Another owner intervened, or Redis has lost data.
        """
        while True:
            await self._changed.wait()
            self._changed.clear()
            try:
                await self.write_once()
                self._backoff.succeeded()
            except DEPENDENCY_ERRORS as error:
                self._fault = waiting_for_label(error)
                if not self._backoff.failures:
                    logger.warning(
                        "no event starts until its begin can be written subscriber=%s source=%s error=%s",
                        *self._whose, text_of(error),
                    )  # fmt: skip
                self._changed.set()
                await asyncio.sleep(self._backoff.failed())

    async def write_once(self) -> None:
        """Make one pass: event ids, outcomes, begins, the commit of outcomes.

        Raises:
            FencedError: As in :meth:`forever`.
            RedisError, KafkaError, OSError, TimeoutError: The outcome is unknown; the next pass sends the same again.
        """
        async with self._pass:
            try:
                await self._write_ids()
                await self._write_ends()
                await self._write_begins()
                await self._commit()
            except FencedError as error:
                self.is_robbed = self.is_robbed or error.cause == ANOTHER_OWNER
                raise

    async def pass_ended(self, seconds: float) -> None:
        """Wait until the current pass has ended, up to ``seconds``."""
        try:
            async with asyncio.timeout(seconds), self._pass:
                return
        except TimeoutError:
            logger.info("begins were not written in time, their events do not start subscriber=%s source=%s", *self._whose)

    async def write_last(self, seconds: float) -> None:
        """Write the last outcomes if that is possible within ``seconds``; attempts that have not started are withdrawn."""
        self._withdraw([*(attempt for attempt, _ in self._sending), *self._in_redis])
        self._sending, self._in_redis = [], []
        try:
            async with asyncio.timeout(seconds):
                await self._write_ends(is_last=True)
        except FencedError as error:
            self.is_robbed = self.is_robbed or error.cause == ANOTHER_OWNER
            self._report_unwritten(error)
        except DEPENDENCY_ERRORS as error:
            self._report_unwritten(error)

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
        # At the end also without outcomes: if Redis knows less than the commit, the next owner reads event ids back from the log.
        # While ids are unwritten nothing is written: the fence would say that Redis knows them.
        if progress is None or self._ids or not (entries or is_last or self._is_behind):
            return
        finished = [offset for offset, entry in entries.items() if entry is None]
        waiting = [(offset, entry) for offset, entry in entries.items() if entry is not None]
        await self._store.end(finished, waiting, *progress)
        self._written_low, self._is_behind = progress.low, False
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
                # Its entry as a waiting event is obsolete: written after the begin, it would let the next owner run it again.
                self._entries.pop(begin.offset, None)
        if self._sending:
            # A repeated request has the same events: the script recognises it by them.
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
            begun = await self._on_begun(self._in_redis)
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
            except BaseException:  # also when cancelled: the broker may have the commit or not
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
