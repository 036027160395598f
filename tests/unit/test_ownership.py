"""What a partition takes from its reader, when it is claimed again, and what is committed for it."""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from itertools import islice
from types import SimpleNamespace
from typing import Any, cast

import pytest

from streams_app.delivery.batch import TP, Batch
from streams_app.delivery.commits import Committed, Membership
from streams_app.delivery.ownership import Ownership
from streams_app.delivery.partition import Partition
from streams_app.delivery.partition_clock import ReaderView
from streams_app.delivery.patience import LONG_AGO_MS, Stumbling
from streams_app.delivery.processor import READS_NOTHING, Claim, Edges, Mark
from streams_app.delivery.ranges import HOLE, IDLE, IDLE_MS, RESET, STUCK_MS, Ranges, Served
from streams_app.delivery.surroundings import Surroundings
from streams_app.delivery.trusted_clock import TrustedClock
from streams_app.status import Status
from tests.virtual_loop import VirtualLoop

TP0 = TP("t", 0)
TICK_SECONDS = 0.5
HERE = Membership(1, "m")


class Taker:
    """A processor that keeps what it is given."""

    def __init__(self, low: Mark | None = None, held: int = 0) -> None:
        self.low, self.held = low, held
        self.taken: list[tuple[int, int, list[int]]] = []
        self.ticks: list[float] = []

    async def claim(self, claim: Claim) -> int:
        return 0

    def deliver(self, batch: Batch) -> None:
        self.taken.append((batch.begin, batch.end, [record.offset for record in batch.records]))

    async def mark(self) -> Mark | None:
        return self.low

    def tick(self, now_ms: int) -> None:
        self.ticks.append(asyncio.get_running_loop().time())

    async def revoke(self, seconds: float) -> None:
        self.taken.clear()


class Host:
    """A reader that stands somewhere; only what is asked for here."""

    def __init__(self, position: int | None = None) -> None:
        self.generation, self.member_id = 1, "m"
        self.position = position
        self.paused: set[TP] = set()
        self.committed: dict[TP, Committed] = {}
        self.members: list[Any] = []

    def assignment(self) -> set[TP]:
        return set()

    def pause(self, tps: Collection[TP]) -> None:
        self.paused |= set(tps)

    def resume(self, tps: Collection[TP]) -> None:
        self.paused -= set(tps)

    def reader_view(self, tp: TP) -> tuple[ReaderView, int | None]:
        return ReaderView(None, None), self.position

    async def commit(self, marks: dict[TP, Committed], claim: Membership) -> None:
        self.committed |= marks
        self.members.append(claim)


class Worker:
    """An ownership whose clock stands still."""

    def __init__(self, host: Host | None = None, now_ms: int = 0) -> None:
        self.now_ms = now_ms
        self.host = host or Host()
        self.causes: list[str] = []
        self.status = Status()
        clock = TrustedClock(cast("Any", SimpleNamespace(now_ms=lambda: self.now_ms, monotonic_ms=lambda: self.now_ms)))
        around = Surroundings(
            clock, self.status, raising, lambda _, cause: self.causes.append(cause), session_ms=10_000, tick_seconds=TICK_SECONDS
        )
        self.ownership = Ownership(cast("Any", self.host), cast("Any", SimpleNamespace(topics={"t"})), around)

    def hold(self, *takers: Taker, tp: TP = TP0, progress_ms: int = 0) -> Partition:
        partition = Partition(tp, HERE, cast("Any", self.host), self.ownership)
        partition.ranges.served = {name: Served(taker, 10) for name, taker in zip("abc", takers, strict=False)}
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
    records = [SimpleNamespace(offset=offset) for offset in range(begin, end)]
    return Batch(TP0, records, begin, end, stable_offset=end, fetched_at_ms=0, seek_number=seek_number)


# What is delivered


@pytest.mark.parametrize(
    ("delivered", "taken", "cause"),
    [
        pytest.param(batch(10, 12), [(10, 12, [10, 11])], None, id="the next range"),
        pytest.param(batch(14, 15), [], HOLE, id="a later one: one was dropped"),
        pytest.param(batch(0, 2), [], RESET, id="the client was thrown back"),
        pytest.param(batch(0, 2, seek_number=2), [], None, id="fetched before the seek"),
        pytest.param(batch(10, 12, seek_number=2), [], None, id="fetched before the seek, from where it is wanted"),
    ],
)
def test_only_the_next_range_is_delivered(delivered: Batch, taken: list[Any], cause: str | None) -> None:
    taker = Taker()
    ranges = Ranges({"a": Served(taker, 10)})
    ranges.begin(10, 3, 0)

    assert (cause, taken) == (ranges.deliver(delivered, 0), taker.taken)


