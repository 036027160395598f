"""Dead letters put back after a fix, for the fold or the subscriber that refused them and no other.

Where they go, and which can, is said by a :class:`.destinations.Destination`. What was put back is remembered in the dead-letter
topic itself: each page is followed by a receipt, a record without ``reason`` whose header ``streams-app-put-back`` names the
application and the fold, or the subscriber, and whose value has a digest of each event, one a line. A receipt lies behind its
letters, in their own partition, so that retention removes it after them. A committed offset would not do: it can only say "up to
here", and a broker forgets it after a week without a member. A replay that is killed between the acknowledgement of a page and that
of its receipt puts this page back again the next time: worse to lose an event than to handle it twice. Of two replays at the same
time neither would see the receipts of the other, so there is one at a time, see :mod:`.replay_lease`.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable, Iterable
from typing import Final

from aiokafka.errors import OutOfOrderSequenceNumber

from streams_app.clock import Clock
from streams_app.delivery.outgoing import TOO_LARGE, Outgoing
from streams_app.errors import ConfigurationError, TryAgainError
from streams_app.kafka.producer import AckedProducer
from streams_app.operations.dead_letters import LetterTopic, letter_topic
from streams_app.operations.destinations import Destination
from streams_app.operations.letters import RECEIPT_HEADER, ListedDeadLetter, Selection
from streams_app.operations.replay_lease import ReplayLease, replay_lease
from streams_app.operations.replayed import Replayed
from streams_app.settings import Settings

ATTEMPTS: Final = 3
RECEIPT_EVENTS: Final = 100
"""Most events that one receipt names: it has 2.5 kB then, which any topic takes."""


class Choice:
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

    def takes(self, letter: ListedDeadLetter, done: Replayed) -> bool:
        """Whether a letter goes back; if not, the reason is counted in ``done``."""
        if letter.is_late or not self._selection.concerns(letter):
            return False
        digest = letter.digest()
        if not self._selection.takes(letter):
            done.unselected += digest not in self._before
        elif digest in self._before:
            done.before += 1
        elif digest in self._taken:
            done.twice += 1
        else:
            self._taken.add(digest)
            return self._passes(letter, done)
        return False

    def _passes(self, letter: ListedDeadLetter, done: Replayed) -> bool:
        if why := self._destination.obstacle(letter, self._partitions):
            done.left[why] += 1
            return False
        refused = self._destination.refusals(letter)
        done.refused.update(refused)
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
        self.done = Replayed()
        self._settings = settings
        self._destination = destination
        self._selection = selection
        self._clock = clock
        self._limit = limit
        self._again = again
        self._dry_run = dry_run
        self.on_page: Callable[[Replayed], None] = lambda _: None
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
        async with letter_topic(self._settings, to.letters, to.topic) as topic:
            if not topic.source_partitions:
                raise ConfigurationError([f"the topic {to.topic!r} does not exist: nothing can be put back into it"])
            self.done.is_begun, self.done.offsets = True, topic.offsets
            before = await self._receipts(topic)
            choice = Choice(to, self._selection, topic.source_partitions, () if self._again else before)
            async for page in topic.pages():
                if self._is_over():
                    return
                await self._replay_page(choice, page, lease)
                self.done.read += len(page)
                self.on_page(self.done)
            self.done.read = topic.offsets

    def _is_over(self) -> bool:
        self.done.is_limited = self._limit is not None and self.done.put_back >= self._limit
        return self.done.is_limited or self.done.is_stopped

    async def _receipts(self, topic: LetterTopic) -> set[str]:
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
                    self._destination.look(record)
        return found

    async def _replay_page(self, choice: Choice, page: list[ListedDeadLetter], lease: ReplayLease | None) -> None:
        waiting = deque(page)
        while waiting and not self._is_over():
            room = len(waiting) if self._limit is None else self._limit - self.done.put_back
            chosen: list[ListedDeadLetter] = []
            while waiting and len(chosen) < room:
                letter = waiting.popleft()
                if choice.takes(letter, self.done):
                    chosen.append(letter)
            if lease is None:
                self.done.put_back += len(chosen)
            elif chosen:
                await lease.require()
                await self._put_back(chosen)

    async def _put_back(self, letters: list[ListedDeadLetter]) -> None:
        """Sends events and then their receipt; an error of either ends the replay."""
        self.done.unknown += len(letters)  # until their fate is known; it stays so where this is cancelled
        gone, failed = await self._send(letters)
        self.done.unknown -= len(letters) - len(failed)
        self.done.put_back += len(gone)
        await self._remember(gone)
        if failed:
            raise TryAgainError(f"{self._destination.topic} does not acknowledge events: {failed[0]!r}") from failed[0]

    async def _send(self, letters: list[ListedDeadLetter]) -> tuple[list[ListedDeadLetter], list[BaseException]]:
        """Sends events; returns those that were acknowledged, and an error for each whose fate is not known."""
        gone: list[ListedDeadLetter] = []
        failed: list[BaseException] = []
        for _ in range(ATTEMPTS):
            waiting, letters = letters, []
            outcomes = await self._producer.send([self._destination.event(letter) for letter in waiting])
            for letter, outcome in zip(waiting, outcomes, strict=True):
                if outcome is None:
                    gone.append(letter)
                elif isinstance(outcome, TOO_LARGE):
                    self.done.left[f"{self._destination.topic} does not take records of its size any more"] += 1
                elif isinstance(outcome, OutOfOrderSequenceNumber):
                    letters.append(letter)  # not appended: a record before it was too large, and its sequence number is missing
                else:
                    failed.append(outcome)
            if not letters or failed:
                break
        return gone, failed + [TryAgainError(f"refused {ATTEMPTS} times")] * len(letters)

    async def _remember(self, letters: list[ListedDeadLetter]) -> None:
        to = self._destination
        by_partition: dict[int, list[str]] = defaultdict(list)
        for letter in letters:
            by_partition[letter.partition].append(letter.digest())
        receipts = [
            Outgoing(to.letters, None, "\n".join(part).encode(), [(RECEIPT_HEADER, to.address)], partition=place)
            for place, digests in by_partition.items()
            for part in (digests[at : at + RECEIPT_EVENTS] for at in range(0, len(digests), RECEIPT_EVENTS))
        ]
        if receipts:
            self.done.forgotten += len(letters)
            failed = next((outcome for outcome in await self._producer.send(receipts) if outcome is not None), None)
            if failed is not None:
                raise TryAgainError(f"{to.letters} does not acknowledge what was put back: {failed!r}") from failed
            self.done.forgotten -= len(letters)
