"""A topic of events and members of a subscriber's group that call its function."""

from __future__ import annotations

import asyncio
import json
from collections import defaultdict
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import msgspec
import redis.asyncio
from aiokafka import AIOKafkaConsumer, TopicPartition

from streams_app.clock import SystemClock
from streams_app.delivery.batch import TP
from streams_app.errors import BadEventError
from streams_app.events.declaration import Event
from streams_app.health.metrics import Metrics
from streams_app.health.status import Status
from streams_app.kafka.group_agent import GroupAgent
from streams_app.kafka.producer import AckedProducer
from streams_app.settings import Settings
from streams_app.subscribers.declaration.received import Received
from streams_app.subscribers.declaration.subscriber import subscriber
from streams_app.subscribers.execution.async_executor import UserLoop
from streams_app.subscribers.execution.crash_isolation import CrashIsolation
from streams_app.subscribers.execution.decoding import DecodedRecord
from streams_app.subscribers.execution.loop_monitor import LoopMonitor
from streams_app.subscribers.running.agent import running_subscriber
from tests.conftest import Names
from tests.helpers.kafka.topics import create_topics, produce, read_topic
from tests.helpers.waiting import wait_until
from tests.helpers.worker.site import SESSION

LIMIT_SECONDS = 60
PARTITIONS = 2


class Paid(msgspec.Struct, frozen=True):
    order_id: str


order_paid = Event("order.paid", Paid, description="The money of an order has arrived.", keyed_by="order_id")


def decode(tp: TP, record: Any, attempt: int) -> DecodedRecord | None:
    headers = dict(record.headers)
    if headers.get("ce_type", b"order.paid") != b"order.paid":
        return None
    try:
        data = msgspec.json.decode(record.value, type=Paid)
    except msgspec.MsgspecError as error:
        raise BadEventError("not-valid", str(error)) from error
    own_id = headers.get("ce_id", b"").decode()
    event_id = own_id or f"{tp.topic}:{tp.partition}:{record.offset}"
    event = Received(data=data, id=event_id, offset=record.offset, partition=tp.partition, attempt=attempt)
    return DecodedRecord(event_id, event, own_id)


def settings_of(app_id: str, bootstrap: str, topic: str, grace: str = "15s") -> Settings:
    fold = {"name": "f", "source": f"{topic}.source", "output": topic, "group_key": "id", "changed": "m", "quiet_period": "1s"}
    return Settings.model_validate({
        "app_id": app_id,
        "kafka": {"bootstrap_servers": bootstrap, "session_timeout": SESSION},
        "worker": {"tick": "100ms", "commit_every": "200ms", "grace": grace},
        "folds": [fold],
    })  # fmt: skip


@asynccontextmanager
async def member_of(
    settings: Settings,
    topic: str,
    redis_url: str,
    function: Callable[[Any], Any],
    metrics: Metrics | None = None,
    status: Status | None = None,
    on_fatal: Callable[[BaseException], None] = lambda error: None,
    **options: Any,
) -> AsyncIterator[GroupAgent]:
    """Yield a member of the group of a subscriber with a given function, for the ``with`` block."""
    declared = subscriber(order_paid, **({"idempotent": "yes", "description": "Under test."} | options))(function)
    client = redis.asyncio.Redis.from_url(redis_url)
    producer = AckedProducer(settings.kafka, client_id="letters")
    users = UserLoop()
    stop = asyncio.Event()
    agent = running_subscriber(
        settings, declared, topic=topic, dead_letters=f"{topic}.dead", decode=decode, redis=client, producer=producer,
        clock=SystemClock(), users=users, metrics=metrics or Metrics(settings),
        status=status or Status(), on_fatal=on_fatal, loop_monitor=LoopMonitor(users, SystemClock()),
        crash_isolation=CrashIsolation(),
    ).agent  # fmt: skip
    running = asyncio.create_task(agent.run(stop))
    try:
        yield agent
    finally:
        stop.set()
        await running
        await producer.stop()
        await client.aclose()
        users.stop(2.0)


@dataclass
class Shop:
    """Servers, names and recorded calls."""

    names: Names
    bootstrap: str
    redis_url: str
    calls: dict[str, list[int]] = field(default_factory=lambda: defaultdict(list))

    @property
    def topic(self) -> str:
        return self.names.topic("orders")

    @property
    def settings(self) -> Settings:
        return settings_of(self.names.app_id, self.bootstrap, self.topic)

    async def open(self) -> None:
        await create_topics(self.bootstrap, [self.topic, f"{self.topic}.dead"], PARTITIONS)

    def member(self, function: Callable[[Any], Any], grace: str = "15s", **options: Any) -> Any:
        settings = settings_of(self.names.app_id, self.bootstrap, self.topic, grace)
        return member_of(settings, self.topic, self.redis_url, function, **options)

    async def send(self, *orders: str, partition: int = 0, **options: Any) -> None:
        """Send paid orders, whose key is the part before a dash."""
        records = [(order.partition("-")[0].encode(), json.dumps({"order_id": order}).encode()) for order in orders]
        await produce(self.bootstrap, self.topic, records, partition=partition, **options)

    def called(self, event: Received[Paid]) -> None:
        """Record an attempt."""
        self.calls[event.data.order_id].append(event.attempt)

    async def until_called(self, *orders: str) -> None:
        await wait_until(lambda: self.calls.keys() >= set(orders), LIMIT_SECONDS, f"{orders} were called")

    async def dead_letters(self, count: int) -> list[dict[str, str]]:
        """Return headers of the dead letters, with their order, once there are ``count``."""
        records = await read_topic(
            self.bootstrap, f"{self.topic}.dead", until=lambda read: len(read) >= count, timeout_seconds=LIMIT_SECONDS
        )
        found = []
        for record in records:
            headers = {name: value.decode() for name, value in record.headers}
            found.append(headers | {"order": json.loads(record.value).get("order_id", "")})
        return found

    async def committed(self, name: str) -> int:
        """Return the sum of the committed offsets of a subscriber's group."""
        tps = [TopicPartition(self.topic, number) for number in range(PARTITIONS)]
        group = f"{self.names.app_id}.{name}"
        consumer = AIOKafkaConsumer(bootstrap_servers=self.bootstrap, group_id=group, enable_auto_commit=False)
        await consumer.start()
        try:
            return sum([await consumer.committed(tp) or 0 for tp in tps])
        finally:
            await consumer.stop()
