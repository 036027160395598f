"""The load of a chaos run: every event changes a different name, so that each can be identified in the output."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Callable
from dataclasses import dataclass, field

from aiokafka import AIOKafkaProducer
from aiokafka.errors import KafkaError

from tests.chaos.pace import ACK_SECONDS, STEP_SECONDS, producing

GROUPS = 200
BAD_SHARE = 0.01


@dataclass
class Ledger:
    """The produced events.

    Attributes:
        sent: Name → group, of every acknowledged event.
        perhaps: The same for events without an acknowledgement.
        bad: Ids of acknowledged events that cannot be folded.
        perhaps_bad: The same for events without an acknowledgement.
        positions: Name → (partition, offset) of acknowledged events.
    """

    sent: dict[str, bytes] = field(default_factory=dict)
    perhaps: dict[str, bytes] = field(default_factory=dict)
    bad: set[str] = field(default_factory=set)
    perhaps_bad: set[str] = field(default_factory=set)
    positions: dict[str, tuple[int, int]] = field(default_factory=dict)


class Load:
    """Produces at a rate with bursts and pauses; a few of the groups are chosen often, most of them rarely."""

    def __init__(self, bootstrap: str, *, seed: int, rate: float, is_idempotent: bool) -> None:
        self.ledger = Ledger()
        self._bootstrap = bootstrap
        self._random = random.Random(seed)
        self._rate = rate
        self._is_idempotent = is_idempotent
        self._numbers = 0
        self._acks: set[asyncio.Task[None]] = set()

    async def run(self, seconds: float, least: int, is_over: Callable[[], bool]) -> None:
        """Produce until the time has passed, the minimum number of events was sent and the faults are over; wait for all outcomes.

        A fault that waits until a worker reaches a certain point needs load for as long as it waits.
        """
        loop = asyncio.get_running_loop()
        begin, produced = loop.time(), 0.0
        async with producing(self._bootstrap, is_idempotent=self._is_idempotent) as producer:
            while (elapsed := loop.time() - begin) < seconds or self._numbers < least or not is_over():
                # A pause of two seconds in every ten, so that groups become quiet under load, too.
                share = 0.05 if elapsed % 10 > 8 else 1.25
                produced += min(share * self._rate * STEP_SECONDS, 4 * self._rate * STEP_SECONDS)
                while produced >= 1:
                    produced -= 1
                    await self._produce(producer)
                await asyncio.sleep(STEP_SECONDS)  # the rate of the load
            await producer.flush()
            await asyncio.wait(self._acks, timeout=ACK_SECONDS) if self._acks else None

    async def _produce(self, producer: AIOKafkaProducer) -> None:
        self._numbers += 1
        name = f"n{self._numbers}"
        group = f"account_{min(self._random.randrange(GROUPS), self._random.randrange(GROUPS))}".encode()
        is_bad = self._random.random() < BAD_SHARE
        value = {"account_id": group.decode(), "metrics": {name: self._numbers}}
        raw = f"bad {name}".encode() if is_bad else json.dumps(value).encode()
        try:
            ack = await producer.send("events", raw, group)
        except KafkaError:
            (self.ledger.perhaps_bad.add(name) if is_bad else self.ledger.perhaps.__setitem__(name, group))
            return
        task = asyncio.create_task(self._record_outcome(ack, name, group, is_bad=is_bad))
        self._acks.add(task)
        task.add_done_callback(self._acks.discard)

    async def _record_outcome(self, ack: asyncio.Future[object], name: str, group: bytes, *, is_bad: bool) -> None:
        try:
            metadata = await ack
        except KafkaError:
            (self.ledger.perhaps_bad.add(name) if is_bad else self.ledger.perhaps.__setitem__(name, group))
            return
        self.ledger.positions[name] = (metadata.partition, metadata.offset)  # type: ignore[attr-defined]  # aiokafka has no types
        if is_bad:
            self.ledger.bad.add(name)
        else:
            self.ledger.sent[name] = group