def test_each_processor_is_given_what_it_does_not_have() -> None:
    behind, ahead, reads_nothing = Taker(), Taker(), Taker()
    ranges = Ranges({"a": Served(behind, 10), "b": Served(ahead, 13), "c": Served(reads_nothing, READS_NOTHING)})
    ranges.begin(10, 3, 0)
    for begin, end in ((10, 12), (12, 15), (15, 16)):
        assert None is ranges.deliver(batch(begin, end), 0)

    assert [(10, 12, [10, 11]), (12, 15, [12, 13, 14]), (15, 16, [15])] == behind.taken
    assert [(13, 15, [13, 14]), (15, 16, [15])] == ahead.taken
    assert [] == reads_nothing.taken


def test_a_partition_is_as_far_as_the_processor_that_is_furthest_behind() -> None:
    slow, fast = Taker(held=4), Taker()
    ranges = Ranges({"a": Served(slow, 20), "b": Served(fast, 20)})

    assert (16, 4) == (ranges.done, ranges.held)


# Where the reader stands in silence


@pytest.mark.parametrize(
    ("position", "idle_ms", "held", "cause"),
    [
        pytest.param(10, IDLE_MS + 1, 0, None, id="nothing to read"),
        pytest.param(12, IDLE_MS, 0, None, id="ahead, not for long"),
        pytest.param(12, IDLE_MS + 1, 0, IDLE, id="ahead, and nothing comes"),
        pytest.param(12, IDLE_MS + 1, 1, None, id="ahead, and what came is not applied"),
        pytest.param(4, 0, 0, RESET, id="thrown back, and nothing comes"),
        pytest.param(None, IDLE_MS + 1, 0, None, id="no position yet"),
    ],
)
async def test_a_reader_that_is_not_where_it_should_be_is_noticed_in_silence(
    position: int | None, idle_ms: int, held: int, cause: str | None
) -> None:
    worker = Worker(Host(position), idle_ms)
    worker.hold(Taker(held=held), Taker())
    worker.ownership.tick_once()
    await asyncio.sleep(0)

    assert ([cause, cause] if cause else []) == worker.causes
    assert ({TP0} if cause else set()) == worker.host.paused
    await worker.end()


def test_partitions_have_their_timers_one_after_the_other_within_a_tick_and_new_ones_at_once() -> None:
    takers = [Taker() for _ in range(4)]

    async def three_ticks() -> None:
        worker = Worker()
        held = {TP("t", number): worker.hold(taker, tp=TP("t", number)) for number, taker in enumerate(takers)}
        for count in (2, 4, 4):
            worker.ownership.partitions = dict(islice(held.items(), count))
            worker.ownership.tick_once()
            await asyncio.sleep(TICK_SECONDS)
        await worker.end()

    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        runner.run(three_ticks())
    expected: list[list[float]] = [[0, 0, 1, 2], [0, 0.5, 1.25, 2.25], [1, 1.5, 2.5], [1, 1.75, 2.75]]

    assert [[tick * TICK_SECONDS for tick in ticks] for ticks in expected] == [taker.ticks for taker in takers]


# Flow


async def test_the_reader_of_a_partition_waits_until_what_was_delivered_is_applied() -> None:
    worker, taker = Worker(), Taker()
    partition = worker.hold(taker)
    taker.held = 2
    worker.ownership.deliver(batch(10, 12))
    waits = set(worker.host.paused)
    taker.held = 0
    worker.ownership.applied(partition)

    assert ({TP0}, set()) == (waits, worker.host.paused)
    await worker.end()


@pytest.mark.parametrize(("still_ms", "held"), [(0, 6), (STUCK_MS, 6), (STUCK_MS + 1, 0)])
async def test_records_of_a_partition_that_does_not_move_count_for_nobody(still_ms: int, held: int) -> None:
    worker = Worker(now_ms=still_ms)
    worker.hold(Taker(held=6))
    worker.hold(Taker(), tp=TP("t", 1), progress_ms=still_ms)

    assert held == worker.ownership.held()
    await worker.end()


# What is committed


