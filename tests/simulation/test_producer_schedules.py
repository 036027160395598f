"""The real producer on an aiokafka producer that rejects, delays and drops: it reports only true acknowledgements.

The loop is virtual, see :mod:`tests.helpers.virtual_loop`; a schedule is determined by its seed.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import pytest
from aiokafka.errors import KafkaError, KafkaTimeoutError, MessageSizeTooLargeError, NotLeaderForPartitionError, ProducerClosed

from streams_app.delivery.producer import OutgoingRecord
from streams_app.kafka import producer as producing
from streams_app.kafka import topic_producer
from streams_app.kafka.producer import AckedProducer
from streams_app.settings.sections import KafkaSettings
from tests.helpers.virtual_loop import VirtualLoop
from tests.simulation.mutants import Change, Mutant

SCHEDULES = 60
SENDS = 12
SEND_SECONDS = 25.0
SLACK_SECONDS = 1.0
TOPICS = ("healthy", "flaky", "missing")
MAX_RECORDS = 4
"""Maximum number of records of one batch."""


class Broker:
    """The appended records, and the fate of each request; the topic ``healthy`` never has a fault."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.log: Counter[tuple[str, bytes]] = Counter()
        self.acknowledged: set[tuple[str, bytes]] = set()
        self.counts: Counter[str] = Counter()

    def fate_of(self, topic: str) -> str:
        """Return a random fate."""
        fates = ["append"] * 5 + ["reject", "forget", "slow", "no-answer", "too-large", "not-appended"]
        fate = "append" if topic == "healthy" else self.rng.choice(fates)
        self.counts[fate] += 1
        return fate

    def append(self, topic: str, values: list[bytes]) -> None:
        """Take a batch."""
        self.log.update((topic, value) for value in values)


class Builder:
    """One batch."""

    def __init__(self) -> None:
        self.values: list[bytes] = []

    def append(self, *, timestamp: int | None, key: bytes | None, value: bytes, headers: Any) -> object | None:
        """Append a record; return None if the batch is full."""
        if len(self.values) >= MAX_RECORDS:
            return None
        self.values.append(value)
        return self


