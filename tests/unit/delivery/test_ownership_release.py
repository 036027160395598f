"""Release of partitions if shutdown is requested during a rebalance."""

from __future__ import annotations

import asyncio

from streams_app.delivery.offset_metadata import OffsetAndMetadata
from tests.helpers.delivery.ownership import TP0, Taker, Worker
from tests.helpers.virtual_loop import in_no_time


class Slow(Taker):
    """A processor that uses all the time it is given for its release."""

    def __init__(self, low: OffsetAndMetadata) -> None:
        super().__init__(low)
        self.given: list[float] = []
        self._until = 0.0

    async def revoke(self, seconds: float) -> None:
        self.shorten_deadline(seconds)
        while (left := self._until - asyncio.get_running_loop().time()) > 0:
            await asyncio.sleep(min(1.0, left))  # virtual time

    def shorten_deadline(self, seconds: float) -> None:
        self.given.append(seconds)
        self._until = asyncio.get_running_loop().time() + seconds


def test_stop_during_a_rebalance_finishes_after_the_last_commit_within_its_deadline() -> None:
    worker, slow = Worker(release_seconds=62.0), Slow(OffsetAndMetadata(8))

    async def schedule() -> float:
        worker.hold(slow)
        rebalance = asyncio.create_task(worker.ownership.revoked([TP0]))
        await asyncio.sleep(1)  # virtual time
        await worker.ownership.stop(22.0)
        assert 8 == worker.group_consumer.committed[TP0].offset
        await rebalance
        return asyncio.get_running_loop().time()

    assert 21 == in_no_time(schedule())
    assert [60.0, 20.0] == slow.given


def test_rebalance_during_a_stop_waits_for_the_last_commit() -> None:
    worker, slow = Worker(release_seconds=12.0), Slow(OffsetAndMetadata(8))

    async def schedule() -> None:
        worker.hold(slow)
        stop = asyncio.create_task(worker.ownership.stop(62.0))
        await asyncio.sleep(1)  # virtual time
        await worker.ownership.revoked([TP0])
        assert 8 == worker.group_consumer.committed[TP0].offset
        await stop

    in_no_time(schedule())
    assert [60.0, 10.0] == slow.given


def test_stopping_worker_claims_nothing() -> None:
    worker = Worker()
    worker.group_consumer.assigned = {TP0}

    async def schedule() -> None:
        worker.hold(Slow(OffsetAndMetadata(8)))
        stop = asyncio.create_task(worker.ownership.stop(22.0))
        await asyncio.sleep(1)  # virtual time
        worker.ownership.assigned(2)
        await stop

    in_no_time(schedule())
    assert not any("claiming" in reason for reason in worker.status.ready_reasons())
