"""Reads ids of events back from the log of a partition if Redis has lost them, so that duplicates of these events do not run."""

from __future__ import annotations

from typing import Any

from streams_app.delivery.batch import Batch
from streams_app.delivery.claim import Claim
from streams_app.errors import BadEventError
from streams_app.events.codec import check_headers
from streams_app.subscribers.execution.partition import SubscriberPartition


class IdReadback:
    """Reads the ids of finished events back from the log if Redis has lost them, before new events start.

    Redis must have the ids of all events that may have run within ``remember``, so that their duplicates do not run. If ids are
    missing after a claim, the reader of the partition begins at a lower offset, and the ids of the events that it reads are written
    to Redis.
    """

    def __init__(self, partition: SubscriberPartition) -> None:
        self._partition = partition
        self._read_to = self._below = 0

    async def prepare(self, claim: Claim, fence: int, watermark: int, below: int) -> int:
        """Prepare to read missing ids after a claim; return the offset at which the reader of the partition begins.

        If Redis has the ids of all events below the low watermark, the reader begins at the low watermark. Otherwise, it begins at
        a lower offset: it then receives all events that are at most ``remember`` older than the event at the watermark, as far as
        the log still contains them.

        Args:
            fence: First offset whose id Redis may lack: Redis has the ids of all events below it.
            below: Offset after the last event that may have run; the ids of events below it are needed.
        """
        self._below, self._read_to = below, watermark
        if fence < watermark:
            self._read_to = max(claim.log_bounds.begin, min(watermark, await self._remembered_from(claim, watermark)))
        return self._read_to

    @property
    def is_complete(self) -> bool:
        return self._read_to >= self._below

    def read(self, batch: Batch) -> list[tuple[int, str]]:
        """Return the offset and the id of each event of a batch whose id is needed."""
        if self.is_complete:
            return []
        self._read_to = batch.end
        records = [record for record in batch.records if record.offset < self._below]
        return [(record.offset, own_id) for record in records if (own_id := self._id_of(record))]

    async def _remembered_from(self, claim: Claim, watermark: int) -> int:
        """Return an offset from which the log contains all events from ``remember`` before the time of the watermark on.

        That time is estimated and may be too early, so the offset may be lower than necessary.
        """
        now_ms, remember_ms = self._partition.context.clock.now_ms(), self._partition.context.subscriber.remember_ms
        # The event at the watermark may be old although it has run just now. Its age can be found only in the log.
        age_ms = remember_ms
        while watermark > claim.log_bounds.begin and age_ms < now_ms and await claim.offset_at(now_ms - age_ms) >= watermark:
            age_ms *= 2
        return await claim.offset_at(max(0, now_ms - age_ms - remember_ms))

    def _id_of(self, record: Any) -> str:
        context = self._partition.context
        try:
            made = context.decode(self._partition.tp, record, 1)
            check_headers(record.headers, context.limits)
        except BadEventError:
            return ""  # it becomes or was a dead letter, and cannot have a duplicate without a valid id
        return "" if made is None else made.own_id
