"""Every record gets the outcome of its own batch from the broker, within the deadline of its send."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest
from aiokafka import AIOKafkaProducer
from aiokafka.errors import KafkaConnectionError, KafkaError, KafkaTimeoutError, MessageSizeTooLargeError

from streams_app.delivery.producer import OutgoingRecord
from streams_app.kafka.fetching import stable_offset
from streams_app.kafka.producer import AckedProducer
from streams_app.kafka.topic_producer import OpenProducer, ProducerBatch, TopicProducer
from streams_app.settings.sections import KafkaSettings

LATE, LARGE, GONE = KafkaTimeoutError(), MessageSizeTooLargeError(), KafkaError()
NEVER = object()


class Broker:
    """Accepts a batch and answers later, never answers, or rejects the batch."""

    def __init__(self, takes: list[BaseException | None], answers: list[Any]) -> None:
        self._takes = takes
        self._answers = answers
        self.tried: list[Any] = []
        self.client = SimpleNamespace(cluster=SimpleNamespace(partitions_for_topic=lambda _: {0, 1}))

    async def send_batch(self, builder: Any, topic: str, *, partition: int) -> asyncio.Future[None]:
        at = len(self.tried)
        self.tried.append(builder)
        if error := self._takes[at]:
            raise error
        ack: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        answer = self._answers[at]
        if answer is None:
            asyncio.get_running_loop().call_soon(ack.set_result, None)
        elif answer is not NEVER:
            asyncio.get_running_loop().call_soon(ack.set_exception, answer)
        return ack


class TopicReports(dict[str, str | None]):
    """The reports about each topic."""

    def report(self, topic: str, why: str | None) -> None:
        self[topic] = why


def batches_of(buffer_locks: list[tuple[int, list[int]]]) -> list[ProducerBatch]:
    """Return batches, each with its partition and the positions of its records."""
    made = []
    for partition, positions in buffer_locks:
        batch = ProducerBatch(partition, f"batch {positions}")
        batch.positions = positions
        made.append(batch)
    return made


async def send_all(
    broker: Broker, batches: list[ProducerBatch], count: int, reports: TopicReports | None = None
) -> list[BaseException | None]:
    async def unopened() -> AIOKafkaProducer:
        raise AssertionError("nothing is opened")

    topic_reports = TopicReports() if reports is None else reports
    found: list[BaseException | None] = [GONE] * count
    topic = TopicProducer("t", unopened, topic_reports.report)
    await topic._send_all(OpenProducer(cast("AIOKafkaProducer", broker)), batches, found)
    return found


@pytest.mark.parametrize(
    ("takes", "answers", "outcomes"),
    [
        pytest.param([None] * 3, [None] * 3, [None] * 6, id="all acknowledged"),
        pytest.param([None] * 3, [None, LARGE, None], [None, LARGE, None, None, LARGE, None], id="one rejected"),
        pytest.param([None] * 3, [GONE, GONE, GONE], [GONE] * 6, id="none acknowledged"),
        pytest.param([None, LATE], [None, None], [None, LATE, LATE, None, LATE, LATE], id="the later ones are not even tried"),
        pytest.param([LATE], [None], [LATE] * 6, id="the first one finds no place"),
    ],
)
async def test_each_record_has_the_outcome_of_its_batch(
    takes: list[BaseException | None], answers: list[BaseException | None], outcomes: list[BaseException | None]
) -> None:
    broker = Broker(takes, answers)
    found = await send_all(broker, batches_of([(0, [0, 3]), (0, [1, 4]), (0, [2, 5])]), 6)

    assert outcomes == found
    assert len(takes) == len(broker.tried)


async def test_failed_partition_does_not_affect_another() -> None:
    assert [LATE, None] == await send_all(Broker([LATE, None], [None, None]), batches_of([(0, [0]), (1, [1])]), 2)


@pytest.mark.parametrize(
    ("answers", "expected"),
    [
        pytest.param([None, None], {}, id="nothing is wrong"),
        pytest.param([GONE, None], {"t": f"topic 't' does not acknowledge: {GONE}"}, id="one partition fails"),
        pytest.param([GONE, None, None], {"t": None}, id="it acknowledges again"),
        pytest.param([LARGE, None], {}, id="a record that is too large is no fault of its topic"),
    ],
)
async def test_topic_fault_is_reported_until_the_partition_acknowledges(
    answers: list[BaseException | None], expected: dict[str, str | None]
) -> None:
    reports = TopicReports()
    batches = batches_of([(0, [0]), (1, [1]), (0, [2])][: len(answers)])
    order = [0, 2, 1] if len(answers) == 3 else [0, 1]
    await send_all(Broker([None] * len(answers), [answers[at] for at in order]), batches, len(answers), reports)

    assert expected == reports


async def test_unresponsive_broker_fails_unacknowledged_records_only() -> None:
    broker = Broker([None, None], [None, NEVER])
    reports = TopicReports()

    async def opened() -> AIOKafkaProducer:
        return cast("AIOKafkaProducer", broker)

    class Packed(TopicProducer):
        def _batches(self, *_: Any) -> list[ProducerBatch]:
            return batches_of([(0, [0]), (1, [1])])

        def _end_unused(self, opened: OpenProducer) -> None:
            broker.tried.append("ended")

    topic = Packed("t", opened, reports.report, send_seconds=0.1)
    first, second = await topic.send([OutgoingRecord("t", b"a", b""), OutgoingRecord("t", b"b", b"")])

    assert (None, KafkaTimeoutError) == (first, type(second))
    assert "ended" == broker.tried[-1]
    assert "topic 't' does not acknowledge" in (reports["t"] or "")


async def test_unreachable_broker_fails_every_record() -> None:
    async def unreachable() -> AIOKafkaProducer:
        raise KafkaConnectionError("away")

    outcomes = await TopicProducer("t", unreachable, TopicReports().report).send([OutgoingRecord("t", b"a", b"")] * 2)

    assert [KafkaConnectionError] * 2 == [type(outcome) for outcome in outcomes]


async def test_every_replica_must_acknowledge_a_record_and_none_is_appended_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    opened: dict[str, Any] = {}

    def record_options(**options: Any) -> None:
        opened.update(options)
        raise KafkaConnectionError("enough is known")

    monkeypatch.setattr("streams_app.kafka.producer.AIOKafkaProducer", record_options)
    await AckedProducer(KafkaSettings(), client_id="test").send([OutgoingRecord("t", b"a", b"")])

    assert ("all", True) == (opened["acks"], opened["enable_idempotence"])


@pytest.mark.parametrize(
    ("lso", "highwater", "expected"), [(5, 9, 5), (0, 9, 0), (None, 9, 9), (-1, 9, 9), (None, None, None), (9, 9, 9)]
)
def test_readable_log_ends_at_the_last_stable_offset(lso: int | None, highwater: int | None, expected: int | None) -> None:
    assert expected == stable_offset(SimpleNamespace(lso=lso, highwater=highwater))
