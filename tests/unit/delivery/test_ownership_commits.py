"""What is committed for a partition, and with which group membership."""

from __future__ import annotations

import asyncio
import logging
from typing import Any, cast
from unittest.mock import AsyncMock, patch

import pytest
from aiokafka.errors import KafkaConnectionError

from streams_app.delivery.batch import TP
from streams_app.delivery.commits import Commits
from streams_app.delivery.group_consumer import InDoubtError, Member, NotOwnerError, PartitionCommit
from streams_app.delivery.offset_metadata import OffsetAndMetadata
from streams_app.reported_backoff import REPORT_EVERY_MS
from tests.helpers.delivery.ownership import HERE, TP0, Taker, Worker, never
from tests.helpers.manual_clock import ManualClock
from tests.helpers.waiting import wait_until


@pytest.mark.parametrize(
    ("lows", "offset", "metadata"),
    [
        pytest.param([7, 30], 7, '{"a":7,"b":30,"c":90}', id="the lowest of all"),
        pytest.param([2, 30], 4, '{"a":4,"b":30,"c":90}', id="no position goes back"),
        pytest.param([7, None], None, "", id="one processor has no state"),
        pytest.param([None, 30], None, "", id="the other has none"),
    ],
)
async def test_partition_is_not_committed_until_every_processor_has_state(
    lows: list[int | None], offset: int | None, metadata: str
) -> None:
    worker = Worker()
    partition = worker.hold(*(Taker(None if low is None else OffsetAndMetadata(low)) for low in lows))
    partition.offsets.by_name = {"a": OffsetAndMetadata(4), "b": OffsetAndMetadata(4), "c": OffsetAndMetadata(90)}
    await worker.ownership.commit_once()
    found = worker.group_consumer.committed.get(TP0)

    assert (offset, metadata) == ((found.offset, found.metadata) if found else (None, ""))
    await worker.end()


async def test_new_processors_are_committed_together() -> None:
    worker = Worker()
    partition = worker.hold(Taker(), Taker())
    partition.offsets.first_commit.expect({"a", "b"})
    first = asyncio.create_task(worker.ownership.commits.commit_now(partition, "a", OffsetAndMetadata(100)))
    await asyncio.sleep(0)  # a commit that did not wait for the others would be sent in this turn
    alone = dict(worker.group_consumer.committed)
    await worker.ownership.commits.commit_now(partition, "b", OffsetAndMetadata(5))
    await first

    assert ({}, {TP0: PartitionCommit(5, '{"a":100,"b":5}')}) == (alone, worker.group_consumer.committed)
    await worker.end()


async def test_group_with_an_unresponsive_broker_does_not_block_others() -> None:
    silent, other = Worker(), Worker()
    silent.group_consumer.commit = never  # type: ignore[method-assign,assignment]  # an unavailable broker
    for worker in (silent, other):
        worker.hold(Taker(OffsetAndMetadata(12)))
    waiting = asyncio.create_task(silent.ownership.commit_once())
    await asyncio.sleep(0)  # its commit begins
    await other.ownership.commit_once()

    assert not waiting.done()
    assert {TP0: PartitionCommit(12, '{"a":12}')} == other.group_consumer.committed
    waiting.cancel()
    for worker in (silent, other):
        await worker.end()


async def test_commit_uses_the_member_of_its_claim_after_a_rejoin() -> None:
    worker = Worker()
    worker.hold(Taker(OffsetAndMetadata(12)))
    worker.group_consumer.generation, worker.group_consumer.member_id = 2, "joined anew"
    await worker.ownership.commit_once()

    assert [HERE] == worker.group_consumer.members
    await worker.end()


async def test_partition_released_while_its_offsets_are_read_is_not_committed() -> None:
    worker, taker = Worker(), Taker(OffsetAndMetadata(12))
    partition = worker.hold(taker)

    async def position() -> OffsetAndMetadata:
        partition.is_over = True
        return OffsetAndMetadata(12)

    taker.position_to_commit = position  # type: ignore[method-assign]  # released in the meantime
    await worker.ownership.commit_once()

    assert {} == worker.group_consumer.committed
    await worker.end()


# Commits that a processor awaits


class Requests(list[dict[TP, PartitionCommit]]):
    """The requests that the broker receives; it answers none before `may_answer` is set."""

    def __init__(self, worker: Worker) -> None:
        super().__init__()
        self.may_answer = asyncio.Event()
        worker.group_consumer.commit = self._commit  # type: ignore[method-assign]  # records each request

    async def _commit(self, positions: dict[TP, PartitionCommit], claim: Member) -> None:
        self.append(positions)
        await self.may_answer.wait()


