"""The consumer Faust runs for us: batches with their ranges, seeks that hold, commits that ask the broker.

Faust's own driver seeks to the committed offset after a rebalance, counts acknowledged offsets, reads uncommitted
records and delivers single messages. This subclass keeps its group membership and replaces the rest, the thread in
:mod:`streams_app.kafka.consumer_thread` (faust-streaming 0.15, ``transport/drivers/aiokafka.py``).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable
from typing import Any

import aiokafka
from aiokafka.errors import CommitFailedError, IllegalStateError
from aiokafka.structs import OffsetAndMetadata, TopicPartition
from faust.transport.drivers.aiokafka import Consumer

from streams_app.delivery.batch import TP
from streams_app.delivery.commits import Committed, NotOwnerError
from streams_app.delivery.partition_clock import ReaderView
from streams_app.kafka.consumer_thread import FoldingThread
from streams_app.kafka.topic_ids import topic_ids
from streams_app.settings import Settings

HELD_RECORDS = 40_000
"""Parsed and not yet folded, of all partitions together: one batch is worked on while another one waits for Redis."""


ROOM_SECONDS = 1.0
"""How soon it is noticed that what is held does not move: others are read then."""


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
    _held: Callable[[], int]

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        transport = args[0] if args else kwargs["transport"]
        self.settings = transport.app.settings
        self.on_seek = transport.app.on_seek
        self.on_revoke = transport.app.on_revoke
        self._held = transport.app.held
        super().__init__(*args, **kwargs)
        self._read_offset = _ReadOffsets()
        self._resumed = asyncio.Event()

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

        What is stale is told by its seek number where it is folded.
        """
        self._thread.room = HELD_RECORDS - self._held()
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

    async def on_partitions_revoked(self, revoked: set[TP]) -> None:
        """Commits and lets go before another member is given the partitions."""
        await self.on_revoke(revoked)
        await super().on_partitions_revoked(revoked)

    async def commit(self, *_: Any, **__: Any) -> bool:
        """Faust's own commit does nothing: only low watermarks are committed."""
        return False

    def verify_event_path(self, now: float, tp: TP) -> None:
        """Faust's check counts acknowledged messages; there are none."""

    def reader_view(self, tp: TP) -> tuple[ReaderView, int | None]:
        """See :meth:`FoldingThread.reader_view`."""
        return self._thread.reader_view(tp)

    async def committed(self, tp: TP) -> Committed | None:
        """What the broker holds now, not what this process meant to commit; None where nothing was ever committed."""
        key = TopicPartition(tp.topic, tp.partition)

        async def ask(consumer: aiokafka.AIOKafkaConsumer) -> Any:
            return await consumer._coordinator.fetch_committed_offsets([key])

        found = (await self._thread.run(ask)).get(key)
        return None if found is None or found.offset < 0 else Committed(found.offset, found.metadata or "")

    async def commits(self, topic: str) -> dict[int, Committed]:
        """What the broker holds now for all partitions of a topic, by their numbers; without those never committed."""

        async def ask(consumer: aiokafka.AIOKafkaConsumer) -> Any:
            keys = [TopicPartition(topic, number) for number in consumer.partitions_for_topic(topic) or ()]
            return await consumer._coordinator.fetch_committed_offsets(keys)

        found = await self._thread.run(ask)
        return {tp.partition: Committed(held.offset, held.metadata or "") for tp, held in found.items() if held.offset >= 0}

    async def commit_offsets(self, offsets: dict[TP, Committed]) -> None:
        """Commits under our own generation.

        Raises:
            NotOwnerError: Kafka refused it, or a partition is not assigned to us.
            TimeoutError: The outcome is unknown; a low watermark may be committed again at any time.
        """
        structs = {
            TopicPartition(tp.topic, tp.partition): OffsetAndMetadata(mark.offset, mark.metadata) for tp, mark in offsets.items()
        }

        async def send(consumer: aiokafka.AIOKafkaConsumer) -> None:
            await consumer.commit(structs)

        try:
            await self._thread.run(send)
        except (CommitFailedError, IllegalStateError) as error:
            raise NotOwnerError(str(error)) from error

    async def topic_id(self, topic: str) -> str:
        """The id the broker gave the topic when it was made; "" where it gives none.

        Raises:
            KafkaError: It cannot be asked, or the topic does not exist.
        """

        async def ask(consumer: aiokafka.AIOKafkaConsumer) -> dict[str, str]:
            return await topic_ids(consumer._client, [topic])

        return (await self._thread.run(ask))[topic]

    async def log_range(self, tp: TP) -> tuple[int, int]:
        """First offset of the log and its end, as ``read_committed`` sees it."""
        key = TopicPartition(tp.topic, tp.partition)

        async def ask(consumer: aiokafka.AIOKafkaConsumer) -> tuple[int, int]:
            begin = await consumer.beginning_offsets([key])
            end = await consumer.end_offsets([key])
            return begin[key], end[key]

        return await self._thread.run(ask)

    async def seek_to(self, tp: TP, offset: int) -> int:
        """Moves the reader; batches fetched before it are recognised by the number returned.

        Raises:
            NotOwnerError: The partition is not assigned to us.
        """
        thread = self._thread

        async def move(consumer: aiokafka.AIOKafkaConsumer) -> int:
            consumer.seek(TopicPartition(tp.topic, tp.partition), offset)
            thread.seek_numbers[tp] += 1
            return thread.seek_numbers[tp]

        try:
            return await thread.run(move)
        except IllegalStateError as error:
            raise NotOwnerError(str(error)) from error

    def partition_count(self, topic: str) -> int:
        """Partitions the cluster's metadata names for a topic; 1 while it is unknown."""
        consumer = self._thread._consumer
        partitions = consumer.partitions_for_topic(topic) if consumer is not None else None
        return len(partitions) if partitions else 1
