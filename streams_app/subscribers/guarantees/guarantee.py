"""What differs between the delivery guarantees of subscribers, as one interface that the processor of a partition calls."""

from __future__ import annotations

from asyncio import Task
from collections.abc import Collection, Coroutine, Iterable, Sequence
from typing import Any, Final, NamedTuple, Protocol

from streams_app.delivery.batch import Batch
from streams_app.delivery.processor import Claim, OffsetAndMetadata
from streams_app.subscribers.execution.decoding import DecodedRecord
from streams_app.subscribers.execution.executor import Attempt
from streams_app.subscribers.execution.in_flight_event import DeadLettering, InFlightEvent
from streams_app.subscribers.execution.queues import StartQueue, StartRequest
from streams_app.subscribers.guarantees.restored_position import RestoredPosition
from streams_app.subscribers.state.store import AttemptEntry

ANOTHER_OWNER: Final = "token"
"""Cause of a :class:`.FencedError`: another process has claimed the partition."""

CLOSE_SECONDS: Final = 1.0
"""Each step of :meth:`Guarantee.close` that waits for a server takes at most this long."""


class GuaranteeLog(Protocol):
    """Records in Redis what has become of events. Its methods return at once; a task of the guarantee writes."""

    def keep(self, offset: int, entry: AttemptEntry) -> None:
        """Record an event that waits for its next attempt."""

    def drop(self, offsets: Iterable[int]) -> None:
        """Remove events that are finished."""

    def waits_for(self) -> str | None:
        """Return the `waiting_for` label of an outage since the last call; None if there was none."""


class TakenOver(NamedTuple):
    """What a guarantee found of the events of former owners.

    Attributes:
        begin: First offset to read.
        entries: Offset → what is known of an event that was begun or waits for its next attempt.
        interrupted: Offsets of events whose attempt was interrupted, and which must not run again.
        tasks: Coroutines that run until the claim ends, by what they do.
    """

    begin: int
    entries: dict[int, AttemptEntry]
    interrupted: Collection[int]
    tasks: dict[str, Coroutine[Any, Any, None]]


class Guarantee(Protocol):
    """Keeps what one subscriber promises for the events of one partition, under one claim.

    The processor of the partition owns the events: it decodes, retries, dead-letters and finishes them. The guarantee decides when
    an event may start, writes down what must outlive the process, and says what becomes of attempts that were cut off. Everything
    is called on the event loop of the worker.

    Attributes:
        is_repeatable: Whether an event may run again although the effect of its last attempt is unknown.
        requires_commit: Whether a partition without a commit cannot be claimed.
        log: Records what has become of events; it exists from :meth:`take_over` on.
    """

    is_repeatable: bool
    requires_commit: bool = False

    @property
    def log(self) -> GuaranteeLog:
        """Return the log."""

    async def take_over(self, claim: Claim, restored: RestoredPosition) -> TakenOver:
        """Take over what Redis knows from former owners.

        Raises:
            FencedError: Another owner intervened.
            ImpossibleClaimError: An operator has to say where the subscriber begins.
            KafkaError, RedisError, OSError, TimeoutError: The claim is tried again.
        """

    def dead_letter_of(self, event: InFlightEvent) -> DeadLettering | None:
        """Return the dead letter of an event that must not start, because an earlier attempt was interrupted; None for others."""
        return None

    def may_start(self, queue: StartQueue, request: StartRequest) -> list[InFlightEvent]:
        """Take the events from the queue that may start now; none if the next one has to wait."""
        return queue.take(request)

    def before_start(self, decoded: Sequence[tuple[InFlightEvent, DecodedRecord]]) -> list[Attempt]:
        """Make the attempts of events that :meth:`may_start` returned.

        Returns:
            Attempts; one with ``is_unrecorded`` starts later, when its start is recorded.
        """

    def after_end(self, attempts: Sequence[Attempt]) -> None:
        """Record the outcomes of attempts, before their events are finished, retried or dead-lettered."""

    def on_interruption(self, event: InFlightEvent, attempt: Attempt) -> bool:
        """Decide about an attempt that was cancelled, before or after it started.

        Returns:
            Whether the event starts again, as if this attempt had not been made.
        """

    def position_to_commit(self) -> OffsetAndMetadata:
        """Return the low watermark, with metadata about what is finished above it."""

    def waits_for(self) -> str | None:
        """Return the `waiting_for` label of what has kept events waiting since the last call; None for nothing."""
        return self.log.waits_for()

    def stop(self) -> None:
        """Start no more attempts; withdraw those whose start is not recorded yet."""

    async def close(self, tasks: Collection[Task[None]]) -> None:
        """End the tasks, then record what is left to record, if the servers answer in time.

        Called after :meth:`stop`, when all attempts have ended or were cancelled.
        """

    @property
    def backlog(self) -> int:
        """Number of unrecorded entries that pause the reader; 0 if there are few."""
        return 0

    def on_read(self, batch: Batch) -> None:
        """Learn from a batch before its events arrive."""

    def on_tick(self) -> None:
        """Run timers, every ``worker.tick``."""

    def on_commit(self, position: OffsetAndMetadata) -> None:
        """Record the position that is about to be committed."""

    async def on_commit_rejected(self) -> None:
        """Handle that Kafka rejected the last commit, after :meth:`close`."""
