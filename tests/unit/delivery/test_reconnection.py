"""A batch fetched over a new connection is delivered after the log has been compared with the records that were read."""

from __future__ import annotations

import asyncio

import pytest
from aiokafka.errors import KafkaConnectionError

from streams_app.delivery import reconnection
from streams_app.delivery.batch import TP, Batch
from streams_app.delivery.fingerprints import checksum_of
from tests.helpers.delivery.ownership import StubGroupConsumer, Taker, Worker, batch
from tests.helpers.waiting import wait_until

LOG = batch(10, 20)
READ = batch(10, 12)


class Broker(StubGroupConsumer):
    """Answers whether the records that were read are still in the log, once `may_answer` is set."""

    def __init__(self) -> None:
        super().__init__()
        self.is_same, self.asked, self.failures = True, 0, 0
        self.may_answer = asyncio.Event()

    async def checksum_at(self, tp: TP, offset: int) -> int:
        self.asked += 1
        await self.may_answer.wait()
        if self.failures:
            self.failures -= 1
            raise KafkaConnectionError("away")
        return checksum_of(LOG.records[offset - LOG.begin]) + (not self.is_same)


def batch_over(connection: object, begin: int, end: int) -> Batch:
    made = batch(begin, end)
    made.connection = connection
    return made


async def reading(broker: Broker) -> tuple[Worker, Taker]:
    """Return a worker that has read a batch over the connection "first"."""
    worker, taker = Worker(broker), Taker()
    worker.hold(taker)
    worker.ownership.deliver(batch_over("first", READ.begin, READ.end))
    await wait_until(lambda: taker.taken, 10, "the first batch, before which nothing was read")
    assert 0 == broker.asked
    return worker, taker


async def test_batch_over_the_same_connection_is_not_compared() -> None:
    broker = Broker()
    worker, taker = await reading(broker)
    worker.ownership.deliver(batch_over("first", 12, 14))

    assert ([(10, 12), (12, 14)], 0) == ([taken[:2] for taken in taker.taken], broker.asked)
    await worker.end()


async def test_batches_over_a_new_connection_wait_in_order_with_their_reader_paused_until_the_log_is_verified() -> None:
    broker = Broker()
    worker, taker = await reading(broker)
    tp = READ.tp
    worker.ownership.deliver(batch_over("second", 12, 14))
    worker.ownership.deliver(batch_over("second", 14, 15))
    await wait_until(lambda: broker.asked, 10, "the comparison")
    assert ([(10, 12)], {tp}) == ([taken[:2] for taken in taker.taken], broker.paused)
    # Fetched after the comparison began, so the comparison does not cover it.
    worker.ownership.deliver(batch_over("third", 15, 16))
    broker.may_answer.set()
    await wait_until(lambda: len(taker.taken) == 4, 10, "all batches")

    assert [(10, 12), (12, 14), (14, 15), (15, 16)] == [taken[:2] for taken in taker.taken]
    assert (2, set(), []) == (broker.asked, broker.paused, worker.causes)
    await worker.end()


async def test_batches_over_a_new_connection_are_dropped_and_the_partition_is_claimed_if_the_log_went_back() -> None:
    broker = Broker()
    worker, taker = await reading(broker)
    broker.is_same = False
    broker.may_answer.set()
    taken = list(taker.taken)
    worker.ownership.deliver(batch_over("second", 12, 14))
    await wait_until(lambda: worker.causes, 10, "the claim")

    assert (["log"], taken[:1]) == (worker.causes, taken)
    assert READ.tp not in worker.ownership.partitions
    await worker.end()


async def test_comparison_is_repeated_until_the_broker_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reconnection, "RETRY_SECONDS", 0.01)
    broker = Broker()
    worker, taker = await reading(broker)
    broker.failures = 2
    broker.may_answer.set()
    worker.ownership.deliver(batch_over("second", 12, 14))
    await wait_until(lambda: len(taker.taken) == 2, 10, "the batch")

    assert 3 == broker.asked
    await worker.end()


async def test_unexpected_error_of_the_comparison_reaches_the_exception_handler() -> None:
    broker = Broker()
    worker, _ = await reading(broker)
    errors: list[BaseException] = []
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: errors.append(context["exception"]))
    broker.checksum_at = None  # type: ignore[method-assign, assignment]
    worker.ownership.deliver(batch_over("second", 12, 14))
    await wait_until(lambda: errors, 10, "the error")

    assert [TypeError] == [type(error) for error in errors]
    await worker.end()
