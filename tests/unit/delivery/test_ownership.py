"""What a partition accepts from its reader, and when it is claimed again."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from itertools import islice
from types import SimpleNamespace
from typing import Any

import pytest

from streams_app.delivery.batch import TP, Batch
from streams_app.delivery.claim import LogBounds
from streams_app.delivery.claim_retry import LONG_AGO_MS, ReclaimBackoff
from streams_app.delivery.group_consumer import PartitionCommit
from streams_app.delivery.offset_metadata import OffsetAndMetadata
from streams_app.delivery.ownership import CLAIM_SECONDS
from streams_app.delivery.partition import PartitionClaim
from streams_app.delivery.processor import NO_OFFSET
from streams_app.delivery.ranges import HOLE, IDLE, IDLE_MS, RESET, SLOW_MS, Ranges, ServedProcessor
from streams_app.health.progress import Progress
from tests.helpers.delivery.ownership import TICK_SECONDS, TP0, StubGroupConsumer, Taker, Worker, batch, never
from tests.helpers.virtual_loop import in_no_time
from tests.helpers.waiting import wait_until

# Progress


class OwnProgressTaker(Taker):
    """A processor with progress of its own."""

    def progress(self, monotonic_ms: int) -> Progress | None:
        return Progress(3, 4, "mover", "it has one thing left to do")


def test_processor_with_its_own_progress_is_watched_beside_its_partition() -> None:
    worker = Worker()
    worker.hold(Taker(), OwnProgressTaker())
    worker.group_consumer.assigned = {TP0}

    assert {TP0: (10, 15), ("b", TP0): (3, 4)} == {key: one[:2] for key, one in worker.ownership.progress({TP0: 15}, 0).items()}


def test_partition_end_falls_back_to_the_end_seen_by_the_last_fetch() -> None:
    worker = Worker()
    worker.hold(Taker())
    worker.group_consumer.assigned, worker.group_consumer.stable_offset = {TP0}, 12

    assert [(10, 12), (10, 15)] == [worker.ownership.progress(ends, 0)[TP0][:2] for ends in ({}, {TP0: 15})]


def test_paused_partition_is_not_watched() -> None:
    worker = Worker(paused={"t"})
    worker.group_consumer.assigned = {TP0}

    assert {} == worker.ownership.progress({TP0: 15}, 0)


# Delivered batches


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
def test_partition_delivers_only_the_next_range(delivered: Batch, taken: list[Any], cause: str | None) -> None:
    taker = Taker()
    ranges = Ranges({"a": ServedProcessor(taker, 10)})
    ranges.begin(10, 3, 0)

    assert (cause, taken) == (ranges.deliver(delivered, 0), taker.taken)


def test_each_processor_receives_only_the_offsets_it_lacks() -> None:
    behind, ahead, reads_nothing = Taker(), Taker(), Taker()
    ranges = Ranges(
        {"a": ServedProcessor(behind, 10), "b": ServedProcessor(ahead, 13), "c": ServedProcessor(reads_nothing, NO_OFFSET)}
    )
    ranges.begin(10, 3, 0)
    for begin, end in ((10, 12), (12, 15), (15, 16)):
        assert None is ranges.deliver(batch(begin, end), 0)

    assert [(10, 12, [10, 11]), (12, 15, [12, 13, 14]), (15, 16, [15])] == behind.taken
    assert [(13, 15, [13, 14]), (15, 16, [15])] == ahead.taken
    assert [] == reads_nothing.taken


def test_partition_progress_is_that_of_the_slowest_processor() -> None:
    slow, fast = Taker(in_flight=4), Taker()
    ranges = Ranges({"a": ServedProcessor(slow, 20), "b": ServedProcessor(fast, 20)})

    assert (16, 4) == (ranges.done, ranges.in_flight)


# Position of the idle reader


@pytest.mark.parametrize(
    ("position", "idle_ms", "in_flight", "cause"),
    [
        pytest.param(10, IDLE_MS + 1, 0, None, id="nothing to read"),
        pytest.param(12, IDLE_MS, 0, None, id="ahead, not for long"),
        pytest.param(12, IDLE_MS + 1, 0, IDLE, id="ahead, and nothing comes"),
        pytest.param(12, IDLE_MS + 1, 1, None, id="ahead, and what came is not applied"),
        pytest.param(4, 0, 0, RESET, id="thrown back, and nothing comes"),
        pytest.param(None, IDLE_MS + 1, 0, None, id="no position yet"),
    ],
)
async def test_misplaced_reader_position_is_detected_while_idle(
    position: int | None, idle_ms: int, in_flight: int, cause: str | None
) -> None:
    worker = Worker(StubGroupConsumer(position), idle_ms)
    worker.hold(Taker(in_flight=in_flight), Taker())
    worker.ownership.tick_once()
    await asyncio.sleep(0)  # let the tasks that the tick has started run

    assert ([cause, cause] if cause else []) == worker.causes
    assert ({TP0} if cause else set()) == worker.group_consumer.paused
    await worker.end()


def test_partition_timers_are_spread_over_a_tick_and_new_partitions_run_at_once() -> None:
    takers = [Taker() for _ in range(4)]

    async def three_ticks() -> None:
        worker = Worker()
        partitions = {TP("t", number): worker.hold(taker, tp=TP("t", number)) for number, taker in enumerate(takers)}
        for count in (2, 4, 4):
            worker.ownership.partitions = dict(islice(partitions.items(), count))
            worker.ownership.tick_once()
            await asyncio.sleep(TICK_SECONDS)  # in virtual time
        await worker.end()

    in_no_time(three_ticks())
    expected: list[list[float]] = [[0, 0, 1, 2], [0, 0.5, 1.25, 2.25], [1, 1.5, 2.5], [1, 1.75, 2.75]]

    assert [[tick * TICK_SECONDS for tick in ticks] for ticks in expected] == [taker.ticks for taker in takers]


# Back-pressure


async def test_reader_of_a_partition_pauses_until_delivered_events_are_applied() -> None:
    worker, taker = Worker(), Taker()
    partition = worker.hold(taker)
    taker.in_flight = 2
    worker.ownership.deliver(batch(10, 12))
    waits = set(worker.group_consumer.paused)
    taker.in_flight = 0
    worker.ownership.on_progress(partition)

    assert ({TP0}, set()) == (waits, worker.group_consumer.paused)
    await worker.end()


@pytest.mark.parametrize(("still_ms", "in_flight"), [(0, 6), (SLOW_MS, 6), (SLOW_MS + 1, 0)])
async def test_in_flight_events_of_a_stalled_partition_do_not_count(still_ms: int, in_flight: int) -> None:
    worker = Worker(now_ms=still_ms)
    worker.hold(Taker(in_flight=6))
    worker.hold(Taker(), tp=TP("t", 1), progress_ms=still_ms)

    assert in_flight == worker.ownership.in_flight()
    await worker.end()


# Late batches


async def test_progress_reported_after_a_release_is_ignored() -> None:
    worker, taker = Worker(), Taker()
    partition = worker.hold(taker)
    claim = PartitionClaim(TP0, "a", 1, "m", None, LogBounds(0, 0, 0), 1, "", was_reset=False, _partition=partition)
    await worker.ownership.revoked([TP0])
    claim.resync("token")
    claim.on_progress()

    assert [] == worker.causes
    await worker.end()


# Repeated claims


def test_claim_that_times_out_logs_its_time_limit(caplog: pytest.LogCaptureFixture) -> None:
    async def claims() -> None:
        worker = Worker()
        silent: Any = worker.group_consumer
        silent.assigned, silent.committed = {TP0}, never
        worker.ownership.assigned(1)
        await asyncio.sleep(CLAIM_SECONDS + 1)
        await worker.end()

    in_no_time(claims())

    assert ["cannot claim yet, trying again source=t-0 error=TimeoutError('no end within 30 s')"] == caplog.messages


def test_partition_with_a_newer_commit_is_left_alone_until_the_commit_can_be_read(caplog: pytest.LogCaptureFixture) -> None:
    async def claims() -> None:
        worker = Worker()
        consumer: Any = worker.group_consumer
        consumer.assigned, consumer.committed = {TP0}, answering("@99;new")
        worker.ownership.assigned(1)
        await asyncio.sleep(60)
        assert [] == consumer.members
        assert {} == worker.ownership.progress({TP0: 15}, 0)
        assert any("left to workers of a newer version: the commit of t-0 has format 99" in why for why in not_ready(worker))

        consumer.committed = never
        await asyncio.sleep(CLAIM_SECONDS + 5)
        assert {TP0} == worker.ownership.progress({TP0: 15}, 0).keys()
        await worker.end()

    in_no_time(claims())

    assert "leaving a partition to workers of a newer version source=t-0" in caplog.messages[0]
    assert [False, True] == ["newer version" not in message for message in caplog.messages]


def answering(metadata: str) -> Callable[[TP], Coroutine[Any, Any, PartitionCommit]]:
    async def committed(_: TP) -> PartitionCommit:
        return PartitionCommit(5, metadata)

    return committed


def not_ready(worker: Worker) -> list[str]:
    return worker.status.ready_reasons()


def test_stalled_partition_is_reclaimed_at_growing_intervals() -> None:
    clock: Any = SimpleNamespace(monotonic_ms=lambda: 5_000)
    backoff = ReclaimBackoff(clock)
    stuck = [backoff.reclaimed(TP0, 9) for _ in range(6)]
    moved = [backoff.reclaimed(TP0, at)[0] for at in (10, 11, 11)]
    clock.monotonic_ms = lambda: 5_000 + LONG_AGO_MS
    later = backoff.reclaimed(TP0, 11)[0]

    assert [(0.05, 0), (0.1, 1), (0.2, 2), (0.4, 3), (0.8, 4), (1.6, 5)] == stuck
    assert [0.05, 0.05, 0.1, 0.05] == [*moved, later]


async def test_repeated_claims_of_a_partition_are_reported() -> None:
    worker = Worker()
    reported = []
    for _ in range(6):
        worker.hold(Taker())
        worker.ownership.deliver(batch(14, 15))
        reported.append(any("repeatedly" in reason for reason in worker.status.ready_reasons()))

    assert [False, False, False, False, False, True] == reported
    await worker.end()


class Slow(Taker):
    """A processor that records the time it is given for its release."""

    given: list[float] = []  # noqa: RUF012  # shared by all instances

    async def revoke(self, seconds: float) -> None:
        self.given.append(seconds)


@pytest.mark.parametrize(("options", "given"), [({}, 2.0), ({"release_seconds": 32.0}, 30.0)])
async def test_processors_may_use_the_release_time_except_that_of_the_last_commit(options: dict[str, Any], given: float) -> None:
    Slow.given.clear()
    worker = Worker(**options)
    worker.hold(Slow(OffsetAndMetadata(3)))
    await worker.ownership.revoked([TP0])

    assert [given] == Slow.given
    assert {TP0} == worker.group_consumer.committed.keys()


@pytest.mark.parametrize(("options", "given"), [({}, 0.0), ({"reclaim_seconds": 5.0}, 5.0)])
async def test_resync_gives_processors_the_requested_time(options: dict[str, Any], given: float) -> None:
    Slow.given.clear()
    worker = Worker(**options)
    partition = worker.hold(Slow())
    partition.resync("hole", "", "")
    await wait_until(lambda: len(Slow.given) > 0, 60, "it ends")

    assert [given] == Slow.given
    await worker.end()


async def test_each_assignment_is_reported_with_its_partitions() -> None:
    seen: list[set[TP]] = []
    worker = Worker(on_assigned=lambda tps: seen.append(set(tps)))
    worker.group_consumer.assigned = {TP0, TP("not ours", 0)}
    worker.ownership.assigned(1)
    worker.group_consumer.assigned = set()
    worker.ownership.assigned(2)
    await worker.end()

    assert [{TP0}, set()] == seen
