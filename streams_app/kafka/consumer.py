"""The consumer that Faust runs: it delivers batches with their ranges, and seeks only when :class:`.Ownership` requests it.

Faust's own driver (faust-streaming 0.15, ``transport/drivers/aiokafka.py``) seeks to the committed offset after a rebalance, counts
acknowledged offsets, reads uncommitted records and delivers single messages. The subclass in this module uses the driver's group
membership and replaces the rest. The thread is in :mod:`streams_app.kafka.consumer_thread`.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable
from typing import Any

from faust.transport.drivers.aiokafka import Consumer

from streams_app.delivery.batch import TP
from streams_app.kafka.consumer_thread import FoldingThread
from streams_app.settings import Settings

BUFFERED_RECORDS = 40_000
"""Maximum number of parsed records in flight, in all partitions.

It allows one batch to be processed while another one waits for Redis.
"""


ROOM_SECONDS = 1.0
"""Interval at which a reader that has reached :data:`BUFFERED_RECORDS` checks whether it may fetch again.

It may fetch again once records in flight were folded, or once their partition counts as stuck.
"""


class _ReadOffsets(dict[TP, "int | None"]):
    """Read offsets that are always None, so that Faust drops no message.

    Faust drops messages below the last offset that it read, which would be every message after a seek to a lower offset. Here,
    ranges and seek numbers detect duplicates.
    """

    def __getitem__(self, tp: TP) -> int | None:
        return None


class FoldingConsumer(Consumer):
    """Faust's consumer with a :class:`FoldingThread`; it never seeks by itself, but only when :class:`.Ownership` requests it."""

    settings: Settings
    on_assignment: Callable[[int], None]
    on_revoke: Callable[[Iterable[TP]], Coroutine[Any, Any, None]]

    _thread: FoldingThread
    _in_flight: Callable[[], int]

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        transport = args[0] if args else kwargs["transport"]
        self.settings = transport.app.settings
        self.on_assignment = transport.app.on_assignment
        self.on_revoke = transport.app.on_revoke
        self._in_flight = transport.app.in_flight
        super().__init__(*args, **kwargs)
        self._read_offset = _ReadOffsets()
        self._resumed = asyncio.Event()

    @property
    def thread(self) -> FoldingThread:
        """The thread in which all calls of aiokafka run."""
        return self._thread

    def _new_consumer_thread(self) -> FoldingThread:
        return FoldingThread(self, loop=self.loop, beacon=self.beacon)

    async def perform_seek(self) -> None:
        """Claim the assigned partitions in the background; Faust calls this to seek to the committed offsets.

        Assigned partitions stay paused until they are claimed. Claims do not run within this call, because Faust limits its time: a
        slow Redis would end Faust's recovery task for good, and no record would be consumed afterwards.
        """
        self.pause_partitions(self.assignment())
        self.on_assignment(self.app.consumer_generation_id)

    async def getmany(self, timeout: float) -> AsyncIterator[tuple[TP, Any]]:
        """Wait for fetched batches; yield the partition of each batch, and a message that holds the batch.

        A batch is yielded even if its partition was paused or its reader has seeked after the fetch. The ownership discards batches
        that were fetched before the last seek, see :attr:`.Batch.seek_number`.
        """
        self._thread.room = BUFFERED_RECORDS - self._in_flight()
        if self.flow_active and self.assignment() and (self._thread.room <= 0 or not self._get_active_partitions()):
            self._resumed.clear()
            await self.wait(self._resumed, timeout=min(timeout, ROOM_SECONDS) if self._get_active_partitions() else timeout)
            return
        records, _ = await self._wait_next_records(timeout)
        generation = self.app.consumer_generation_id
        if not records or self.should_stop:
            return
        for tp, batch in self.scheduler.iterate(records):
            if not self.flow_active or self.app.consumer_generation_id != generation:
                return
            yield tp, self._to_message(tp, batch)

    def on_buffer_full(self, tp: TP) -> None:
        """Do nothing: the ownership applies back-pressure, and Faust would resume partitions that the ownership has paused."""

    def on_buffer_drop(self, tp: TP) -> None: ...

    def resume_partitions(self, tps: Iterable[TP]) -> None:
        """Resume partitions and wake the reader, which would otherwise notice up to a second later."""
        super().resume_partitions(tps)
        self._resumed.set()
        self._thread.wake()

    async def on_partitions_assigned(self, assigned: set[TP], generation_id: int = 0) -> None:
        """Report an empty assignment to the ownership; :meth:`perform_seek`, which Faust then does not call, reports any other."""
        await super().on_partitions_assigned(assigned, generation_id)
        if not assigned:
            self.on_assignment(generation_id)

    async def on_partitions_revoked(self, revoked: set[TP]) -> None:
        await self.on_revoke(revoked)
        await super().on_partitions_revoked(revoked)

    async def commit(self, *_: Any, **__: Any) -> bool:
        """Do nothing: the ownership of partitions commits low watermarks."""
        return False

    def verify_event_path(self, now: float, tp: TP) -> None:
        """Do nothing: Faust would check that messages are acknowledged, but batches never are."""
