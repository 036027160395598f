"""The consumer of the output topics, in a group of its own.

Not Faust's: one loop delivers all its topics, and an agent that waits for a dead read store would stop the folding.

The offsets that count are in the store. What is committed to Kafka shows the lag to those who look there; it is never read back
as a starting point.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final

from aiokafka import AIOKafkaConsumer, ConsumerRecord, TopicPartition
from aiokafka.abc import ConsumerRebalanceListener
from aiokafka.errors import KafkaError

from streams_app.delivery.batch import TP
from streams_app.kafka.client import client_options
from streams_app.read_store.sync import MAX_RECORDS
from streams_app.settings import KafkaSettings

logger = logging.getLogger(__name__)

POLL_MS: Final = 500
REBALANCE_MS: Final = 10_000
CALL_SECONDS: Final = 5.0
STOP_SECONDS: Final = 1.5


class OutputReader(ConsumerRebalanceListener):
    """A member of the group ``<app_id>.read-store``.

    A partition is read only once it is *placed*, that is sought to where the store says; until then it is paused. A rebalance
    begins anew.
    """

    def __init__(self, kafka: KafkaSettings, app_id: str, topics: Sequence[str]) -> None:
        session_ms = kafka.session_timeout_ms
        self._topics = topics
        self._next: dict[TopicPartition, int] = {}  # placed partitions: the first offset not yet in the store
        self._committed: dict[TopicPartition, int] = {}
        self._generation = 0
        self._consumer = AIOKafkaConsumer(
            **client_options(kafka),
            client_id=f"{app_id}-read-store",
            group_id=f"{app_id}.read-store",
            isolation_level="read_committed",
            enable_auto_commit=False,
            auto_offset_reset="earliest",
            session_timeout_ms=session_ms,
            heartbeat_interval_ms=min(3_000, max(300, session_ms // 5)),
            rebalance_timeout_ms=REBALANCE_MS,
        )

    async def start(self) -> None:
        """Joins the group.

        Raises:
            KafkaError: The broker cannot be reached.
        """
        self._consumer.subscribe(self._topics, listener=self)
        await self._consumer.start()

    async def stop(self) -> None:
        """Commits and leaves the group, within a few seconds; never raises."""
        await _attempt(self._commit(), STOP_SECONDS, "commit")
        await _attempt(self._consumer.stop(), STOP_SECONDS, "stop")

    def on_partitions_revoked(self, revoked: Collection[TopicPartition]) -> None:
        """Forgets where it was; another member may be faster from now on."""
        self._generation += 1
        self._next.clear()

    def on_partitions_assigned(self, assigned: Collection[TopicPartition]) -> None:
        """Holds the partitions until the store has said where to begin."""
        self._generation += 1
        self._next.clear()
        self._committed.clear()
        self._consumer.pause(*assigned)

    @property
    def needs_placing(self) -> bool:
        """Some partition does not know yet where to begin."""
        return any(tp not in self._next for tp in self._consumer.assignment())

    async def place(self, progress: Mapping[TP, int]) -> None:
        """Seeks every partition to where the store says and lets it flow. After a rebalance in between: does nothing.

        Args:
            progress: As the store knows it.

        Raises:
            KafkaError: The log's start cannot be had.
        """
        generation = self._generation
        tps = [tp for tp in self._consumer.assignment() if tp not in self._next]
        begins = await self._consumer.beginning_offsets(tps)
        if generation != self._generation:
            return
        for tp in tps:
            stored = progress.get(TP(tp.topic, tp.partition))
            start = begins[tp] if stored is None else max(stored, begins[tp])
            if stored is not None and stored < start:
                logger.warning(
                    "retention overtook the read store, names changed by missing records may be out of date "
                    "source=%s-%d offsets=%d-%d",
                    tp.topic, tp.partition, stored, start - 1,
                )  # fmt: skip
            self._consumer.seek(tp, start)
            self._next[tp] = start
        self._consumer.resume(*tps)

    async def poll(self) -> list[ConsumerRecord]:
        """What has arrived, at most 500 records; waits half a second for the first. Keeps the membership alive.

        Raises:
            KafkaError: What aiokafka does not mend by itself.
        """
        fetched = await self._consumer.getmany(timeout_ms=POLL_MS, max_records=MAX_RECORDS)
        taken = []
        for tp, records in fetched.items():
            # Between an assignment and its callback a partition may already deliver from where the group had committed.
            if tp not in self._next:
                continue
            if records[0].offset < self._next[tp]:
                # The client was thrown back. What the store holds stays guarded by its versions.
                logger.warning(
                    "an output topic was made again, reading it from its start source=%s-%d offset=%d stored_offset=%d",
                    tp.topic, tp.partition, records[0].offset, self._next[tp],
                )  # fmt: skip
                self._next[tp] = records[0].offset
            taken += records
        return taken

    def synced(self, progress: Mapping[TP, int]) -> None:
        """Notes what the store has taken; of partitions lost meanwhile nothing."""
        for partition, next_offset in progress.items():
            tp = TopicPartition(partition.topic, partition.partition)
            if tp in self._next:
                self._next[tp] = next_offset

    def suspend(self) -> None:
        """Goes back to what the store has taken and delivers nothing more; the membership stays."""
        for tp in self._held():
            self._consumer.seek(tp, self._next[tp])
        self._consumer.pause(*self._consumer.assignment())

    def resume(self) -> None:
        """The end of :meth:`suspend`; partitions not yet placed stay paused."""
        self._consumer.resume(*self._held())

    async def commit_once(self) -> None:
        """Shows the progress in Kafka; a failure is nobody's business."""
        await _attempt(self._commit(), CALL_SECONDS, "commit")

    async def lag_records(self) -> int | None:
        """Records on the broker that the store has not taken; None: could not be found out now."""
        return await _attempt(self._lag_records(), CALL_SECONDS, "lag")

    def _held(self) -> list[TopicPartition]:
        return [tp for tp in self._consumer.assignment() if tp in self._next]

    async def _commit(self) -> None:
        offsets = {tp: self._next[tp] for tp in self._held() if self._next[tp] != self._committed.get(tp)}
        if offsets:
            await self._consumer.commit(offsets)
            self._committed.update(offsets)

    async def _lag_records(self) -> int:
        tps = list(self._consumer.assignment())
        if not tps:
            return 0
        ends = await self._consumer.end_offsets(tps)
        unplaced = [tp for tp in tps if tp not in self._next]
        begins = await self._consumer.beginning_offsets(unplaced) if unplaced else {}
        lag = 0
        for tp in tps:
            position = self._next.get(tp)
            if position is None:  # the store cannot be asked: what was committed is the best there is
                position = await self._consumer.committed(tp) or begins.get(tp, 0)
            lag += max(0, ends[tp] - position)
        return lag


async def _attempt(call: Any, seconds: float, what: str) -> Any:
    """Awaits something that may fail without harm."""
    try:
        return await asyncio.wait_for(call, seconds)
    except (KafkaError, OSError, TimeoutError, AssertionError) as error:  # aiokafka asserts that a partition is still assigned
        logger.debug("read store consumer: %s failed error=%r", what, error)
        return None
