"""Deduplicated (``idempotent="unknown"``): no event id runs twice unless Redis loses data.

Before an event starts, it is recorded as begun in Redis.
"""

from __future__ import annotations

from asyncio import Task
from collections.abc import Collection, Sequence

from streams_app.delivery.claim import Claim
from streams_app.delivery.offset_metadata import OffsetAndMetadata
from streams_app.subscribers.execution.decoding import DecodedRecord
from streams_app.subscribers.execution.executor import Attempt
from streams_app.subscribers.execution.in_flight_event import InFlightEvent
from streams_app.subscribers.execution.partition import SubscriberPartition
from streams_app.subscribers.execution.queues import StartQueue, StartRequest
from streams_app.subscribers.execution.retry_decision import DeadLettering
from streams_app.subscribers.guarantees.begin_log import BeginLog
from streams_app.subscribers.guarantees.guarantee import Guarantee, Takeover
from streams_app.subscribers.guarantees.restored_position import RestoredPosition
from streams_app.subscribers.guarantees.write_ahead import WriteAhead
from streams_app.subscribers.state.offset_metadata import fitted
from streams_app.subscribers.state.offset_tracker import OffsetsAbove


class DeduplicatedGuarantee(Guarantee):
    """Delivery guarantee that runs each event id once, unless Redis loses data."""

    def __init__(self, partition: SubscriberPartition) -> None:
        self._partition = partition
        self._write_ahead = WriteAhead(partition, self.position_to_commit, self._on_begun)

    @property
    def log(self) -> BeginLog:
        """Write-ahead log of this claim, which records in Redis that an attempt begins before it starts."""
        return self._write_ahead.log

    async def take_over(self, claim: Claim, restored: RestoredPosition) -> Takeover:
        """Take over the events of former owners. Those that are recorded as begun in Redis count as interrupted."""
        watermark = self._partition.tracker.end
        kept = await self._write_ahead.claim(claim, restored, trusts_redis=True)
        interrupted = {offset for offset, entry in kept.open.items() if entry.is_begun}
        begin = await self._write_ahead.begin(claim, kept, watermark, interrupted)
        return Takeover(begin, kept.open, interrupted, {"begin log": self.log.forever()})

    def dead_letter_of(self, event: InFlightEvent) -> DeadLettering | None:
        """Return a dead letter for an event whose attempt was interrupted, so that its effect is unknown; None for other events."""
        return self._write_ahead.dead_letter_of(event)

    def may_start(self, queue: StartQueue, request: StartRequest) -> list[InFlightEvent]:
        """Take the next events."""
        return queue.take(request)

    def before_start(self, decoded: Sequence[tuple[InFlightEvent, DecodedRecord]]) -> list[Attempt]:
        """Create attempts, and schedule a write to Redis that records their events as begun; the attempts start afterwards."""
        return self._write_ahead.before_start(decoded)

    async def _on_begun(self, attempts: Sequence[Attempt]) -> Sequence[Attempt]:
        return attempts

    def after_end(self, attempts: Sequence[Attempt]) -> None:
        """Count duplicates. Remember each event that has succeeded until its outcome is written."""
        self._write_ahead.after_end(attempts)

    def on_interruption(self, event: InFlightEvent, attempt: Attempt) -> bool:
        """Decide whether an event may start again after its attempt was cancelled: only if the function was not called yet."""
        return self._write_ahead.on_interruption(event, attempt)

    def position_to_commit(self) -> OffsetAndMetadata:
        """Return the low watermark, with as many finished offsets above it as fit into the metadata."""
        partition = self._partition
        low = partition.tracker.low
        return partition.position(low, fitted(low, partition.offset_metadata(OffsetsAbove(partition.tracker.above().finished))))

    def stop(self) -> None:
        """Withdraw the attempts that are not recorded as begun."""
        self.log.stop()

    async def close(self, tasks: Collection[Task[None]]) -> None:
        """Write the last outcomes.

        If another owner has claimed the partition, send a dead letter ``finished-late`` instead for each event that has succeeded,
        because that owner treats these events as interrupted.
        """
        await self._write_ahead.close(tasks)

    async def on_commit_rejected(self) -> None:
        """Do nothing: the next owner reads in Redis which events have succeeded."""
