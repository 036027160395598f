"""The load of a chaos run of journals: records dated over 40 days, and some of other centuries, from 1 byte to 900 kB.

A third of it is there before the first worker: only what is read behind the end of its partition is filed by its own days.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Final

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.errors import KafkaError

from streams_app.journal.core.cursor import cursor_text
from tests.chaos.journal_judge import Event
from tests.chaos.stage import PARTITIONS

TOPIC: Final = "days"
DAYS: Final = 40
DAY_MS: Final = 86_400_000
STEP_SECONDS: Final = 0.05
AT_ONCE: Final = 200
ODD_KEYS: Final = (b"", b"\x00", b"\x00\xff", b"{odd}", b"\xff", b"busy_")
SIZES: Final = ((0.90, 1, 500), (0.992, 500, 20_000), (1.0, 100_000, 900_000))
"""Up to which share of all events are between how many bytes."""


FIRST_CENTURY: Final = (0, 86_400_000)
LAST_CENTURY: Final = (4_070_908_800_000, 4_102_444_800_000)
"""1970 and 2099, ms."""

LIVE_DAYS: Final = 2
"""Of the 40, what is produced while workers run."""


@dataclass
class Known:
    """What clients may ask for.

    Attributes:
        keys: Of events that were produced, with repetitions.
        ends: Partition → highest offset that was acknowledged.
    """

    keys: list[bytes] = field(default_factory=list)
    ends: dict[int, int] = field(default_factory=dict)

    def cursor(self, chance: random.Random) -> str:
        """One somewhere, in every partition."""
        return cursor_text({partition: chance.randint(0, max(0, end)) for partition, end in self.ends.items()})


class DatedLoad:
    """Produces at a rate; from one day to the next, some events late.

    Attributes:
        known: What clients may ask for.
        sent: How many events were acknowledged.
        bytes: Of their values.
    """

    def __init__(self, bootstrap: Callable[[], str], known: Known, *, seed: int, rate: float, seconds: float) -> None:
        self.known = known
        self.sent = 0
        self.bytes = 0
        self._bootstrap = bootstrap
        self._chance = random.Random(seed)
        self._rate = rate
        self._seconds = seconds
        self._quiet = 0

    async def before(self) -> None:
        """Produces the past, as fast as it goes."""
        async with self._producer() as producer:
            count = int(self._rate * self._seconds / 2)
            for begin in range(0, count, AT_ONCE):
                days = [DAYS - (DAYS - LIVE_DAYS) * number / count for number in range(begin, min(begin + AT_ONCE, count))]
                await asyncio.gather(*(self._send(producer, ago) for ago in days))

    async def run(self, is_over: Callable[[], bool]) -> None:
        """Produces until it is over; returns when every event is acknowledged or given up."""
        acks: set[asyncio.Task[None]] = set()
        loop = asyncio.get_running_loop()
        begin, due = loop.time(), 0.0
        async with self._producer() as producer:
            while not is_over():
                due += self._rate * STEP_SECONDS
                while due >= 1:
                    due -= 1
                    ago = LIVE_DAYS * max(0.0, 1 - (loop.time() - begin) / self._seconds)
                    acks.add(asyncio.create_task(self._send(producer, ago)))
                await asyncio.sleep(STEP_SECONDS)  # the pace of the load
            if acks:
                await asyncio.wait(acks, timeout=90)

    @asynccontextmanager
    async def _producer(self) -> AsyncIterator[AIOKafkaProducer]:
        producer = AIOKafkaProducer(
            bootstrap_servers=self._bootstrap(), acks="all", enable_idempotence=True, linger_ms=5, request_timeout_ms=60_000
        )
        await producer.start()
        try:
            yield producer
        finally:
            await producer.stop()

    async def _send(self, producer: AIOKafkaProducer, days_ago: float) -> None:
        chance, key = self._chance, self._key()
        time_ms = self._time_ms(days_ago)
        value = None if key and chance.random() < 0.01 else self._value()  # the client takes no record that has neither
        headers = [("trace", b"%d" % time_ms)] if chance.random() < 0.1 else []
        try:
            sent = await producer.send_and_wait(TOPIC, value, key or None, timestamp_ms=time_ms, headers=headers)
        except KafkaError:
            return  # whether it is there is seen in the topic
        self.sent += 1
        self.bytes += len(value or b"")
        self.known.keys.append(key)
        self.known.ends[sent.partition] = max(sent.offset, self.known.ends.get(sent.partition, 0))

    def _time_ms(self, days_ago: float) -> int:
        chance, share = self._chance, self._chance.random()
        if share < 0.01:
            return chance.randint(*FIRST_CENTURY)
        # Behind one of these the clock of a partition is the wall clock: what is older is of no other day any more.
        if share < 0.02 and days_ago < LIVE_DAYS:
            return chance.randint(*LAST_CENTURY)
        late = chance.uniform(0, 10) if share > 0.97 else 0.0
        return int(time.time() * 1000 - min(DAYS, days_ago + late) * DAY_MS)

    def _key(self) -> bytes:
        share = self._chance.random()
        if share < 0.03:
            return self._chance.choice(ODD_KEYS)
        if share < 0.2:
            self._quiet += 1
            return b"quiet_%d" % self._quiet
        return b"busy_%d" % min(500, int(self._chance.paretovariate(0.7)))

    def _value(self) -> bytes:
        share = self._chance.random()
        least, most = next((least, most) for up_to, least, most in SIZES if share <= up_to)
        size = self._chance.randint(least, most)
        return self._chance.randbytes(size) if self._chance.random() < 0.5 else (b"%d " % size * size)[:size]


async def read_topic(bootstrap: str) -> dict[int, dict[int, Event]]:
    """Everything that the topic has."""
    tps = [TopicPartition(TOPIC, number) for number in range(PARTITIONS)]
    consumer = AIOKafkaConsumer(bootstrap_servers=bootstrap, enable_auto_commit=False, auto_offset_reset="earliest")
    await consumer.start()
    found: dict[int, dict[int, Event]] = {tp.partition: {} for tp in tps}
    try:
        consumer.assign(tps)
        ends = await consumer.end_offsets(tps)
        while True:
            positions = [await consumer.position(tp) for tp in tps]
            if all(position >= ends[tp] for tp, position in zip(tps, positions, strict=True)):
                return found
            for tp, records in (await consumer.getmany(timeout_ms=500)).items():
                for record in records:
                    headers = tuple((name, content) for name, content in record.headers)
                    found[tp.partition][record.offset] = Event(record.key or b"", record.timestamp, record.value, headers)
    finally:
        await consumer.stop()