async def test_commits_waiting_for_one_in_flight_are_merged() -> None:
    worker = Worker()
    partitions = {tp: worker.hold(Taker(), tp=tp) for tp in (TP("t", number) for number in range(4))}
    requests = Requests(worker)
    commits = [
        asyncio.ensure_future(worker.ownership.commits.commit_now(one, "a", OffsetAndMetadata(7, f"{tp}")))
        for tp, one in partitions.items()
    ]
    await wait_until(lambda: len(requests) > 0, 60, "the first one is in flight")
    requests.may_answer.set()
    await asyncio.gather(*commits)

    assert [{TP("t", 0)}, {TP("t", number) for number in (1, 2, 3)}] == [set(request) for request in requests]
    assert {tp: PartitionCommit(7, f'{{"a":7,"@notes":{{"a":"{tp}"}}}}') for tp in partitions} == requests[0] | requests[1]
    await worker.end()


async def test_commit_contains_updates_made_while_the_previous_one_was_in_flight() -> None:
    worker = Worker()
    partition = worker.hold(Taker())
    requests = Requests(worker)
    first = asyncio.ensure_future(worker.ownership.commits.commit_now(partition, "a", OffsetAndMetadata(7, "one")))
    await wait_until(lambda: len(requests) > 0, 60, "the first one is in flight")
    others = [
        asyncio.ensure_future(worker.ownership.commits.commit_now(partition, "a", OffsetAndMetadata(7, metadata)))
        for metadata in ("two", "three")
    ]
    await asyncio.sleep(0)  # both wait
    requests.may_answer.set()
    await asyncio.gather(first, *others)

    assert [[PartitionCommit(7, f'{{"a":7,"@notes":{{"a":"{metadata}"}}}}')] for metadata in ("one", "three")] == [
        list(request.values()) for request in requests
    ]
    await worker.end()


async def test_commit_failure_is_raised_to_every_waiting_caller() -> None:
    worker = Worker()
    partitions = [worker.hold(Taker(), tp=TP("t", number)) for number in range(2)]

    async def reject(positions: dict[TP, PartitionCommit], claim: Member) -> None:
        raise NotOwnerError("another generation")

    worker.group_consumer.commit = reject  # type: ignore[method-assign]  # accepts nothing
    waiting = [worker.ownership.commits.commit_now(one, "a", OffsetAndMetadata(7)) for one in partitions]
    outcomes = await asyncio.gather(*waiting, return_exceptions=True)

    assert [NotOwnerError, NotOwnerError] == [type(outcome) for outcome in outcomes]
    assert [None, None] == [one.offsets.committed for one in partitions]
    await worker.end()


async def test_partitions_claimed_before_and_after_a_rejoin_are_committed_separately() -> None:
    worker = Worker()
    before, after = (worker.hold(Taker(), tp=TP("t", number)) for number in range(2))
    after.member = Member(2, "joined anew")
    await asyncio.gather(*(worker.ownership.commits.commit_now(one, "a", OffsetAndMetadata(7)) for one in (before, after)))

    assert [HERE, Member(2, "joined anew")] == worker.group_consumer.members
    await worker.end()


class UnansweredCommits(list[PartitionCommit]):
    """The commits that the broker has stored, in order; the second one gets no answer."""

    def __init__(self, worker: Worker) -> None:
        super().__init__()
        worker.group_consumer.commit = self._commit  # type: ignore[method-assign]  # records each commit

    async def _commit(self, positions: dict[TP, PartitionCommit], claim: Member) -> None:
        self.extend(positions.values())
        if len(self) == 2:
            raise KafkaConnectionError("the reply was lost")


METADATA = ("one", "two", "one")


async def test_unanswered_commit_is_resent_before_the_next_one() -> None:
    worker, taker = Worker(), Taker()
    worker.hold(taker)
    stored = UnansweredCommits(worker)
    for metadata in METADATA:
        taker.low = OffsetAndMetadata(7, metadata)
        await worker.ownership.commit_once()

    assert [PartitionCommit(7, f'{{"a":7,"@notes":{{"a":"{metadata}"}}}}') for metadata in METADATA] == stored
    await worker.end()


async def test_unanswered_commit_blocks_all_but_the_last_commit_if_a_late_commit_is_harmful() -> None:
    doubts: list[BaseException] = []
    worker = Worker(on_doubt=doubts.append)
    partition = worker.hold(Taker())
    stored = UnansweredCommits(worker)
    outcomes: list[BaseException | None] = []
    for metadata in METADATA:
        outcomes += await asyncio.gather(
            worker.ownership.commits.commit_now(partition, "a", OffsetAndMetadata(7, metadata)), return_exceptions=True
        )
    partition.ranges.served["a"].processor.low = OffsetAndMetadata(8)  # type: ignore[attr-defined]  # it is a Taker
    await worker.ownership.revoked([TP0])

    assert [type(None), KafkaConnectionError, NotOwnerError] == [type(outcome) for outcome in outcomes]
    assert [InDoubtError] == [type(doubt) for doubt in doubts]
    assert [7, 7, 8] == [committed.offset for committed in stored]
    await worker.end()


