"""What is committed for a partition, and under whose membership."""

from __future__ import annotations

import asyncio

import pytest

from streams_app.delivery.commits import Committed
from streams_app.delivery.processor import Mark
from tests.ownership import HERE, TP0, Taker, Worker, never


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
    await asyncio.sleep(0)  # one that does not wait for the other commits in this turn
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
    await asyncio.sleep(0)  # its commit begins
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
