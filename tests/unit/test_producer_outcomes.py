"""Every record has the outcome that the broker gave to its own batch."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest
from aiokafka import AIOKafkaProducer
from aiokafka.errors import KafkaError, KafkaTimeoutError, MessageSizeTooLargeError

from streams_app.kafka.consumer_thread import _stable_offset
from streams_app.kafka.producer import AckedProducer, _Batch
from streams_app.settings.sections import KafkaSettings

LATE, LARGE, GONE = KafkaTimeoutError(), MessageSizeTooLargeError(), KafkaError()


class Broker:
    """Takes a batch and answers later, or does not take it."""

    def __init__(self, takes: list[BaseException | None], answers: list[BaseException | None]) -> None:
        self._takes = takes
        self._answers = answers
        self.tried: list[Any] = []

    async def send_batch(self, builder: Any, topic: str, *, partition: int) -> asyncio.Future[None]:
        at = len(self.tried)
        self.tried.append(builder)
        if error := self._takes[at]:
            raise error
        ack: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        answer = self._answers[at]
        if answer is None:
            asyncio.get_running_loop().call_soon(ack.set_result, None)
        else:
            asyncio.get_running_loop().call_soon(ack.set_exception, answer)
        return ack


def producer() -> AckedProducer:
    return AckedProducer(KafkaSettings(), client_id="test")


@pytest.mark.parametrize(
    ("takes", "answers", "outcomes"),
    [
        pytest.param([None] * 3, [None] * 3, [None] * 6, id="all acknowledged"),
        pytest.param([None] * 3, [None, LARGE, None], [None, LARGE, None, None, LARGE, None], id="one refused"),
        pytest.param([None] * 3, [GONE, GONE, GONE], [GONE] * 6, id="none acknowledged"),
        pytest.param([None, LATE], [None, None], [None, LATE, LATE, None, LATE, LATE], id="the later ones are not even tried"),
        pytest.param([LATE], [None], [LATE] * 6, id="the first one finds no place"),
    ],
)
async def test_each_record_has_the_outcome_of_its_batch(
    takes: list[BaseException | None], answers: list[BaseException | None], outcomes: list[BaseException | None]
) -> None:
    batches = []
    for number in range(3):
        batch = _Batch("t", 0, f"batch {number}")
        batch.positions = [number, number + 3]
        batches.append(batch)
    broker = Broker(takes, answers)
    found: list[BaseException | None] = [GONE] * 6
    await producer()._send_all(cast("AIOKafkaProducer", broker), batches, found)

    assert outcomes == found
    assert len(takes) == len(broker.tried)


async def test_a_partition_that_fails_says_nothing_about_another() -> None:
    one, other = _Batch("t", 0, "one"), _Batch("t", 1, "other")
    one.positions, other.positions = [0], [1]
    found: list[BaseException | None] = [GONE, GONE]
    await producer()._send_all(cast("AIOKafkaProducer", Broker([LATE, None], [None, None])), [one, other], found)

    assert [LATE, None] == found


@pytest.mark.parametrize(
    ("lso", "highwater", "expected"), [(5, 9, 5), (0, 9, 0), (None, 9, 9), (-1, 9, 9), (None, None, None), (9, 9, 9)]
)
def test_what_may_be_read_ends_at_the_last_stable_offset(lso: int | None, highwater: int | None, expected: int | None) -> None:
    assert expected == _stable_offset(SimpleNamespace(lso=lso, highwater=highwater))
