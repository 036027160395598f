"""Ownership of partitions without a broker: a reader with a position set by the test, and processors that store their batches."""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from types import SimpleNamespace
from typing import Any, cast

from streams_app.delivery.batch import TP, Batch
from streams_app.delivery.claim import Claim
from streams_app.delivery.clocks import ReaderView, TrustedClock
from streams_app.delivery.group_consumer import Member, PartitionCommit
from streams_app.delivery.offset_metadata import OffsetAndMetadata
from streams_app.delivery.ownership import Ownership, OwnershipConfig
from streams_app.delivery.partition import Partition
from streams_app.delivery.processor import Processor
from streams_app.delivery.ranges import ServedProcessor
from streams_app.health.status import Status

TP0 = TP("t", 0)
TICK_SECONDS = 0.5
HERE = Member(1, "m")


class Taker(Processor):
    """A processor that stores its batches."""

    in_flight = 0

    def __init__(self, low: OffsetAndMetadata | None = None, in_flight: int = 0) -> None:
        self.low, self.in_flight = low, in_flight
        self.taken: list[tuple[int, int, list[int]]] = []
        self.ticks: list[float] = []

    async def claim(self, claim: Claim) -> int:
        return 0

    def deliver(self, batch: Batch) -> None:
        self.taken.append((batch.begin, batch.end, [record.offset for record in batch.records]))

    async def position_to_commit(self) -> OffsetAndMetadata | None:
        return self.low

    def tick(self, now_ms: int) -> None:
        self.ticks.append(asyncio.get_running_loop().time())

    async def revoke(self, seconds: float) -> None:
        self.taken.clear()


class StubGroupConsumer:
    """A reader with a fixed position, with only the methods used here."""

    def __init__(self, position: int | None = None) -> None:
        self.generation, self.member_id = 1, "m"
        self.position = position
        self.paused: set[TP] = set()
        self.committed: dict[TP, PartitionCommit] = {}
        self.members: list[Any] = []
        self.assigned: set[TP] = set()
        self.stable_offset: int | None = None

    def assignment(self) -> set[TP]:
        return self.assigned

    def pause(self, tps: Collection[TP]) -> None:
        self.paused |= set(tps)

    def resume(self, tps: Collection[TP]) -> None:
        self.paused -= set(tps)

    def reader_view(self, tp: TP) -> tuple[ReaderView, int | None]:
        return ReaderView(self.stable_offset, None), self.position

    async def commit(self, positions: dict[TP, PartitionCommit], claim: Member) -> None:
        self.committed |= positions
        self.members.append(claim)


class Worker:
    """An ownership with a stopped clock."""

    def __init__(
        self, group_consumer: StubGroupConsumer | None = None, now_ms: int = 0, paused: Collection[str] = (), **options: Any
    ) -> None:
        self.now_ms = now_ms
        self.group_consumer = group_consumer or StubGroupConsumer()
        self.causes: list[str] = []
        self.status = Status()
        self.clock = TrustedClock(cast("Any", SimpleNamespace(now_ms=lambda: self.now_ms, monotonic_ms=lambda: self.now_ms)))
        config = OwnershipConfig(
            self.clock, self.status, raising, lambda _, cause: self.causes.append(cause), session_ms=10_000,
            tick_seconds=TICK_SECONDS, **options,
        )  # fmt: skip
        processors: Any = SimpleNamespace(topics={"t"}, is_paused=lambda topic: topic in paused)
        self.ownership = Ownership(cast("Any", self.group_consumer), processors, config)

    def hold(self, *takers: Taker, tp: TP = TP0, progress_ms: int = 0) -> Partition:
        ownership = self.ownership
        partition = Partition(tp, HERE, cast("Any", self.group_consumer), ownership, ownership.commits, self.clock)
        partition.ranges.served = {name: ServedProcessor(taker, 10) for name, taker in zip("abc", takers, strict=False)}
        partition.ranges.begin(10, seek_number=3, monotonic_ms=progress_ms)
        self.ownership.partitions[tp] = partition
        return partition

    async def end(self) -> None:
        self.ownership.partitions.clear()
        await self.ownership.stop()


async def never(*_: Any) -> None:
    await asyncio.Event().wait()


def raising(error: BaseException) -> None:
    raise error


def batch(begin: int, end: int, seek_number: int = 3) -> Batch:
    records = [SimpleNamespace(offset=offset, timestamp=0, key=None, value=b"") for offset in range(begin, end)]
    return Batch(TP0, records, begin, end, stable_offset=end, fetched_at_ms=0, seek_number=seek_number)
