"""Generated bad and odd input: accepted and dead-lettered events add up to all events, and every partition continues.

One worker meets every class. ``STREAMS_APP_TEST_CASES`` is the number of cases of a class, ``STREAMS_APP_TEST_SEED`` the seed.
Expected groups and names are taken from the bytes sent, with the JSON reader of the standard library.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import secrets
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest
import redis
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.structs import ConsumerRecord

from tests.conftest import KafkaServer, Names, RedisServer
from tests.helpers.folding.checker import event
from tests.helpers.kafka.topics import create_topics
from tests.helpers.waiting import wait_until
from tests.helpers.worker.site import write_config
from tests.helpers.worker.workers import WorkerProcess
from tests.integration.folding.odd_events import ANY, CLASSES, FEW, Case

CASES = int(os.environ.get("STREAMS_APP_TEST_CASES") or 60)
SEED = os.environ.get("STREAMS_APP_TEST_SEED") or "1"
PARTITIONS = 4
LIMIT_SECONDS = 120 + CASES / 50
# Otherwise the broker itself rejects records of the far future.
ANY_TIME = {"message.timestamp.after.max.ms": str(2**63 - 1)}
pytestmark = pytest.mark.timeout(300 + CASES / 10)

Group = tuple[str, Any]


@dataclass
class Bench:
    """One worker and its topics, for all classes."""

    bootstrap: str
    names: Names
    worker: WorkerProcess
    positions: dict[TopicPartition, int] = field(default_factory=dict)
    groups: dict[Group, set[str]] = field(default_factory=lambda: defaultdict(set))
    expected: dict[Group, set[str]] = field(default_factory=lambda: defaultdict(set))
    events: dict[str, int] = field(default_factory=dict)
    dead_letters: dict[tuple[int, int], ConsumerRecord] = field(default_factory=dict)
    sent: int = 0

    async def send(self, cases: list[Case]) -> dict[tuple[int, int], Case]:
        """Send cases to the partitions in turn, wait for the broker, and return them by partition and offset."""
        producer = AIOKafkaProducer(bootstrap_servers=self.bootstrap, acks="all", max_request_size=1_040_000)
        await producer.start()
        acks = []
        try:
            for number, case in enumerate(cases):
                acks.append(
                    await producer.send(
                        self.names.topic("events"), case.value, case.key, partition=number % PARTITIONS,
                        timestamp_ms=case.timestamp_ms, headers=list(case.headers),
                    )
                )  # fmt: skip
            where = await asyncio.gather(*acks)
        finally:
            await producer.stop()
        self.sent += len(cases)
        return {(each.partition, each.offset): case for each, case in zip(where, cases, strict=True)}

    def take(self, record: ConsumerRecord) -> None:
        """Add a folded record or a dead letter."""
        if record.topic == self.names.topic("dead"):
            headers = dict(record.headers)
            self.dead_letters.setdefault((int(headers["source-partition"]), int(headers["source-offset"])), record)
            return
        value = json.loads(record.value)
        group = value["account_id"]
        assert record.key == group.encode() if isinstance(group, str) else json.loads(record.key) == group
        self.groups[identity(group)].update(value["metrics"])
        assert self.events.setdefault(value["fold"]["id"], value["fold"]["events"]) == value["fold"]["events"]

    async def settle(self) -> None:
        """Read until every event sent is accounted for."""
        topics = [TopicPartition(self.names.topic(suffix), each) for suffix in ("folded", "dead") for each in range(PARTITIONS)]
        consumer = AIOKafkaConsumer(bootstrap_servers=self.bootstrap, enable_auto_commit=False, auto_offset_reset="earliest")
        await consumer.start()

        async def is_settled() -> bool:
            assert self.worker.exit_code is None, self.worker.log()
            for tp, records in (await consumer.getmany(timeout_ms=200)).items():
                for record in records:
                    self.take(record)
                self.positions[tp] = records[-1].offset + 1
            return sum(self.events.values()) + len(self.dead_letters) >= self.sent

        try:
            consumer.assign(topics)
            for tp in topics:
                consumer.seek(tp, self.positions.get(tp, 0))
            await wait_until(is_settled, LIMIT_SECONDS, "as many are folded or dead-lettered as were sent")
        except AssertionError as error:
            found = f"{sum(self.events.values())} folded + {len(self.dead_letters)} dead letters of {self.sent}"
            raise AssertionError(f"{error}: {found}; the log:\n{self.worker.log()[-3_000:]}") from None
        finally:
            await consumer.stop()


def identity(group: Any) -> Group:
    """Return the identity of a group: ``1`` and ``1.0`` are equal, ``1`` and ``"1"`` or ``true`` are not."""
    if isinstance(group, float) and group.is_integer():
        group = int(group)
    return type(group).__name__, group


@pytest.fixture(scope="module")
def bench(kafka: KafkaServer, redis_server: RedisServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    names = Names(f"test-{secrets.token_hex(6)}")
    folder = tmp_path_factory.mktemp("bench")
    source, output, dead = (names.topic(suffix) for suffix in ("events", "folded", "dead"))
    bootstrap = kafka.bootstrap_servers
    config = write_config(
        folder / "streams.toml", app_id=names.app_id, bootstrap=bootstrap, redis_url=redis_server.url,
        source=source, output=output, dead=dead, quiet_period="300ms",
    )  # fmt: skip

    asyncio.run(create_topics(bootstrap, [source, output, dead], PARTITIONS, ANY_TIME if kafka.is_apache else None))
    with WorkerProcess(config, folder, {"STREAMS_APP_WORKER_TICK": "100ms"}) as worker:
        asyncio.run(worker.wait_ready())
        yield Bench(bootstrap, names, worker)
        code = asyncio.run(worker.terminate())
    with redis.Redis.from_url(redis_server.url) as client:
        for key in client.scan_iter(f"*{names.app_id}*", count=1_000):
            client.delete(key)
    assert 0 == code, worker.log()
    assert "Traceback" not in worker.log()
    assert 1 == worker.log().count("worker starts")


@pytest.mark.parametrize("name", CLASSES)
async def test_odd_input_is_folded_or_dead_lettered_and_every_partition_continues(bench: Bench, name: str) -> None:
    rng = random.Random(f"{SEED}/{name}")
    cases = [CLASSES[name](rng) for _ in range(min(CASES, FEW.get(name, CASES)) // PARTITIONS * PARTITIONS)]
    good = [Case(*event(f"good {name} {partition}", "ok")) for partition in range(PARTITIONS)]
    where = await bench.send([*cases, *good])
    await bench.settle()

    wrong = []
    for place, case in where.items():
        dead_letter = bench.dead_letters.get(place)
        reason = None if dead_letter is None else dict(dead_letter.headers)["reason"].decode()
        if case.reason not in (ANY, reason):
            wrong.append((case, reason))
        if dead_letter is not None:
            assert (case.key, case.value or None) == (dead_letter.key, dead_letter.value or None)
        elif case.value is not None and not wrong:
            decoded = json.loads(case.value.decode())
            changed = decoded["metrics"]
            bench.expected[identity(decoded["account_id"])].update([changed] if isinstance(changed, str) else changed)
    assert [] == wrong
    assert bench.sent == sum(bench.events.values()) + len(bench.dead_letters)
    # Exactly what was sent, by this class and those before it: nothing is missing, nothing invented.
    assert bench.expected == bench.groups
    assert {("str", f"good {name} {partition}") for partition in range(PARTITIONS)} <= set(bench.groups)
