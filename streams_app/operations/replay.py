"""Replays the dead letters of one fold or subscriber after a fix.

A :class:`.replay_destinations.Destination` decides which dead letters can be replayed, and where they go. Only the component that
rejected an event receives it again.

Receipts record what was replayed. After each batch the replay appends receipts to the dead-letter topic. A receipt is a record
without the header ``reason``. Its header ``streams-app-put-back`` names the application and the fold or subscriber, and its value
has a digest of each replayed event, one per line. A receipt follows its dead letters in their partition, so retention removes it
after them. A committed offset could not replace receipts: a replay may skip dead letters that a later one sends, and the broker
deletes the offset of a group that had no member for a week.

If a replay is killed after a batch was acknowledged, but before its receipts were, the next replay sends the batch again, because a
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
from streams_app.delivery.producer import TOO_LARGE, OutgoingRecord
from streams_app.errors import ConfigurationError, TryAgainError
from streams_app.kafka.producer import AckedProducer
from streams_app.operations.dead_letter import RECEIPT_HEADER, DeadLetterSelection, ListedDeadLetter
from streams_app.operations.dead_letters import DeadLetterTopic, dead_letter_topic
from streams_app.operations.replay_destinations import Destination
from streams_app.operations.replay_lease import ReplayLease, replay_lease
from streams_app.reasons import Reason
from streams_app.settings import Settings


@dataclass(slots=True)
class ReplayProgress:
    """Progress of a replay; in a dry run, what the replay would do.

    A *receipt* is a record in the dead-letter topic that lists replayed events, so that a later replay does not send them again.

    Attributes:
        offsets: Number of offsets in the dead-letter topic, including those without a record.
        searched: Number of records that were read in the first pass over the topic, which searches for receipts; 0 in the replay
            of a read store, which has no such pass.
        read: Number of records that were read in the pass that replays the dead letters.
        replayed: Number of events that were replayed; in a dry run, of those that would be replayed.
        rejected: Number of events that the present definition would reject again, by reason.
        not_replayable: Number of events that cannot be replayed, by the cause as text.
        already_replayed: Number of selected events that an earlier replay has sent.
        duplicates: Number of dead letters that were skipped, because another dead letter has the same event.
        unselected: Number of dead letters that were not selected and whose event was not replayed before. In the replay of a read
            store, some dead letters beyond the limit are counted, too.
        unacknowledged: Number of events that were sent without an acknowledgement, so that they may have arrived.
        unrecorded: Number of events that were replayed without an acknowledged receipt.
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
    """Describe the result of a replay for an operator. The last line has the numbers of replayed and rejected events."""
    lines = []
    if failed or done.is_stopped:
        lines.append(f"interrupted after {done.read} of {done.offsets} records of the dead-letter topic")
    if done.is_limited:
        lines.append("the limit is reached: the rest can be replayed later")
    for count, words in (
        (done.already_replayed, "replayed before: --again would repeat them"),
        (done.duplicates, "duplicates: replayed once"),
        (done.unselected, "not selected: they can be replayed later"),
        *((count, f"not replayed: {why}") for why, count in done.not_replayable.most_common()),
        (done.unacknowledged, "sent and not acknowledged: they may have arrived, and the next replay sends them again"),
        (done.unrecorded, "replayed and not recorded: the next replay sends them again"),
    ):
        if count:
            lines.append(f"{count} {words}")
    reasons = ", ".join(f"{reason} {count}" for reason, count in done.rejected.most_common())
    again = f"{done.rejected.total()}{{}} rejected again" + (f" ({reasons})" if reasons else "")
    if dry_run:
        return [*lines, f"dry run: {done.replayed} would pass now, " + again.format(" would be")]
    return [*lines, f"{done.replayed} replayed, " + again.format("")]


ATTEMPTS: Final = 3
RECEIPT_EVENTS: Final = 100
"""Maximum number of events in one receipt, which then has 2.5 kB, less than the record limit of any topic."""


class ReplayFilter:
    """Decides which dead letters are replayed. It is pure, except that it calls functions of the application."""

    def __init__(self, destination: Destination, selection: DeadLetterSelection, partitions: int, before: Iterable[str]) -> None:
        """``partitions`` is the partition count of the destination; ``before`` are digests of events not to be replayed again."""
        self._destination = destination
        self._selection = selection
        self._partitions = partitions
        self._before = frozenset(before)
        self._taken: set[str] = set()

    def selects(self, dead_letter: ListedDeadLetter, done: ReplayProgress) -> bool:
        """Return whether a dead letter is replayed. If not, count the cause in ``done``.

        Dead letters of other components, and dead letters that only report a late finish, are not counted.
        """
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
        rejected = self._destination.rejections(dead_letter)
        done.rejected.update(rejected)
        return not rejected


