"""The consumer Faust runs for us: batches with their ranges, seeks that hold.

Faust's own driver seeks to the committed offset after a rebalance, counts acknowledged offsets, reads uncommitted
records and delivers single messages. This subclass keeps its group membership and replaces the rest, the thread in
:mod:`streams_app.kafka.consumer_thread` (faust-streaming 0.15, ``transport/drivers/aiokafka.py``).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable
from typing import Any

from faust.transport.drivers.aiokafka import Consumer

from streams_app.delivery.batch import TP
from streams_app.kafka.consumer_thread import FoldingThread
from streams_app.settings import Settings

HELD_RECORDS = 40_000
"""Most records that are parsed and not yet folded, of all partitions together: one batch is worked on while another one waits for
Redis."""


ROOM_SECONDS = 1.0
"""After so long the reader looks again whether what is held has been folded, or no longer counts as its partition is stuck."""


class _ReadOffsets(dict[TP, "int | None"]):
    """Faust drops a message below the offset it read last; after a rewind that would be every message.

    Ranges and seek numbers do that job here, so nothing is ever refused.
    """

    def __getitem__(self, tp: TP) -> int | None:
        return None


class FoldingConsumer(Consumer):
    """Faust's consumer with our thread; hands every seek to the ownership of partitions."""

    settings: Settings
    on_seek: Callable[[int], None]
    on_revoke: Callable[[Iterable[TP]], Coroutine[Any, Any, None]]

    _thread: FoldingThread
    _in_flight: Callable[[], int]

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        transport = args[0] if args else kwargs["transport"]
        self.settings = transport.app.settings
        self.on_seek = transport.app.on_seek
        self.on_revoke = transport.app.on_revoke
        self._in_flight = transport.app.in_flight
        super().__init__(*args, **kwargs)
        self._read_offset = _ReadOffsets()
        self._resumed = asyncio.Event()

    @property
    def thread(self) -> FoldingThread:
        """The thread in which everything happens that touches aiokafka."""
        return self._thread

    def _new_consumer_thread(self) -> FoldingThread:
        return FoldingThread(self, loop=self.loop, beacon=self.beacon)

    async def perform_seek(self) -> None:
        """Faust calls this to go back to the committed offsets; we claim the shards instead, in the background.

        Everything assigned stays paused until it is claimed: inside Faust's own time-out a slow Redis would end its recovery
        task for good, and nothing would ever be consumed again.
        """
        self.pause_partitions(self.assignment())
        self.on_seek(self.app.consumer_generation_id)

    async def getmany(self, timeout: float) -> AsyncIterator[tuple[TP, Any]]:
        """Delivers what was fetched; nothing is dropped because its partition was paused meanwhile.

        A batch that is stale is recognised by its seek number when it is delivered.
        """
        self._thread.room = HELD_RECORDS - self._in_flight()
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
        """Nothing: flow is controlled by the ownership of partitions, and Faust would resume what that has paused."""

    def on_buffer_drop(self, tp: TP) -> None:
        """Nothing, see :meth:`on_buffer_full`."""

    def resume_partitions(self, tps: Iterable[TP]) -> None:
        """Resumes reading at once; Faust would notice at its next look, up to a second later."""
        super().resume_partitions(tps)
        self._resumed.set()
        self._thread.wake()

    async def on_partitions_assigned(self, assigned: set[TP], generation_id: int = 0) -> None:
        """Faust calls :meth:`perform_seek` where something is assigned; that nothing is has to be known, too."""
        await super().on_partitions_assigned(assigned, generation_id)
        if not assigned:
            self.on_seek(generation_id)

    async def on_partitions_revoked(self, revoked: set[TP]) -> None:
        """Commits and lets go before another member is given the partitions."""
        await self.on_revoke(revoked)
        await super().on_partitions_revoked(revoked)

    async def commit(self, *_: Any, **__: Any) -> bool:
        """Faust's own commit does nothing: only low watermarks are committed."""
        return False

    def verify_event_path(self, now: float, tp: TP) -> None:
        """Faust's check counts acknowledged messages; there are none."""
