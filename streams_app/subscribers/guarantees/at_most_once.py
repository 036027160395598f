"""At most once (``idempotent="no"``): no record runs twice, even if Redis loses all data.

Before an event starts, it is recorded as begun in Redis, as with :mod:`.deduplicated`, and then in Kafka, in the metadata of a
commit. The next owner reads there which events have begun. A worker whose partition was revoked cannot start any event, because
Kafka rejects its commit.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from streams_app.delivery.group_consumer import NotOwnerError
from streams_app.delivery.offset_metadata import OffsetAndMetadata
from streams_app.delivery.scripts import FencedError
from streams_app.subscribers.execution.executor import Attempt
from streams_app.subscribers.execution.in_flight_event import InFlightEvent
from streams_app.subscribers.execution.partition import SubscriberPartition
from streams_app.subscribers.execution.queues import StartQueue, StartRequest
from streams_app.subscribers.state.offset_metadata import MAX_METADATA_BYTES, encoded, fits

LOWEST_BYTES: Final = 8
"""Bytes of the metadata that other events leave free, so that the lowest unfinished event can always be listed as begun, and can
start. They suffice for any event."""


class BeginCommits:
    """Commits to Kafka, before events start, that they begin: the metadata of the commit lists their offsets as begun.

    If Kafka rejects a commit, because this worker has lost the partition, a FencedError is raised. After another error, the
    broker may or may not have the commit.

    Attributes:
        is_full: Whether the metadata has no room to list further events as begun.
        uncommitted: Successes that no commit includes yet, by offset: the next owner would treat them as interrupted.
    """

    def __init__(self, partition: SubscriberPartition) -> None:
        self.is_full = False
        self.uncommitted: dict[int, InFlightEvent] = {}
        self._partition = partition

    def may_start(self, queue: StartQueue, request: StartRequest) -> list[InFlightEvent]:
        """Take the next events from the queue; while the metadata is full, only the lowest unfinished one: its end frees space."""
        if self.is_full:
            if not self._fits(MAX_METADATA_BYTES - 2 * LOWEST_BYTES):
                return queue.take_offset(self._partition.tracker.low, request.now_ms)
            self._set_full(False)
        return queue.take(request)

    def _set_full(self, is_full: bool) -> None:
        self.is_full = is_full
        self._partition.start_limit = 1 if is_full else None

    def _fits(self, max_bytes: int) -> bool:
        tracker = self._partition.tracker
        return fits(tracker.low, self._partition.offset_metadata(tracker.required()), max_bytes)

    async def commit_begun(self, attempts: Sequence[Attempt]) -> Sequence[Attempt]:
        """Commit metadata that lists as many of the events as begun as fit into it, and return the attempts of these events."""
        tracker = self._partition.tracker
        low = tracker.low
        taken = sorted(attempts, key=lambda attempt: int(attempt.in_flight_event.offset))
        # The lowest event may always start: until it is finished, the metadata cannot become smaller.
        while taken and taken[-1].in_flight_event.offset > low and not self._fits(MAX_METADATA_BYTES - LOWEST_BYTES):
            tracker.put_off(taken.pop().in_flight_event.offset)
        if taken:
            await self.commit()
        # Set only after the commit: if it fails, this method is called with all attempts once more, and they may fit then.
        if len(taken) < len(attempts):
            self._set_full(True)
        return taken

    async def commit(self) -> None:
        """Commit the position now; its metadata lists the begun and the finished events, see :meth:`position`."""
        committing, self.uncommitted = self.uncommitted, {}
        try:
            await self._partition.claim.commit_now(self.position())
        except BaseException as error:  # also when cancelled: the broker may or may not have the commit
            self.uncommitted = committing | self.uncommitted
            if isinstance(error, NotOwnerError):
                raise FencedError("commit", "generation") from error
            raise

    def position(self) -> OffsetAndMetadata:
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
