"""Replay the dead letters of one fold or subscriber after a fix.

A :class:`.replay_destinations.Destination` decides which dead letters can be replayed, and where they go. Only the component that
rejected an event receives it again.

Receipts record what was replayed. After each page the replay appends a receipt to the dead-letter topic: a record without
``reason``, whose header ``streams-app-put-back`` names the application and the fold or subscriber, and whose value holds a digest
of each replayed event, one a line. A receipt lies behind its dead letters in the same partition, so retention removes it after
them. A committed offset would not do: it only says "up to here", and a broker forgets it after a week without a member.

If a replay is killed between the acknowledgement of a page and that of its receipt, the next replay sends this page again: a
duplicate is better than a loss. Concurrent replays would not see each other's receipts, so :mod:`.replay_lease` allows one at a
time.
"""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Final

from aiokafka.errors import OutOfOrderSequenceNumber

from streams_app.clock import Clock
from streams_app.delivery.producer import TOO_LARGE, Outgoing
from streams_app.errors import ConfigurationError, TryAgainError
from streams_app.kafka.producer import AckedProducer
from streams_app.operations.dead_letter import RECEIPT_HEADER, ListedDeadLetter, Selection
from streams_app.operations.dead_letters import DeadLetterTopic, dead_letter_topic
from streams_app.operations.replay_destinations import Destination
from streams_app.operations.replay_lease import ReplayLease, replay_lease
from streams_app.reasons import Reason
from streams_app.settings import Settings


@dataclass(slots=True)
class ReplayProgress:
    """What a replay has done so far, or would do.

    Attributes:
        is_begun: Whether both topics exist, so that the replay has begun.
        offsets: Number of records that the dead-letter topic has.
        searched: How many of them were searched for receipts.
        read: How many of them were looked at as letters after that.
        replayed: Events that the source has acknowledged; in a dry run: that would be put back.
        rejected: Reason → events that the present definition would refuse again.
        not_replayable: Cause in words → events that cannot be put back.
        already_replayed: Events that were asked for, and that an earlier replay has put back.
        duplicates: Letters that were written twice, of which one was taken.
        unselected: Letters that were not asked for; of those whose events were put back before, nothing is said.
        unacknowledged: Events that were sent and not acknowledged: they may have arrived.
        unrecorded: Events that were put back, but whose receipt was not acknowledged.
        is_limited: Whether the limit has ended the replay.
        is_stopped: Whether a signal has ended the replay.
    """

    is_begun: bool = False
    offsets: int = 0
    searched: int = 0
    read: int = 0
    replayed: int = 0
    rejected: Counter[Reason] = field(default_factory=Counter)
    not_replayable: Counter[str] = field(default_factory=Counter)
    already_replayed: int = 0
    duplicates: int = 0
    unselected: int = 0
    unacknowledged: int = 0
    unrecorded: int = 0
    is_limited: bool = False
    is_stopped: bool = False


def summary(done: ReplayProgress, *, dry_run: bool, failed: bool) -> list[str]:
    """The lines a person is told at the end, the counts last.

    Args:
        done: What the replay has done.
        dry_run: Whether nothing was really put back.
        failed: Whether the replay ended with an error.
    """
    lines = []
    if failed or done.is_stopped:
        lines.append(f"interrupted after {done.read} of {done.offsets} records of the dead-letter topic")
    if done.is_limited:
        lines.append("the limit is reached: what follows can be put back later")
    for count, words in (
        (done.already_replayed, "put back before: --again would repeat them"),
        (done.duplicates, "there twice: taken once"),
        (done.unselected, "not chosen: they can be put back later"),
        *((count, f"left where they are: {why}") for why, count in done.not_replayable.most_common()),
        (done.unacknowledged, "sent and not acknowledged: they may have arrived, and the next replay puts them back again"),
        (done.unrecorded, "put back and not remembered: the next replay puts them back again"),
    ):
        if count:
            lines.append(f"{count} {words}")
    reasons = ", ".join(f"{reason} {count}" for reason, count in done.rejected.most_common())
    again = f"{done.rejected.total()}{{}} refused again" + (f" ({reasons})" if reasons else "")
    if dry_run:
        return [*lines, f"dry run: {done.replayed} would pass now, " + again.format(" would be")]
    return [*lines, f"{done.replayed} put back, " + again.format("")]