class Producer:
    """The part of ``AIOKafkaProducer`` that the product uses."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._waiting: set[asyncio.Future[None]] = set()
        self.cluster = SimpleNamespace(
            partitions_for_topic=lambda topic: None if topic == "missing" else {0, 1, 2}, unauthorized_topics=frozenset()
        )
        self.client = SimpleNamespace(cluster=self.cluster, add_topic=lambda _: None, force_metadata_update=self._update)

    async def start(self) -> None:
        """Connect, or fail if there is no broker."""
        await asyncio.sleep(self._broker.rng.uniform(0, 0.2))  # virtual time: the connection is opened

    async def _update(self) -> bool:
        await asyncio.sleep(self._broker.rng.uniform(0, 0.5))  # virtual time: the answer
        return True

    def create_batch(self) -> Builder:
        """Return an empty batch."""
        return Builder()

    async def send_batch(self, builder: Builder, topic: str, *, partition: int) -> asyncio.Future[None]:
        """Send a batch; the returned future is its acknowledgement."""
        broker, fate, loop = self._broker, self._broker.fate_of(topic), asyncio.get_running_loop()
        await asyncio.sleep(broker.rng.uniform(0, 0.1))  # virtual time: the network latency
        if fate == "reject":
            raise KafkaTimeoutError("the buffer is full")
        if fate == "no-answer":
            await asyncio.sleep(3600)  # virtual time: forever
        ack: asyncio.Future[None] = loop.create_future()
        self._waiting.add(ack)

        def arrive() -> None:
            if fate in ("too-large", "not-appended"):
                error: KafkaError = MessageSizeTooLargeError() if fate == "too-large" else NotLeaderForPartitionError()
                if not ack.done():
                    ack.set_exception(error)
                return
            broker.append(topic, builder.values)
            if fate != "forget" and not ack.done():
                broker.acknowledged.update((topic, value) for value in builder.values)
                ack.set_result(None)

        loop.call_later(broker.rng.uniform(30, 90) if fate == "slow" else broker.rng.uniform(0, 2), arrive)
        return ack

    async def end(self) -> None:
        """Let every waiting request fail."""
        for ack in self._waiting:
            if not ack.done():
                ack.set_exception(ProducerClosed())
            if not ack.cancelled():
                ack.exception()
        self._waiting.clear()


async def schedule(broker: Broker) -> list[str]:
    """Run several concurrent callers; return the violations."""
    faults: list[str] = []
    loop, rng = asyncio.get_running_loop(), broker.rng
    producer = AckedProducer(KafkaSettings(), client_id="test", send_seconds=SEND_SECONDS)

    async def caller(number: int) -> None:
        await asyncio.sleep(rng.uniform(0, 60))  # virtual time: callers start one by one
        topics = rng.sample(TOPICS, rng.randint(1, len(TOPICS)))
        records = [
            OutgoingRecord(rng.choice(topics), b"k%d" % rng.randrange(5), b"%d-%d" % (number, at))
            for at in range(rng.randint(1, 12))
        ]
        began = loop.time()
        outcomes = await producer.send(records)
        took = loop.time() - began
        if took > SEND_SECONDS + SLACK_SECONDS:
            faults.append(f"a send took {took:.1f} s")
        if len(outcomes) != len(records):
            faults.append(f"{len(outcomes)} outcomes of {len(records)} records")
        for record, outcome in zip(records, outcomes, strict=False):
            entry = record.topic, record.value or b""
            if outcome is None and entry not in broker.acknowledged:
                faults.append(f"{entry} is not acknowledged")
            if outcome is not None and record.topic == "healthy":
                faults.append(f"{entry} failed although its topic has no fault: {outcome!r}")
            if outcome is None and broker.log[entry] > 2:
                faults.append(f"{entry} was appended {broker.log[entry]} times in one send")

    await asyncio.gather(*(caller(number) for number in range(SENDS)))
    await producer.stop()
    return faults


async def _end(producer: Producer) -> None:
    await producer.end()


def faults_of(seed: int) -> tuple[list[str], Broker]:
    broker = Broker(random.Random(seed))
    with (
        patch.object(producing, "AIOKafkaProducer", lambda **_: Producer(broker)),
        patch.object(topic_producer, "end", _end),
        asyncio.Runner(loop_factory=VirtualLoop) as runner,
    ):
        return runner.run(schedule(broker)), broker


def test_reported_acknowledgements_are_true_and_no_send_waits_forever_or_for_another_topic() -> None:
    counts: Counter[str] = Counter()
    for seed in range(SCHEDULES):
        faults, broker = faults_of(seed)
        counts.update(broker.counts)

        assert faults == [], f"seed {seed}"
    assert {"append", "reject", "forget", "slow", "no-answer", "too-large", "not-appended"} == counts.keys()


TOPIC = "kafka.topic_producer:TopicProducer"
NOT_LATE = Change(f"{TOPIC}.send", "= [late] * len(records)", "= [None] * len(records)")
NO_ACK = Change(f"{TOPIC}._send_in_order", "ack.add_done_callback(", "(lambda _: None)(")
UNSENT = Change(f"{TOPIC}._send_in_order", "for unsent in queue[number:]:", "for unsent in queue[:0]:")
SHARED = "for position, outcome in zip(positions, answer, strict=True):"
FIRST_FAULT = "next((one for found in answers for one in found if one), None)"

BROKEN = (
    Mutant("acknowledged without waiting", "", (), (NOT_LATE, NO_ACK)),
    Mutant("no answer counts as an acknowledgement", "", (), (NOT_LATE,)),
    Mutant("unsent batches count as acknowledged", "", (), (NOT_LATE, UNSENT)),
    Mutant(
        "an error counts as an acknowledgement",
        "",
        (),
        (Change(f"{TOPIC}._settle", "outcomes[position] = outcome", "outcomes[position] = None"),),
    ),
    Mutant(
        "the deadline is too late",
        "",
        (),
        (Change(f"{TOPIC}.send", "asyncio.timeout(self._send_seconds)", "asyncio.timeout(3 * self._send_seconds)"),),
    ),
    Mutant(
        "all topics fail if one fails",
        "",
        (),
        (
            Change(
                "kafka.producer:AckedProducer.send", SHARED, f"for position, outcome in ((at, {FIRST_FAULT}) for at in positions):"
            ),
        ),
    ),
)


@pytest.mark.parametrize("mutant", BROKEN, ids=lambda mutant: mutant.name)
def test_broken_producer_is_caught(mutant: Mutant) -> None:
    with mutant.applied():
        assert any(faults_of(seed)[0] for seed in range(SCHEDULES))
