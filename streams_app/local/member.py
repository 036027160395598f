"""The member of a consumer group in memory: a :class:`streams_app.delivery.group_consumer.GroupConsumer`."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping
from contextvars import ContextVar
from dataclasses import dataclass
from functools import partial
from typing import Final

from streams_app.clock import Clock
from streams_app.delivery.batch import TP, Batch
from streams_app.delivery.clocks import ReaderView
from streams_app.delivery.fingerprints import OTHER, Incarnation, checksum_of
from streams_app.delivery.group_consumer import Committed, Member, NotOwnerError
from streams_app.delivery.ownership import Ownership
from streams_app.local.broker import LocalBroker

MOST_RECORDS: Final = 500
"""So many records are handed over at once, then others have their turn."""

NO_GENERATION: Final = -1
IN_TIMER: Final = ContextVar("in_timer", default=False)
"""Whether what runs was begun by a timer by which a member ticks and commits, and by no event."""
NOTHING_SEEN: Final = ReaderView(None, None)


@dataclass(slots=True)
class _Reading:
    """How far a partition is read."""

    position: int | None = None
    seek_number: int = 0
    is_paused: bool = True
    view: ReaderView = NOTHING_SEEN


class LocalMember:
    """One member of a group. Nothing here waits: the log is in the same memory."""

    def __init__(self, broker: LocalBroker, group: str, member_id: str, topics: Collection[str], clock: Clock) -> None:
        """Is no member yet.

        Args:
            broker: Has the log and the group.
            group: Name of the group.
            member_id: Tells it from the members before and after it.
            topics: What is read.
            clock: Of the process.
        """
        self.member_id = member_id
        self.generation = NO_GENERATION
        self._broker = broker
        self._group = group
        self._clock = clock
        self._ownership: Ownership | None = None
        self._loop = asyncio.get_running_loop()
        self._reading = {TP(topic, 0): _Reading() for topic in topics}
        self._tellers = {tp.topic: partial(self._loop.call_soon_threadsafe, self._fetch, tp) for tp in self._reading}
        self._is_assigned = self._is_listening = False
        self._timers: list[asyncio.Task[None]] = []

    # ---- life

    def join(self, ownership: Ownership, tick_seconds: float, commit_seconds: float) -> None:
        """Takes the group from whoever had it, and begins to claim."""
        self._ownership = ownership
        self._timers = [
            asyncio.create_task(self._tick(ownership, tick_seconds), name=f"{self._group} tick"),
            asyncio.create_task(self._commit(ownership, commit_seconds), name=f"{self._group} commit"),
        ]
        for topic, tell in self._tellers.items():
            self._broker.listen(topic, tell)
        self._is_listening = True
        self.assign()

    def assign(self) -> None:
        """The group gives this member everything, once more where it had it."""
        assert self._ownership is not None  # it has joined
        self.generation = self._broker.groups[self._group].give(self.member_id)
        self._is_assigned = True
        for reading in self._reading.values():
            reading.is_paused, reading.view = True, NOTHING_SEEN
        self._ownership.assigned(self.generation)

    async def leave(self, seconds: float | None = None) -> None:
        """Lets go, with a last commit where that is still accepted.

        Args:
            seconds: So long that may take; None: as long as a rebalance waits for it.
        """
        if self._ownership is not None:
            await self._ownership.stop(seconds)
        self._is_assigned = False
        for timer in self._timers:
            timer.cancel()
        self.forget()

    def forget(self) -> None:
        """Is told no longer of what is appended: the process has ended, whichever way."""
        if self._is_listening:
            self._is_listening = False
            for topic, tell in self._tellers.items():
                self._broker.unlisten(topic, tell)

    async def _tick(self, ownership: Ownership, seconds: float) -> None:
        IN_TIMER.set(True)
        while True:
            await asyncio.sleep(seconds)
            ownership.tick_once()

    async def _commit(self, ownership: Ownership, seconds: float) -> None:
        IN_TIMER.set(True)
        while True:
            await asyncio.sleep(seconds)
            await ownership.commit_once()

    # ---- reading

    def _fetch(self, tp: TP) -> None:
        """Hands over what there is, unless the partition is paused."""
        reading = self._reading[tp]
        begin = reading.position
        if self._ownership is None or begin is None or not self._is_assigned or reading.is_paused:
            return
        now_ms = self._clock.now_ms()
        records, end = self._broker.records(tp.topic, begin, MOST_RECORDS), self._broker.end(tp.topic)
        reading.view = ReaderView(end, now_ms)
        if not records:
            return
        reading.position = begin + len(records)
        self._ownership.deliver(
            Batch(
                tp, records, begin, reading.position,
                stable_offset=end, fetched_at_ms=now_ms, seek_number=reading.seek_number,
            )
        )  # fmt: skip
        if reading.position < end:
            self._loop.call_soon(self._fetch, tp)

    # ---- what the ownership asks for

    def assignment(self) -> set[TP]:
        """As this member believes."""
        return set(self._reading) if self._is_assigned else set()

    def partition_count(self, topic: str) -> int:
        """Each topic has one."""
        return 1

    async def topic_id(self, topic: str) -> str:
        """No topic is made again."""
        return "local"

    async def committed(self, tp: TP) -> Committed | None:
        """What the group has."""
        return self._broker.groups[self._group].committed.get(tp)

    async def commits(self, topic: str) -> Mapping[int, Committed]:
        """The same for a topic."""
        committed = self._broker.groups[self._group].committed
        return {tp.partition: held for tp, held in committed.items() if tp.topic == topic}

    async def commit(self, marks: Mapping[TP, Committed], claim: Member) -> None:
        """Under the generation and member id of a claim.

        Raises:
            NotOwnerError: The group was given to somebody else since.
        """
        self._broker.groups[self._group].commit(marks, claim)

    async def log_range(self, tp: TP) -> tuple[int, int]:
        """Nothing is ever removed."""
        return 0, self._broker.end(tp.topic)

    async def offset_at(self, tp: TP, time_ms: int) -> int:
        """Offset of the first record that is not older than a time; the end of the log where there is none."""
        records = self._broker.records(tp.topic)
        return next((record.offset for record in records if record.timestamp >= time_ms), len(records))

    async def checksum_at(self, tp: TP, offset: int) -> int:
        """Of the record at that offset."""
        records = self._broker.records(tp.topic)
        return checksum_of(records[offset]) if offset < len(records) else OTHER

    async def incarnations(self, topic: str) -> dict[int, Incarnation]:
        """No log ever becomes another one."""
        return {}

    async def seek(self, tp: TP, offset: int) -> int:
        """Moves the reader.

        Raises:
            NotOwnerError: The partition is not assigned to this member.
        """
        if not self._is_assigned:
            raise NotOwnerError("not assigned")
        reading = self._reading[tp]
        reading.position = offset
        reading.seek_number += 1
        return reading.seek_number

    def pause(self, tps: Collection[TP]) -> None:
        """Hands over no more."""
        for tp in tps:
            self._reading[tp].is_paused = True

    def resume(self, tps: Collection[TP]) -> None:
        """Hands over again, soon."""
        for tp in tps:
            self._reading[tp].is_paused = False
            self._loop.call_soon(self._fetch, tp)

    def reader_view(self, tp: TP) -> tuple[ReaderView, int | None]:
        """What was seen of the end of the log, and the position."""
        return self._reading[tp].view, self._reading[tp].position
