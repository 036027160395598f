"""What is noted of a partition whose events may not run twice: that one begins, before it does, and then what has become of it.

One pass has one request in flight and takes with it what has come meanwhile. A pass that has failed is made again until it is
answered; nothing begins meanwhile.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Final, NamedTuple, Protocol

from streams_app.backoff import Backoff
from streams_app.delivery.retry import DEPENDENCY_ERRORS, waiting_for_label
from streams_app.delivery.scripts import FencedError
from streams_app.errors import text_of
from streams_app.subscribers.execution.executor import Attempt, AttemptOutcome
from streams_app.subscribers.execution.in_flight_event import InFlightEvent
from streams_app.subscribers.guarantees.attempt_log import ANOTHER_OWNER
from streams_app.subscribers.state.store import AttemptEntry, Begin, StoredState, SubscriberStore

logger = logging.getLogger(__name__)

SAID_SECONDS: Final = 0.05

MOST_AT_ONCE: Final = 1_000
"""So many ids are told Redis in one script."""


class Slots(Protocol):
    """What takes the calls that may begin."""

    def noted(self, calls: Sequence[Attempt]) -> None:
        """They begin."""

    def withdrawn(self, calls: list[Attempt]) -> None:
        """They do not; each has an outcome."""


class EndLog(NamedTuple):
    """What Redis is told with each end.

    Attributes:
        low: The low watermark.
        note: What is finished above it.
    """

    low: int
    note: str


class BeginLog:
    """What is to be noted of one partition under one claim.

    Attributes:
        done: Offset → event that has ended well, as long as Redis has not been told.
        is_robbed: Whether another process has taken the partition: what ends here now ends late.
    """

    def __init__(
        self,
        store: SubscriberStore,
        progress: Callable[[], EndLog | None],
        now_ms: Callable[[], int],
        slots: Slots,
        begun: Callable[[Sequence[Attempt]], Awaitable[Sequence[Attempt]]],
        learned: Callable[[], None],
        said: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        """Nothing is known to be in Redis.

        Args:
            store: Of the claim.
            progress: What is finished now; None: that may not be told yet, and nothing else that has ended.
            now_ms: Wall clock.
            slots: Take what may begin.
            begun: Takes calls that Redis knows to begin; returns those that may begin now; the others are taken back.
            learned: Called when Redis has been told ids.
            said: Says elsewhere what has ended, where that has not been said :data:`SAID_SECONDS` later with what begins.
        """
        self.done: dict[int, InFlightEvent] = {}
        self.is_robbed = False
        self._store = store
        self._whose = store.keys.subscriber, store.keys.source
        self._progress = progress
        self._now_ms = now_ms
        self._slots = slots
        self._begun = begun
        self._learned = learned
        self._said = said
        self._is_unsaid = self._is_due = False
        self._has: set[int] = set()
        self._ids: list[tuple[int, str]] = []
        self._entries: dict[int, AttemptEntry | None] = {}
        self._new: list[tuple[Attempt, Begin]] = []
        self._sending: list[tuple[Attempt, Begin]] = []
        self._in_redis: list[Attempt] = []
        self._is_stopped = self._is_behind = False
        self._told_low = 0
        self._changed = asyncio.Event()
        self._pass = asyncio.Lock()
        self._fault: str | None = None
        self._backoff = Backoff(first_seconds=0.1, longest_seconds=5.0)

    async def claim(self, fence: int) -> StoredState:
        """What Redis has from the owners before.

        Args:
            fence: With which a state begins where there is none: ids of events below it are known, or nobody's to know.

        Raises:
            RedisError, OSError, TimeoutError: Redis does not answer: nothing may begin without it.
        """
        kept = await self._store.claim(fence)
        assert kept is not None  # it was to be created
        self._has = set(kept.open)
        return kept

    async def tell(self) -> None:
        """Tells Redis where its owner stands; raises as :meth:`claim` does."""
        if progress := self._progress():
            await self._store.end((), (), *progress)

    @property
    def backlog(self) -> int:
        """How many ids Redis has not been told yet."""
        return len(self._ids)

    def waits_for(self) -> str | None:
        """What it has waited for since this was asked last, or does still."""
        fault = self._fault
        if not self._backoff.failures:
            self._fault = None
        # One that is frozen refuses nothing: its time-out takes longer than anybody should wait to see it.
        is_waiting = self._store.is_waiting()
        return fault or ("redis" if is_waiting else None)

    # ---- what is to be noted

    def learn(self, offset: int, own_id: str) -> None:
        """The id of an event that was read before anything begins."""
        self._ids.append((offset, own_id))
        self._changed.set()

    def begin(self, begins: Iterable[tuple[Attempt, Begin]]) -> None:
        """Calls that are to begin."""
        self._new += begins
        self._changed.set()

    def keep(self, offset: int, entry: AttemptEntry) -> None:
        """An event that waits."""
        self._entries[offset] = entry
        self._changed.set()
        self._say_in_time()

    def drop(self, offsets: Iterable[int]) -> None:
        """Events that are finished."""
        has, entries = self._has, self._entries
        if known := [offset for offset in offsets if offset in has or offset in entries]:
            entries.update(dict.fromkeys(known))
            self._changed.set()
            self._say_in_time()

    def _say_in_time(self) -> None:
        if self._said is not None and not self._is_unsaid:
            self._is_unsaid = True
            asyncio.get_running_loop().call_later(SAID_SECONDS, self._say_soon)

    def _say_soon(self) -> None:
        self._is_due = self._is_unsaid
        self._changed.set()

    def stop(self) -> None:
        """Nothing begins any more; what Redis is just being told is taken back as soon as it has answered."""
        self._is_stopped = True
        new, self._new = self._new, []
        self._take_back([call for call, _ in new])

    def look(self, low: int) -> None:
        """Has Redis told of a low watermark that has moved by what nobody had begun."""
        if low > self._told_low:
            self._is_behind = True
            self._changed.set()

    # ---- noting it

    async def forever(self) -> None:
        """Notes what there is to note.

        Raises:
            FencedError: Another owner came between, or Redis has lost what it was told.
        """
        while True:
            await self._changed.wait()
            self._changed.clear()
            try:
                await self.once()
                self._backoff.succeeded()
            except DEPENDENCY_ERRORS as error:
                self._fault = waiting_for_label(error)
                if not self._backoff.failures:
                    logger.warning(
                        "nothing begins until what begins can be noted subscriber=%s source=%s error=%s",
                        *self._whose,
                        text_of(error),
                    )
                self._changed.set()
                await asyncio.sleep(self._backoff.failed())

    async def once(self) -> None:
        """One pass.

        Raises:
            FencedError: As in :meth:`forever`.
            RedisError, KafkaError, OSError, TimeoutError: The outcome is unknown; the next pass asks the same again.
        """
        async with self._pass:
            try:
                await self._learn()
                await self._end()
                await self._begin()
                await self._say()
            except FencedError as error:
                self.is_robbed = self.is_robbed or error.cause == ANOTHER_OWNER
                raise

    async def settled(self, seconds: float) -> None:
        """Returns when the pass under way has ended, if that takes no longer than ``seconds``."""
        try:
            async with asyncio.timeout(seconds), self._pass:
                return
        except TimeoutError:
            logger.info("what begins was not noted in time, and does not begin subscriber=%s source=%s", *self._whose)

    async def write_last(self, seconds: float) -> None:
        """Tells Redis what has become of events, if that is possible within ``seconds``."""
        self._take_back([*(call for call, _ in self._sending), *self._in_redis])
        self._sending, self._in_redis = [], []
        try:
            async with asyncio.timeout(seconds):
                await self._end(is_last=True)
        except FencedError as error:
            self.is_robbed = self.is_robbed or error.cause == ANOTHER_OWNER
            self._tell_of_last(error)
        except DEPENDENCY_ERRORS as error:
            self._tell_of_last(error)

    def _tell_of_last(self, error: BaseException) -> None:
        logger.info(
            "what has become of the last events is not in Redis subscriber=%s source=%s error=%s", *self._whose, text_of(error)
        )

    async def _learn(self) -> None:
        while self._ids:
            some = self._ids[:MOST_AT_ONCE]
            await self._store.learn(some, self._now_ms())
            del self._ids[: len(some)]
            self._learned()

    async def _end(self, *, is_last: bool = False) -> None:
        telling, done, progress = dict(self._entries), list(self.done), self._progress()
        # Also without news of events: where Redis knows less than the commit, the next owner reads ids back from the log.
        if progress is None or self._ids or not (telling or is_last or self._is_behind):
            return  # with ids left to be learned the fence would say that Redis knows them
        finished = [offset for offset, entry in telling.items() if entry is None]
        waiting = [(offset, entry) for offset, entry in telling.items() if entry is not None]
        await self._store.end(finished, waiting, *progress)
        self._told_low, self._is_behind = progress.low, False
        for offset, entry in telling.items():
            if self._entries[offset] is entry:
                del self._entries[offset]
        self._has.difference_update(finished)
        self._has.update(offset for offset, _ in waiting)
        for offset in done:
            self.done.pop(offset, None)

    async def _begin(self) -> None:
        if not self._sending:
            new, self._new = self._new, []
            self._take_back([call for call, _ in new if call.is_dropped])
            self._sending = [(call, begin) for call, begin in new if not call.is_dropped]
            for _, begin in self._sending:
                # That it waited is told no more: told after its begin, it would be called again by whoever claims next.
                self._entries.pop(begin.offset, None)
        if self._sending:
            # The same events in each try: Redis knows a copy of a request by them.
            firsts = await self._store.begin([begin for _, begin in self._sending], self._now_ms())
            sent, self._sending = self._sending, []
            if firsts.count(None) < len(firsts):
                self._end_duplicates([call for (call, _), first in zip(sent, firsts, strict=True) if first is not None])
                sent = [one for one, first in zip(sent, firsts, strict=True) if first is None]
            self._has.update([begin.offset for _, begin in sent])
            self._in_redis += [call for call, _ in sent]
        if self._is_stopped:
            calls, self._in_redis = self._in_redis, []
            self._take_back(calls)
        elif self._in_redis:
            begun = await self._begun(self._in_redis)
            if begun:
                self._is_unsaid = self._is_due = False
            asked, self._in_redis = self._in_redis, []
            left = [call for call in asked if call not in begun] if len(begun) < len(asked) else []
            for call in begun:
                call.is_unnoted = False
            self._slots.noted(begun)
            self._take_back(left)

    async def _say(self) -> None:
        if self._is_due and self._said is not None:
            self._is_due = self._is_unsaid = False
            try:
                await self._said()
            except BaseException:  # also where it was cancelled: nobody knows whether it was said
                self._is_due = self._is_unsaid = True
                raise

    def _end_duplicates(self, calls: list[Attempt]) -> None:
        for call in calls:
            call.outcome = AttemptOutcome.DUPLICATE
        self._slots.withdrawn(calls)

    def _take_back(self, calls: Iterable[Attempt]) -> None:
        withdrawn = list(calls)
        for call in withdrawn:
            call.outcome = AttemptOutcome.CANCELLED
        self._slots.withdrawn(withdrawn)
