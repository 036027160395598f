"""At most once (``idempotent="no"``): no record runs twice, even if Redis loses all data.

Before an event starts, it is recorded as begun in Redis, and then in Kafka, in the metadata of a commit. The next owner reads there
which events have begun. A worker whose partition was revoked cannot start any event, because Kafka rejects its commit.
"""

from __future__ import annotations

from asyncio import Task
from collections.abc import Collection, Sequence
from typing import Final

from streams_app.delivery.claim import Claim
from streams_app.delivery.group_consumer import NotOwnerError
from streams_app.delivery.offset_metadata import OffsetAndMetadata
from streams_app.delivery.processor import ImpossibleClaimError
from streams_app.delivery.scripts import FencedError
from streams_app.subscribers.execution.decoding import DecodedRecord
from streams_app.subscribers.execution.executor import Attempt, AttemptOutcome
from streams_app.subscribers.execution.in_flight_event import DUE_AT_ONCE, InFlightEvent
from streams_app.subscribers.execution.partition import SubscriberPartition
from streams_app.subscribers.execution.queues import StartQueue, StartRequest
from streams_app.subscribers.execution.retry_decision import DeadLettering
from streams_app.subscribers.guarantees.begin_log import BeginLog
from streams_app.subscribers.guarantees.guarantee import Guarantee, Takeover
from streams_app.subscribers.guarantees.restored_position import RestoredPosition, metadata_of
from streams_app.subscribers.guarantees.write_ahead import WriteAhead
from streams_app.subscribers.state.initial_offsets import NO_METADATA, how_to_set_offsets
from streams_app.subscribers.state.offset_metadata import MAX_METADATA_BYTES, encoded, fits
from streams_app.subscribers.state.store import AttemptEntry

LOWEST_BYTES: Final = 8
"""Bytes of the metadata that other events leave free, so that the lowest unfinished event can always be listed as begun, and can
start. They suffice for any event."""