ATTEMPTS: Final = 3
RECEIPT_EVENTS: Final = 100
"""Most events that one receipt names: it has 2.5 kB then, which any topic takes."""


class ReplayFilter:
    """Which letters go back (pure, but for a user's functions)."""

    def __init__(self, destination: Destination, selection: Selection, partitions: int, before: Iterable[str]) -> None:
        """Nothing is chosen yet.

        Args:
            destination: Where they go.
            selection: Letters that are wanted.
            partitions: Number of partitions that it has.
            before: Digests of what was put back earlier.
        """
        self._destination = destination
        self._selection = selection
        self._partitions = partitions
        self._before = frozenset(before)
        self._taken: set[str] = set()

    def selects(self, dead_letter: ListedDeadLetter, done: ReplayProgress) -> bool:
        """Whether a letter goes back; if not, the reason is counted in ``done``."""
        if dead_letter.is_late or not self._selection.concerns(dead_letter):
            return False
        digest = dead_letter.digest()
        if not self._selection.matches(dead_letter):
            done.unselected += digest not in self._before
        elif digest in self._before:
            done.already_replayed += 1
        elif digest in self._taken:
            done.duplicates += 1
        else:
            self._taken.add(digest)
            return self._passes(dead_letter, done)
        return False

    def _passes(self, dead_letter: ListedDeadLetter, done: ReplayProgress) -> bool:
        if why := self._destination.obstacle(dead_letter, self._partitions):
            done.not_replayable[why] += 1
            return False
        refused = self._destination.refusals(dead_letter)
        done.rejected.update(refused)
        return not refused


