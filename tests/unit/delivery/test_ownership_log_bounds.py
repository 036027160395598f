"""The log of a partition changes while it is claimed: the topic is recreated, or an older copy is restored."""

from __future__ import annotations

import pytest

from streams_app.delivery.batch import TP
from streams_app.delivery.fingerprints import Incarnation, checksum_of
from streams_app.delivery.ownership import CHECK_LOGS_MS
from tests.helpers.delivery.ownership import TP0, StubGroupConsumer, Taker, Worker, batch

CLAIMED = Incarnation("one", 4)
READ = batch(10, 12)


class Broker(StubGroupConsumer):
    """Answers with scripted log bounds, and with the records that are still in the log."""

    now = CLAIMED
    replaced_from = 1_000
    asked = 0

    async def incarnations(self, topic: str) -> dict[int, Incarnation]:
        return {TP0.partition: self.now}

    async def checksum_at(self, tp: TP, offset: int) -> int:
        self.asked += 1
        return checksum_of(READ.records[offset - READ.begin]) + (offset >= self.replaced_from)


@pytest.mark.parametrize(
    ("now", "replaced_from", "causes", "is_read"),
    [
        (CLAIMED, 11, [], False),
        (Incarnation("another", 0), 1_000, ["log"], False),
        (Incarnation("one", 5), 11, ["log"], True),
        (Incarnation("one", 5), 1_000, [], True),
    ],
    ids=["nothing has changed", "recreated", "went back", "another leader"],
)
async def test_partition_is_reclaimed_if_its_log_was_replaced(
    now: Incarnation, replaced_from: int, causes: list[str], is_read: bool
) -> None:
    group_consumer = Broker()
    worker = Worker(group_consumer)
    partition = worker.hold(Taker())
    partition.incarnation = CLAIMED
    worker.ownership.deliver(READ)
    group_consumer.now, group_consumer.replaced_from, worker.now_ms = now, replaced_from, CHECK_LOGS_MS
    await worker.ownership.commit_once()

    assert (causes, is_read) == (worker.causes, group_consumer.asked > 0)
    await worker.end()
