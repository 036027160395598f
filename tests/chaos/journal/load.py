"""The load of a chaos run of journals: records dated over 40 days, and some of other centuries, from 1 byte to 900 kB.

A third of them is produced before the first worker starts: only events of a backlog are stored under the days of their timestamps.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.errors import KafkaError

from streams_app.journal.core.cursor import cursor_text
from tests.chaos.journal.judge import Event
from tests.chaos.pace import paced, producing
from tests.chaos.stage import PARTITIONS

TOPIC: Final = "days"
DAYS: Final = 40
DAY_MS: Final = 86_400_000
AT_ONCE: Final = 200
ODD_KEYS: Final = (b"", b"\x00", b"\x00\xff", b"{odd}", b"\xff", b"busy_")
SIZES: Final = ((0.90, 1, 500), (0.992, 500, 20_000), (1.0, 100_000, 900_000))
"""Upper share of all events, and the range of their sizes in bytes."""


FIRST_CENTURY: Final = (0, 86_400_000)
LAST_CENTURY: Final = (4_070_908_800_000, 4_102_444_800_000)
"""1970 and 2099, ms."""

LIVE_DAYS: Final = 2
"""Number of the 40 days whose events are produced while workers run."""


@dataclass
class ProducedPositions:
    """Keys and positions that clients may request.

    Attributes:
        keys: Keys of produced events, with repetitions.
        ends: Partition → highest acknowledged offset.
    """

    keys: list[bytes] = field(default_factory=list)
    ends: dict[int, int] = field(default_factory=dict)

    def cursor(self, chance: random.Random) -> str:
        """Return a random cursor with a position in every partition."""
        return cursor_text({partition: chance.randint(0, max(0, end)) for partition, end in self.ends.items()})


class DatedLoad:
    """Produces at a rate, day by day, with some late events.

    Attributes:
        produced: Keys and positions that clients may request.
        sent: Number of acknowledged events.
        bytes: Size of their values.
    """

    def __init__(
        self,
        bootstrap: Callable[[], str],
        produced: ProducedPositions,
        *,
        seed: int,
        rate: float,
        seconds: float,
        is_idempotent: bool,
    ) -> None:
        self.produced = produced
        self.sent = 0
        self.bytes = 0
        self._bootstrap = bootstrap
        self._is_idempotent = is_idempotent
        self._chance = random.Random(seed)
        self._rate = rate
        self._seconds = seconds
        self._quiet = 0

    async def before(self) -> None:
        """Produce the backlog as fast as possible."""
        async with producing(self._bootstrap(), is_idempotent=self._is_idempotent) as producer:
            count = int(self._rate * self._seconds / 2)
            for begin in range(0, count, AT_ONCE):
                days = [DAYS - (DAYS - LIVE_DAYS) * number / count for number in range(begin, min(begin + AT_ONCE, count))]
                await asyncio.gather(*(self._send(producer, ago) for ago in days))

    async def run(self, is_over: Callable[[], bool]) -> None:
        """Produce until the run is over; return when every event is acknowledged or has failed."""
        loop = asyncio.get_running_loop()
        begin = loop.time()

        def ago() -> float:
            return LIVE_DAYS * max(0.0, 1 - (loop.time() - begin) / self._seconds)

        async with producing(self._bootstrap(), is_idempotent=self._is_idempotent) as producer:
            await paced(self._rate, lambda: [self._send(producer, ago())], is_over)

    async def _send(self, producer: AIOKafkaProducer, days_ago: float) -> None:
        chance, key = self._chance, self._key()
        time_ms = self._time_ms(days_ago)
        value = None if key and chance.random() < 0.01 else self._value()  # the client rejects a record with neither
        headers = [("trace", b"%d" % time_ms)] if chance.random() < 0.1 else []
        try:
            sent = await producer.send_and_wait(TOPIC, value, key or None, timestamp_ms=time_ms, headers=headers)
        except KafkaError:
            return  # the topic shows whether it was stored
        self.sent += 1
        self.bytes += len(value or b"")
        self.produced.keys.append(key)
        self.produced.ends[sent.partition] = max(sent.offset, self.produced.ends.get(sent.partition, 0))

    def _time_ms(self, days_ago: float) -> int:
        chance, share = self._chance, self._chance.random()
        if share < 0.01:
            return chance.randint(*FIRST_CENTURY)
        # After one of these, the clock of a partition is the wall clock, and later events are stored under the current day.
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
    """Return all events of the topic."""
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