class DeadLetterReplay:
    """One replay of the dead letters of a fold or a subscriber.

    Attributes:
        done: What it has done so far.
        on_page: Called with :attr:`done` after each page.
    """

    def __init__(
        self,
        settings: Settings,
        destination: Destination,
        selection: Selection,
        clock: Clock,
        *,
        limit: int | None = None,
        again: bool = False,
        dry_run: bool = False,
    ) -> None:
        """Nothing is read yet.

        Args:
            settings: Settings of the application.
            destination: Where letters are put back.
            selection: Letters that are wanted.
            clock: Says to whoever has to wait since when this one runs.
            limit: Number of letters put back at most; None: no limit.
            again: Whether what was put back before is put back once more.
            dry_run: Whether letters are only counted.
        """
        self.done = ReplayProgress()
        self._settings = settings
        self._destination = destination
        self._selection = selection
        self._clock = clock
        self._limit = limit
        self._again = again
        self._dry_run = dry_run
        self.on_page: Callable[[ReplayProgress], None] = lambda _: None
        self._producer = AckedProducer(settings.kafka, client_id=f"{settings.app_id}-replay")

    def stop(self) -> None:
        """Ends it after the page under way, so that all of it is remembered."""
        self.done.is_stopped = True

    async def run(self) -> None:
        """Puts letters back up to the end the topic has now; waits for the acknowledgement of each page.

        Raises:
            TryAgainError: Kafka or Redis does not answer, or another replay is under way; :attr:`done` says how far it came.
            ConfigurationError: The dead-letter topic or the source does not exist.
        """
        if self._dry_run:
            await self._replay(None)
            return
        async with replay_lease(self._settings, self._destination.address, self._clock) as lease:
            try:
                await self._replay(lease)
            finally:
                await self._producer.stop()  # before the lease is let go: nothing of this replay arrives after that

    async def _replay(self, lease: ReplayLease | None) -> None:
        to = self._destination
        async with dead_letter_topic(self._settings, to.dead_letters, to.topic) as topic:
            if not topic.source_partitions:
                raise ConfigurationError([f"the topic {to.topic!r} does not exist: nothing can be put back into it"])
            self.done.is_begun, self.done.offsets = True, topic.offsets
            before = await self._receipts(topic)
            replay_filter = ReplayFilter(to, self._selection, topic.source_partitions, () if self._again else before)
            async for page in topic.pages():
                if self._is_over():
                    return
                await self._replay_page(replay_filter, page, lease)
                self.done.read += len(page)
                self.on_page(self.done)
            self.done.read = topic.offsets

    def _is_over(self) -> bool:
        self.done.is_limited = self._limit is not None and self.done.replayed >= self._limit
        return self.done.is_limited or self.done.is_stopped

    async def _receipts(self, topic: DeadLetterTopic) -> set[str]:
        """Digests of the events that were put back before. Receipts are read first of all, as they lie behind the letters.

        The destination looks at all letters meanwhile: one may say something of another.
        """
        found: set[str] = set()
        async for page in topic.pages():
            if self.done.is_stopped:
                break
            self.done.searched += len(page)
            self.on_page(self.done)
            for record in page:
                if receipt := record.receipt(self._destination.address.decode()):
                    found.update(receipt)
                elif self._selection.concerns(record):
                    self._destination.observe(record)
        return found

    async def _replay_page(self, replay_filter: ReplayFilter, page: list[ListedDeadLetter], lease: ReplayLease | None) -> None:
        waiting = deque(page)
        while waiting and not self._is_over():
            room = len(waiting) if self._limit is None else self._limit - self.done.replayed
            chosen: list[ListedDeadLetter] = []
            while waiting and len(chosen) < room:
                dead_letter = waiting.popleft()
                if replay_filter.selects(dead_letter, self.done):
                    chosen.append(dead_letter)
            if lease is None:
                self.done.replayed += len(chosen)
            elif chosen:
                await lease.require()
                await self._replay_events(chosen)

    async def _replay_events(self, dead_letters: list[ListedDeadLetter]) -> None:
        """Sends events and then their receipt; an error of either ends the replay."""
        self.done.unacknowledged += len(dead_letters)  # until their fate is known; it stays so where this is cancelled
        gone, failed = await self._send(dead_letters)
        self.done.unacknowledged -= len(dead_letters) - len(failed)
        self.done.replayed += len(gone)
        await self._remember(gone)
        if failed:
            raise TryAgainError(f"{self._destination.topic} does not acknowledge events: {failed[0]!r}") from failed[0]

    async def _send(self, dead_letters: list[ListedDeadLetter]) -> tuple[list[ListedDeadLetter], list[BaseException]]:
        """Sends events; returns those that were acknowledged, and an error for each whose fate is not known."""
        gone: list[ListedDeadLetter] = []
        failed: list[BaseException] = []
        for _ in range(ATTEMPTS):
            waiting, dead_letters = dead_letters, []
            outcomes = await self._producer.send([self._destination.event(dead_letter) for dead_letter in waiting])
            for dead_letter, outcome in zip(waiting, outcomes, strict=True):
                if outcome is None:
                    gone.append(dead_letter)
                elif isinstance(outcome, TOO_LARGE):
                    self.done.not_replayable[f"{self._destination.topic} does not take records of its size any more"] += 1
                elif isinstance(outcome, OutOfOrderSequenceNumber):
                    dead_letters.append(
                        dead_letter
                    )  # not appended: a record before it was too large, and its sequence number is missing
                else:
                    failed.append(outcome)
            if not dead_letters or failed:
                break
        return gone, failed + [TryAgainError(f"refused {ATTEMPTS} times")] * len(dead_letters)

    async def _remember(self, dead_letters: list[ListedDeadLetter]) -> None:
        to = self._destination
        by_partition: dict[int, list[str]] = defaultdict(list)
        for dead_letter in dead_letters:
            by_partition[dead_letter.partition].append(dead_letter.digest())
        receipts = [
            Outgoing(to.dead_letters, None, "\n".join(part).encode(), [(RECEIPT_HEADER, to.address)], partition=place)
            for place, digests in by_partition.items()
            for part in (digests[at : at + RECEIPT_EVENTS] for at in range(0, len(digests), RECEIPT_EVENTS))
        ]
        if receipts:
            self.done.unrecorded += len(dead_letters)
            failed = next((outcome for outcome in await self._producer.send(receipts) if outcome is not None), None)
            if failed is not None:
                raise TryAgainError(f"{to.dead_letters} does not acknowledge what was put back: {failed!r}") from failed
            self.done.unrecorded -= len(dead_letters)