@pytest.mark.parametrize(
    ("lows", "offset", "metadata"),
    [
        pytest.param([7, 30], 7, '{"a":7,"b":30,"c":90}', id="the lowest of all"),
        pytest.param([2, 30], 4, '{"a":4,"b":30,"c":90}', id="no mark goes back"),
        pytest.param([7, None], None, "", id="one processor has no state"),
        pytest.param([None, 30], None, "", id="the other has none"),
    ],
)
async def test_nothing_is_committed_while_any_processor_has_no_state(
    lows: list[int | None], offset: int | None, metadata: str
) -> None:
    worker = Worker()
    partition = worker.hold(*(Taker(None if low is None else Mark(low)) for low in lows))
    partition.marks.marks = {"a": Mark(4), "b": Mark(4), "c": Mark(90)}
    await worker.ownership.commit_once()
    found = worker.host.committed.get(TP0)

    assert (offset, metadata) == ((found.offset, found.metadata) if found else (None, ""))
    await worker.end()


async def test_processors_that_are_new_together_are_committed_together() -> None:
    worker = Worker()
    partition = worker.hold(Taker(), Taker())
    partition.marks.beginning.expect({"a", "b"})
    first = asyncio.create_task(worker.ownership.commit_now(partition, "a", Mark(100)))
    await asyncio.sleep(0)
    alone = dict(worker.host.committed)
    await worker.ownership.commit_now(partition, "b", Mark(5))
    await first

    assert ({}, {TP0: Committed(5, '{"a":100,"b":5}')}) == (alone, worker.host.committed)
    await worker.end()


async def test_a_group_whose_broker_does_not_answer_holds_up_no_other() -> None:
    silent, other = Worker(), Worker()
    silent.host.commit = never  # type: ignore[method-assign,assignment]  # a broker that is away
    for worker in (silent, other):
        worker.hold(Taker(Mark(12)))
    waiting = asyncio.create_task(silent.ownership.commit_once())
    await asyncio.sleep(0)
    await other.ownership.commit_once()

    assert not waiting.done()
    assert {TP0: Committed(12, '{"a":12}')} == other.host.committed
    waiting.cancel()
    for worker in (silent, other):
        await worker.end()


async def test_a_commit_is_under_the_member_of_its_claim_whoever_that_is_by_now() -> None:
    worker = Worker()
    worker.hold(Taker(Mark(12)))
    worker.host.generation, worker.host.member_id = 2, "joined anew"
    await worker.ownership.commit_once()

    assert [HERE] == worker.host.members
    await worker.end()


async def test_a_partition_that_was_let_go_while_its_marks_were_read_is_not_committed() -> None:
    worker, taker = Worker(), Taker(Mark(12))
    partition = worker.hold(taker)

    async def mark() -> Mark:
        partition.is_over = True
        return Mark(12)

    taker.mark = mark  # type: ignore[method-assign]  # it is let go meanwhile
    await worker.ownership.commit_once()

    assert {} == worker.host.committed
    await worker.end()


async def test_what_a_processor_says_after_its_partition_was_let_go_is_ignored() -> None:
    worker, taker = Worker(), Taker()
    partition = worker.hold(taker)
    claim = Claim(TP0, "a", 1, "m", None, Edges(0, 0, 0), 1, "", was_reset=False, _partition=partition)
    await worker.ownership.revoked([TP0])
    claim.refused("token")
    claim.applied()

    assert [] == worker.causes
    await worker.end()


# How often it is claimed again


def test_a_partition_that_gets_no_further_is_claimed_at_growing_intervals() -> None:
    clock = SimpleNamespace(monotonic_ms=lambda: 5_000)
    stumbling = Stumbling(clock)
    stuck = [stumbling.again(TP0, 9) for _ in range(6)]
    moved = [stumbling.again(TP0, at)[0] for at in (10, 11, 11)]
    clock.monotonic_ms = lambda: 5_000 + LONG_AGO_MS
    later = stumbling.again(TP0, 11)[0]

    assert [(0.05, 0), (0.1, 1), (0.2, 2), (0.4, 3), (0.8, 4), (1.6, 5)] == stuck
    assert [0.05, 0.05, 0.1, 0.05] == [*moved, later]


async def test_a_partition_that_is_claimed_again_and_again_says_so() -> None:
    worker = Worker()
    told = []
    for _ in range(6):
        worker.hold(Taker())
        worker.ownership.deliver(batch(14, 15))
        told.append(any("again and again" in reason for reason in worker.status.ready_reasons()))

    assert [False, False, False, False, False, True] == told
    await worker.end()
