"""A member of a consumer group in memory; implements :class:`streams_app.delivery.group_consumer.GroupConsumer`."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping
from contextvars import ContextVar
from functools import partial
from typing import Final

from streams_app.clock import Clock
from streams_app.delivery.batch import TP
from streams_app.delivery.clocks import ReaderView
from streams_app.delivery.fingerprints import OTHER, Incarnation, checksum_of
from streams_app.delivery.group_consumer import Member, NotOwnerError, PartitionCommit
from streams_app.delivery.ownership import Ownership
from streams_app.local.broker import LocalBroker
from streams_app.local.group import NO_GENERATION, PartitionReader

MAX_RECORDS: Final = 500
"""Maximum number of records that are delivered before other tasks of the event loop can run."""

CALLED_BY_TIMER: Final = ContextVar("called_by_timer", default=False)
"""Whether the current code was called by a timer of a member or an executor, and not by an event.

A test kit ignores timers that such code sets while every event is finished.
"""


class LocalMember:
    """One member of a consumer group. No method blocks, because the log is in the memory of the same process.

    Attributes:
        generation: Generation of the group at the last assignment; -1 before the member joins.
    """

    def __init__(self, broker: LocalBroker, group: str, member_id: str, topics: Collection[str], clock: Clock) -> None:
        self.member_id = member_id
        self.generation = NO_GENERATION
        self._broker = broker
        self._group = group
        self._clock = clock
        self._ownership: Ownership | None = None
        self._loop = asyncio.get_running_loop()
        self._readers = {tp: PartitionReader(tp) for tp in (TP(topic, 0) for topic in topics)}
        self._listeners = {tp.topic: partial(self._loop.call_soon_threadsafe, self._fetch, tp) for tp in self._readers}
        self._is_assigned = self._is_listening = False
        self._timers: list[asyncio.Task[None]] = []

    # ---- lifecycle

    def join(self, ownership: Ownership, tick_seconds: float, commit_seconds: float) -> None:
        """Take over the group from its previous owner, and start to claim the partitions."""
        self._ownership = ownership
        self._timers = [
            asyncio.create_task(self._tick(ownership, tick_seconds), name=f"{self._group} tick"),
            asyncio.create_task(self._commit(ownership, commit_seconds), name=f"{self._group} commit"),
        ]
        for topic, listener in self._listeners.items():
            self._broker.listen(topic, listener)
        self._is_listening = True
        self.assign()

    def assign(self) -> None:
        """Assign all partitions to this member, under a new generation, even if it already owns them.

        The partitions are claimed again; the claim determines the offset at which reading continues.
        """
        assert self._ownership is not None  # set by join
        self.generation = self._broker.groups[self._group].give(self.member_id)
        self._is_assigned = True
        for reader in self._readers.values():
            reader.assign(self._broker.groups[self._group].committed.get(reader.tp))
        self._ownership.assigned(self.generation)

    async def leave(self, seconds: float | None = None) -> None:
        """Release all partitions after a last commit, and stop reading. If the group has another owner, nothing is committed.

        Args:
            seconds: Grace period for running work; None: the grace period of a rebalance.
        """
        if self._ownership is not None:
            await self._ownership.stop(seconds)
        self._is_assigned = False
        for timer in self._timers:
            timer.cancel()
        self.forget()

    def forget(self) -> None:
        """Stop listening for appended records, because the process has ended or was killed."""
        if self._is_listening:
            self._is_listening = False
            for topic, listener in self._listeners.items():
                self._broker.unlisten(topic, listener)

    async def _tick(self, ownership: Ownership, seconds: float) -> None:
        CALLED_BY_TIMER.set(True)
        while True:
            await asyncio.sleep(seconds)
            ownership.tick_once()

    async def _commit(self, ownership: Ownership, seconds: float) -> None:
        CALLED_BY_TIMER.set(True)
        while True:
            await asyncio.sleep(seconds)
            await ownership.commit_once()

    # ---- reading

    def _fetch(self, tp: TP) -> None:
        """Deliver the available records, unless the partition is paused or not assigned."""
        reader = self._readers[tp]
        begin = reader.position
        if self._ownership is None or begin is None or not self._is_assigned or reader.is_paused:
            return
        records, end = self._broker.records(tp.topic, begin, MAX_RECORDS), self._broker.end(tp.topic)
        batch = reader.fetch(records, begin + len(records), end, self._clock.now_ms())
        if batch is None:
            return
        self._ownership.deliver(batch)
        if batch.end < end:
            self._loop.call_soon(self._fetch, tp)

    # ---- the methods of GroupConsumer

    def assignment(self) -> set[TP]:
        return set(self._readers) if self._is_assigned else set()

    def partition_count(self, topic: str) -> int:
        return 1

    async def topic_id(self, topic: str) -> str:
        """Return a constant id, because topics are never recreated."""
        return "local"

    async def committed(self, tp: TP) -> PartitionCommit | None:
        return self._broker.groups[self._group].committed.get(tp)

    async def commits(self, topic: str) -> Mapping[int, PartitionCommit]:
        committed = self._broker.groups[self._group].committed
        return {tp.partition: commit for tp, commit in committed.items() if tp.topic == topic}

    async def commit(self, positions: Mapping[TP, PartitionCommit], claim: Member) -> None:
        self._broker.groups[self._group].commit(positions, claim)

    async def log_range(self, tp: TP) -> tuple[int, int]:
        return 0, self._broker.end(tp.topic)

    async def offset_at(self, tp: TP, time_ms: int) -> int:
        records = self._broker.records(tp.topic)
        return next((record.offset for record in records if record.timestamp >= time_ms), len(records))

    async def checksum_at(self, tp: TP, offset: int) -> int:
        records = self._broker.records(tp.topic)
        return checksum_of(records[offset]) if offset < len(records) else OTHER

    async def incarnations(self, topic: str) -> dict[int, Incarnation]:
        """Return an empty mapping, because a log in memory is never replaced by another."""
        return {}

    async def seek(self, tp: TP, offset: int) -> int:
        if not self._is_assigned:
            raise NotOwnerError("not assigned")
        return self._readers[tp].seek(offset)

    def pause(self, tps: Collection[TP]) -> None:
        for tp in tps:
            self._readers[tp].is_paused = True

    def resume(self, tps: Collection[TP]) -> None:
        """Continue delivering records of some partitions, beginning in the next iteration of the event loop."""
        for tp in tps:
            self._readers[tp].is_paused = False
            self._loop.call_soon(self._fetch, tp)

    def reader_view(self, tp: TP) -> tuple[ReaderView, int | None]:
        return self._readers[tp].view, self._readers[tp].position
