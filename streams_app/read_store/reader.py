"""The consumer of the output topics, in a group of its own.

Not Faust's: one loop delivers all its topics, and an agent that waits for a dead read store would stop the folding.

The offsets that count are in the store. What is committed to Kafka shows the lag to those who look there; it is never read back
as a starting point.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from aiokafka import AIOKafkaConsumer, ConsumerRecord, TopicPartition
from aiokafka.abc import ConsumerRebalanceListener
from aiokafka.errors import KafkaError

from streams_app.kafka.client import client_options
from streams_app.read_store.store import Partition
from streams_app.read_store.sync import MAX_RECORDS
from streams_app.settings import KafkaSettings

logger = logging.getLogger(__name__)

POLL_MS: Final = 500
REBALANCE_MS: Final = 10_000
CALL_SECONDS: Final = 5.0
STOP_SECONDS: Final = 1.5
DOUBTS: Final = 20
"""Answers in a row, one a poll, before a log is believed to end below what was read from it."""


@dataclass(frozen=True, slots=True)
class Start:
    """Where a partition is read from.

    Attributes:
        offset: The first one to read.
        fault: Why this is not what the store asked for, or None.
        is_doubtful: A broker whose answer is not the newest looks the same; to be asked again before it is believed.
    """

    offset: int
    fault: str | None = None
    is_doubtful: bool = False


def starting_point(stored: int | None, log_start: int, log_end: int) -> Start:
    """Chooses the offset to begin at.

    Args:
        stored: The progress in the store, None: never synced.
        log_start: Lowest offset there is.
        log_end: One beyond the highest.
    """
    if stored is None:
        return Start(log_start)
    if stored > log_end:
        return Start(log_start, "the topic was made again; reading it from its start", is_doubtful=True)
    if stored < log_start:
        return Start(log_start, "retention overtook the read store; names changed by the missing records may be out of date")
    return Start(stored)


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
        self._doubts = 0
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

    async def place(self, progress: Mapping[Partition, int], reset: Callable[[Mapping[Partition, int]], Any]) -> None:
        """Seeks every partition to where the store says and lets it flow. After a rebalance in between: does nothing.

        Args:
            progress: As the store knows it.
            reset: ``async reset(offsets)`` corrects the store where its progress speaks of a log that is no more.

        Raises:
            KafkaError: The log's edges cannot be had.
            TryAgainError: The store is away.
        """
        generation = self._generation
        tps = [tp for tp in self._consumer.assignment() if tp not in self._next]
        begins = await self._consumer.beginning_offsets(tps)
        ends = await self._consumer.end_offsets(tps)
        starts = {tp: starting_point(progress.get(Partition(tp.topic, tp.partition)), begins[tp], ends[tp]) for tp in tps}
        self._doubts = self._doubts + 1 if any(start.is_doubtful for start in starts.values()) else 0
        if 0 < self._doubts < DOUBTS:
            return
        faults = {tp: start for tp, start in starts.items() if start.fault}
        if generation == self._generation and faults:
            await reset({Partition(tp.topic, tp.partition): start.offset for tp, start in faults.items()})
        if generation != self._generation:
            return
        for tp, start in starts.items():
            if start.fault:
                logger.warning(
                    "%s topic=%s partition=%d offset=%d stored_offset=%d",
                    start.fault, tp.topic, tp.partition, start.offset, progress[Partition(tp.topic, tp.partition)],
                )  # fmt: skip
            self._consumer.seek(tp, start.offset)
            self._next[tp] = start.offset
        self._consumer.resume(*tps)

    async def poll(self) -> list[ConsumerRecord]:
        """What has arrived, at most 500 records; waits half a second for the first. Keeps the membership alive.

        Raises:
            KafkaError: What aiokafka does not mend by itself.
        """
        fetched = await self._consumer.getmany(timeout_ms=POLL_MS, max_records=MAX_RECORDS)
        # Between an assignment and its callback a partition may already deliver from where the group had committed.
        return [record for tp, records in fetched.items() if tp in self._next for record in records]

    def synced(self, progress: Mapping[Partition, int]) -> None:
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
