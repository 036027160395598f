"""Port through which the processor of a partition calls its delivery guarantee, with the types that they exchange."""

from __future__ import annotations

from asyncio import Task
from collections.abc import Collection, Coroutine, Sequence
from typing import Any, Final, NamedTuple, Protocol

from streams_app.delivery.batch import Batch
from streams_app.delivery.claim import Claim
from streams_app.delivery.offset_metadata import OffsetAndMetadata
from streams_app.subscribers.execution.decoding import DecodedRecord
from streams_app.subscribers.execution.executor import Attempt
from streams_app.subscribers.execution.in_flight_event import InFlightEvent
from streams_app.subscribers.execution.queues import StartQueue, StartRequest
from streams_app.subscribers.execution.retry_decision import DeadLettering
from streams_app.subscribers.guarantees.restored_position import RestoredPosition
from streams_app.subscribers.state.store import AttemptEntry

ANOTHER_OWNER: Final = "token"
"""Cause of a :class:`.FencedError`: another process has claimed the partition."""

CLOSE_SECONDS: Final = 1.0
"""Maximum duration of each step of :meth:`Guarantee.close` that waits for a server."""


class Takeover(NamedTuple):
    """Events that a guarantee has taken over from former owners.

    Attributes:
        begin: First offset to read.
        entries: Stored state of each event that had begun or waits for its next attempt, by offset.
        interrupted: Offsets of events whose attempt was interrupted, and which must not run a second time.
        tasks: Coroutines that have to run until the claim ends, by name.
    """

    begin: int
    entries: dict[int, AttemptEntry]
    interrupted: Collection[int]
    tasks: dict[str, Coroutine[Any, Any, None]]


class Guarantee(Protocol):
    """Port to the delivery guarantee of the events of one partition, under one claim.

    The processor of the partition owns the events: it decodes, retries, dead-letters and finishes them. The guarantee decides when
    an event may start, stores the state that must outlive the process, and decides about interrupted attempts. Its writes to Redis
    are performed by the tasks of :class:`Takeover`; other methods only schedule them. All methods are called on the event loop of
    the worker.
    """

    async def take_over(self, claim: Claim, restored: RestoredPosition) -> Takeover:
        """Read the state of former owners from Redis, and continue it under this claim.

        Raises:
            FencedError: Another owner has claimed the partition.
            ImpossibleClaimError: An operator has to act, for example to set the offsets of the subscriber.
            KafkaError, RedisError, OSError, TimeoutError: A server does not answer; the caller repeats the claim.
        """

    def on_batch(self, batch: Batch) -> None:
        """If the guarantee stores event ids, record those of a batch that Redis has lost; called before its events are queued."""

    def dead_letter_of(self, event: InFlightEvent) -> DeadLettering | None:
        """Return a dead letter for an event that must not start because earlier attempts were interrupted; None for others."""

    def may_start(self, queue: StartQueue, request: StartRequest) -> list[InFlightEvent]:
        """Remove from the queue the events that may start now, and return them; none if the next one has to wait."""

    def before_start(self, decoded: Sequence[tuple[InFlightEvent, DecodedRecord]]) -> list[Attempt]:
        """Create an attempt for each event that :meth:`may_start` returned.

        The caller starts them at once, except those with ``is_unrecorded``: the guarantee starts these when they are recorded as
        begun.
        """

    def after_end(self, attempts: Sequence[Attempt]) -> None:
        """Record the outcomes of attempts, before their events are finished, retried or dead-lettered."""

    def on_interruption(self, event: InFlightEvent, attempt: Attempt) -> bool:
        """Return whether an event may start again after its attempt was cancelled; if so, that attempt does not count.

        The function may already have been called.
        """

    def put_off(self, event: InFlightEvent) -> None:
        """Record that an event waits for its next attempt, and no longer counts as begun."""

    def finish(self, offsets: Sequence[int]) -> None:
        """Mark events as finished, and remove their entries from Redis."""

    def position_to_commit(self) -> OffsetAndMetadata:
        """Return the low watermark, with the finished offsets above it as metadata; called before each commit."""

    def on_tick(self) -> None:
        """Record the low watermark if it has risen; called at the interval ``worker.tick``."""

    def sample_wait(self) -> str | None:
        """Return why attempts or their writes had to wait since the previous call; None if nothing has waited.

        The result is a label of the metric ``streams_app_waiting_for``.
        """

    def stop(self) -> None:
        """Start none of the attempts that wait until they are recorded as begun, and cancel them."""

    async def close(self, tasks: Collection[Task[None]]) -> None:
        """Cancel ``tasks``, those of :class:`Takeover`; then write what is not written yet, if the servers answer in time.

        Called after :meth:`stop`, when all attempts have ended or were cancelled.
        """

    async def on_commit_rejected(self) -> None:
        """Send dead letters for events that succeeded but will count as interrupted, because Kafka has rejected the last commit.

        Called after :meth:`close`.
        """