class DeadLetterReplay:
    """Sends the dead letters of one fold or subscriber back to it, and records that in receipts.

    ``on_batch`` is called with :attr:`done` after each batch.
    """

    def __init__(
        self,
        settings: Settings,
        destination: Destination,
        selection: DeadLetterSelection,
        clock: Clock,
        *,
        limit: int | None = None,
        again: bool = False,
        dry_run: bool = False,
    ) -> None:
        """Prepare a replay; :meth:`run` starts it.

        Args:
            limit: Maximum number of replayed events; None: no limit.
            again: Whether to repeat events that were replayed before.
            dry_run: Whether to count only and send nothing.
        """
        self.done = ReplayProgress()
        self._settings = settings
        self._destination = destination
        self._selection = selection
        self._clock = clock
        self._limit = limit
        self._repeats = again
        self._dry_run = dry_run
        self.on_batch: Callable[[ReplayProgress], None] = lambda _: None
        self._producer = AckedProducer(settings.kafka, client_id=f"{settings.app_id}-replay")

    def stop(self) -> None:
        """Make :meth:`run` return after the batch in progress, whose receipts are still written."""
        self.done.is_stopped = True

    async def run(self) -> None:
        """Replay the dead letters up to the current end of the topic. Each batch is acknowledged before the next one is sent.

        Raises:
            TryAgainError: Kafka or Redis does not answer, or another replay is in progress; :attr:`done` has the progress so far.
        """
        if self._dry_run:
            await self._replay(None)
            return
        async with replay_lease(self._settings, self._destination.address, self._clock) as lease:
            try:
                await self._replay(lease)
            finally:
                await self._producer.stop()  # before the lease is released, so that no event of this replay arrives later

    async def _replay(self, lease: ReplayLease | None) -> None:
        to = self._destination
        async with dead_letter_topic(self._settings, to.dead_letters, to.topic) as topic:
            if not topic.source_partitions:
                raise ConfigurationError([f"the topic {to.topic!r} does not exist: nothing can be replayed into it"])
            self.done.is_begun, self.done.offsets = True, topic.offsets
            before = await self._receipts(topic)
            replay_filter = ReplayFilter(to, self._selection, topic.source_partitions, () if self._repeats else before)
            async for batch in topic.batches():
                if self._is_over():
                    return
                await self._replay_batch(replay_filter, batch, lease)
                self.done.read += len(batch)
                self.on_batch(self.done)
            self.done.read = topic.offsets

    def _is_over(self) -> bool:
        self.done.is_limited = self._limit is not None and self.done.replayed >= self._limit
        return self.done.is_limited or self.done.is_stopped

    async def _receipts(self, topic: DeadLetterTopic) -> set[str]:
        """Read the whole dead-letter topic, and return the digests of the events that earlier replays have sent.

        A replay writes a receipt after the dead letters of the events that it has sent. So all receipts must be read before the
        first event is chosen. This pass also gives each dead letter of the component to :meth:`.Destination.observe`: a dead letter
        ``finished-late`` may come after that of the interrupted event whose late finish it reports.
        """
        found: set[str] = set()
        async for batch in topic.batches():
            if self.done.is_stopped:
                break
            self.done.searched += len(batch)
            self.on_batch(self.done)
            for record in batch:
                if receipt := record.receipt(self._destination.address.decode()):
                    found.update(receipt)
                elif self._selection.concerns(record):
                    self._destination.observe(record)
        return found

    async def _replay_batch(self, replay_filter: ReplayFilter, batch: list[ListedDeadLetter], lease: ReplayLease | None) -> None:
        waiting = deque(batch)
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
        """Send events, then the receipts of acknowledged events. Raise an error if an event or a receipt is not acknowledged."""
        self.done.unacknowledged += len(dead_letters)  # counted until they are acknowledged, also if this call is cancelled
        gone, failed = await self._send(dead_letters)
        self.done.unacknowledged -= len(dead_letters) - len(failed)
        self.done.replayed += len(gone)
        await self._write_receipts(gone)
        if failed:
            raise TryAgainError(f"{self._destination.topic} does not acknowledge events: {failed[0]!r}") from failed[0]

    async def _send(self, dead_letters: list[ListedDeadLetter]) -> tuple[list[ListedDeadLetter], list[BaseException]]:
        """Send events; return the acknowledged ones, and the errors of those that may have arrived.

        Events that are too large for the topic are counted as not replayable.
        """
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
        return gone, failed + [TryAgainError(f"rejected {ATTEMPTS} times")] * len(dead_letters)

    async def _write_receipts(self, dead_letters: list[ListedDeadLetter]) -> None:
        to = self._destination
        by_partition: dict[int, list[str]] = defaultdict(list)
        for dead_letter in dead_letters:
            by_partition[dead_letter.partition].append(dead_letter.digest())
        receipts = [
            OutgoingRecord(to.dead_letters, None, "\n".join(part).encode(), [(RECEIPT_HEADER, to.address)], partition=partition)
            for partition, digests in by_partition.items()
            for part in (digests[at : at + RECEIPT_EVENTS] for at in range(0, len(digests), RECEIPT_EVENTS))
        ]
        if receipts:
            self.done.unrecorded += len(dead_letters)
            failed = next((outcome for outcome in await self._producer.send(receipts) if outcome is not None), None)
            if failed is not None:
                raise TryAgainError(f"{to.dead_letters} does not acknowledge the receipts: {failed!r}") from failed
            self.done.unrecorded -= len(dead_letters)