class AtMostOnceGuarantee(Guarantee):
    """Delivery guarantee that runs each record at most once, and each event id at most once while ids are remembered."""

    def __init__(self, partition: SubscriberPartition) -> None:
        self._partition = partition
        self._write_ahead = WriteAhead(partition, self.position_to_commit, self._on_begun, self._commit)
        self._without_room: set[int] = set()
        # Successes that no commit includes yet: the next owner would treat them as interrupted.
        self._uncommitted: dict[int, InFlightEvent] = {}

    @property
    def log(self) -> BeginLog:
        """Write-ahead log of this claim, which records in Redis that an attempt begins before it starts."""
        return self._write_ahead.log

    async def take_over(self, claim: Claim, restored: RestoredPosition) -> Takeover:
        """Take over the events of former owners. Those that the metadata of the commit lists as begun count as interrupted.

        Raises:
            ImpossibleClaimError: The commit has no metadata that lists the begun events.
        """
        tracker = self._partition.tracker
        assert claim.committed is not None  # it is required
        if metadata_of(claim, claim.committed) is None:
            name = self._partition.context.subscriber.name
            if not await claim.broker_keeps_metadata():
                raise ImpossibleClaimError(self._partition.tp, f"cannot be claimed: {NO_METADATA}", "use another broker")
            what = f"has a commit that does not record the begun events of subscriber {name!r}"
            raise ImpossibleClaimError(self._partition.tp, what, how_to_set_offsets(name))
        watermark = tracker.end
        kept = await self._write_ahead.claim(claim, restored, trusts_redis=False)
        interrupted = set(tracker.begun)
        # Events that are begun in Redis, but not in the commit, have never started.
        entries = {
            offset: AttemptEntry(entry.attempts - 1, due_ms=DUE_AT_ONCE) if entry.is_begun and offset not in interrupted else entry
            for offset, entry in kept.open.items()
        }
        begin = await self._write_ahead.begin(claim, kept, watermark, interrupted)
        known = {offset: AttemptEntry(1) for offset in interrupted} | entries
        return Takeover(begin, known, interrupted, {"begin log": self.log.forever()})

    def dead_letter_of(self, event: InFlightEvent) -> DeadLettering | None:
        """Return a dead letter for an event whose attempt was interrupted, so that its effect is unknown; None for other events."""
        return self._write_ahead.dead_letter_of(event)

    # ---- room in the metadata

    def may_start(self, queue: StartQueue, request: StartRequest) -> list[InFlightEvent]:
        """Take the next events, or only the lowest unfinished one while the metadata is full, because its end frees space."""
        if self._partition.is_metadata_full:
            if not self._fits(MAX_METADATA_BYTES - 2 * LOWEST_BYTES):
                return queue.take_offset(self._partition.tracker.low, request.now_ms)
            self._set_full(False)
        return queue.take(request)

    def _set_full(self, is_full: bool) -> None:
        self._partition.is_metadata_full = is_full
        self._partition.start_limit = 1 if is_full else None

    def _fits(self, max_bytes: int) -> bool:
        tracker = self._partition.tracker
        return fits(tracker.low, self._partition.offset_metadata(tracker.required()), max_bytes)

    # ---- one event

    def before_start(self, decoded: Sequence[tuple[InFlightEvent, DecodedRecord]]) -> list[Attempt]:
        """Create attempts, and schedule a write to Redis and a commit that record their events as begun.

        The attempts start after both.
        """
        return self._write_ahead.before_start(decoded)

    async def _on_begun(self, attempts: Sequence[Attempt]) -> Sequence[Attempt]:
        """Commit metadata that lists as many of the events as begun as fit into it, and return the attempts of these events."""
        tracker = self._partition.tracker
        low = tracker.low
        taken = sorted(attempts, key=lambda attempt: int(attempt.in_flight_event.offset))
        # The lowest event may always start: until it is finished, the metadata cannot become smaller.
        while taken and taken[-1].in_flight_event.offset > low and not self._fits(MAX_METADATA_BYTES - LOWEST_BYTES):
            tracker.put_off(taken.pop().in_flight_event.offset)
        if taken:
            await self._commit()
        # Set only after the commit: if it fails, this method is called with all attempts once more, and they may fit then.
        self._without_room = {attempt.in_flight_event.offset for attempt in attempts if attempt not in taken}
        if self._without_room:
            self._set_full(True)
        return taken

    async def _commit(self) -> None:
        committing, self._uncommitted = self._uncommitted, {}
        try:
            await self._partition.claim.commit_now(self.position_to_commit())
        except BaseException as error:  # also when cancelled: the broker may or may not have the commit
            self._uncommitted = committing | self._uncommitted
            if isinstance(error, NotOwnerError):
                raise FencedError("commit", "generation") from error
            raise

    def after_end(self, attempts: Sequence[Attempt]) -> None:
        """Count duplicates. Remember each event that has succeeded until its outcome is written and committed.

        If another owner takes over before that, a dead letter ``finished-late`` is sent for the event.
        """
        self._uncommitted.update(
            (attempt.in_flight_event.offset, attempt.in_flight_event)
            for attempt in attempts
            if attempt.outcome is AttemptOutcome.DONE
        )
        self._write_ahead.after_end(attempts)

    def on_interruption(self, event: InFlightEvent, attempt: Attempt) -> bool:
        """Decide whether an event may start again after its attempt was cancelled: only if the function was not called yet."""
        if event.offset in self._without_room:
            self._without_room.remove(event.offset)
            return True
        return self._write_ahead.on_interruption(event, attempt)

    def position_to_commit(self) -> OffsetAndMetadata:
        """Return the low watermark, with the begun and the finished offsets above it as metadata.

        If these do not fit, finished offsets whose events never began are omitted.
        """
        partition = self._partition
        low, tracker = partition.tracker.low, partition.tracker
        whole = partition.offset_metadata(tracker.above())
        if not fits(low, whole, MAX_METADATA_BYTES):
            # None of these may be omitted. They fit, because they did when their events began.
            whole = partition.offset_metadata(tracker.required())
        return partition.position(low, encoded(low, whole))

    # ---- the end

    def stop(self) -> None:
        """Withdraw the attempts that are not recorded as begun."""
        self.log.stop()

    async def close(self, tasks: Collection[Task[None]]) -> None:
        """Write the last outcomes.

        If another owner has claimed the partition, send a dead letter ``finished-late`` instead for each event that has succeeded,
        because that owner treats these events as interrupted.
        """
        await self._write_ahead.close(tasks)
        if self.log.is_fenced:
            # close has sent dead letters for the events in log.done.
            self._uncommitted = {offset: event for offset, event in self._uncommitted.items() if offset not in self.log.done}

    async def on_commit_rejected(self) -> None:
        """Send a dead letter ``finished-late`` for each event that has succeeded, but is not finished in any commit.

        The next owner relies on the commit alone, and treats these events as interrupted.
        """
        await self._write_ahead.send_late(self._uncommitted.values())