async def test_rejoined_member_commits_after_an_unanswered_commit() -> None:
    doubts: list[BaseException] = []
    worker = Worker(on_doubt=doubts.append)
    partition = worker.hold(Taker())
    stored = UnansweredCommits(worker)
    for metadata in METADATA[:2]:
        await asyncio.gather(
            worker.ownership.commits.commit_now(partition, "a", OffsetAndMetadata(7, metadata)), return_exceptions=True
        )
    partition.member = Member(2, "joined anew")
    await worker.ownership.commits.commit_now(partition, "a", OffsetAndMetadata(7, METADATA[2]))

    assert [] == doubts
    assert 3 == len(stored)
    await worker.end()


async def test_commit_cancelled_in_flight_counts_as_unanswered() -> None:
    doubts: list[BaseException] = []
    worker = Worker(on_doubt=doubts.append)
    partition = worker.hold(Taker())
    requests = Requests(worker)
    commit = asyncio.ensure_future(worker.ownership.commits.commit_now(partition, "a", OffsetAndMetadata(7)))
    await wait_until(lambda: len(requests) > 0, 5, "it is in flight")
    commit.cancel()
    await asyncio.wait([commit])
    with pytest.raises(NotOwnerError):
        await worker.ownership.commits.commit_now(partition, "a", OffsetAndMetadata(8))

    assert [InDoubtError] == [type(doubt) for doubt in doubts]
    assert 1 == len(requests)
    await worker.end()


async def test_unanswered_commit_is_resent_for_a_waiting_processor() -> None:
    worker = Worker()
    partition = worker.hold(Taker())
    stored = UnansweredCommits(worker)
    outcomes: list[BaseException | None] = []
    for metadata in METADATA:
        outcomes += await asyncio.gather(
            worker.ownership.commits.commit_now(partition, "a", OffsetAndMetadata(7, metadata)), return_exceptions=True
        )

    assert [type(None), KafkaConnectionError, type(None)] == [type(outcome) for outcome in outcomes]
    assert [PartitionCommit(7, f'{{"a":7,"@notes":{{"a":"{metadata}"}}}}') for metadata in METADATA] == stored
    await worker.end()


async def test_released_partition_commits_until_its_processors_have_ended() -> None:
    worker, offsets = Worker(), []

    class Ending(Taker):
        async def revoke(self, seconds: float) -> None:
            await worker.ownership.commits.commit_now(partition, "a", OffsetAndMetadata(7))
            offsets.append(worker.group_consumer.committed[TP0].offset)

    partition = worker.hold(Ending(OffsetAndMetadata(8)))
    await worker.ownership.revoked([TP0])
    offsets.append(worker.group_consumer.committed[TP0].offset)
    with pytest.raises(NotOwnerError):
        await worker.ownership.commits.commit_now(partition, "a", OffsetAndMetadata(9))

    assert [7, 8] == offsets
    await worker.end()


async def test_commits_that_fail_are_reported_at_first_and_every_ten_minutes_until_they_work(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, "streams_app.delivery.commits")
    worker = Worker()
    partition = worker.hold(Taker(OffsetAndMetadata(12)))
    clock = ManualClock()
    commits = Commits(cast("Any", worker.group_consumer), clock)
    with patch.object(worker.group_consumer, "commit", AsyncMock(side_effect=OSError("away"))):
        for ms in (0, 5_000, REPORT_EVERY_MS):
            clock.advance_ms(ms)
            await commits.commit_once([partition])
    for _ in range(2):
        await commits.commit_once([partition])

    failed = "commit failed, retrying error=OSError('away')"
    assert [failed, failed, "commits work again"] == caplog.messages
    assert {TP0: PartitionCommit(12, '{"a":12}')} == worker.group_consumer.committed
    await worker.end()


async def test_failing_commits_end_with_a_round_that_has_nothing_to_commit(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "streams_app.delivery.commits")
    worker = Worker()
    taker = Taker(OffsetAndMetadata(12))
    partition = worker.hold(taker)
    commits = Commits(cast("Any", worker.group_consumer), ManualClock())
    await commits.commit_once([partition])
    for _ in range(2):
        with patch.object(taker, "position_to_commit", AsyncMock(side_effect=OSError("Redis is away"))):
            await commits.commit_once([partition])
            await commits.commit_once([])
        await commits.commit_once([partition])

    failed = "commit failed, retrying error=OSError('Redis is away')"
    assert [failed, "commits work again"] * 2 == caplog.messages
    await worker.end()
