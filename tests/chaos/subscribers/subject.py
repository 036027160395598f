"""Subscribers of each delivery guarantee under faults, and their own: functions that kill their process, hang, or block.

They are judged from outside, by the recorded calls, dead letters and commits. Some events are published twice with one id.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
from collections import defaultdict
from collections.abc import Coroutine
from contextlib import closing
from typing import TYPE_CHECKING, Any, Final

from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.errors import KafkaError

from streams_app.subscribers.declaration.subscriber import Subscriber
from tests.chaos.kill_points import JOURNAL_POINTS
from tests.chaos.pace import paced, producing
from tests.chaos.run import Duration
from tests.chaos.stage import APP_ID, PARTITIONS
from tests.chaos.subject import Amount, Subject
from tests.chaos.subscribers import catalogue
from tests.chaos.subscribers.hanging import Hanging
from tests.chaos.subscribers.judge import KEYS, Position, Produced, Row, Verdict, verdict
from tests.chaos.traces import TRACE_SECONDS
from tests.helpers.waiting import wait_until

if TYPE_CHECKING:
    from tests.chaos.stage_run import StageRun

Declared = Subscriber[Any, Any, Any]

DRAIN_SECONDS: Final = 240.0
TWICE_EVERY: Final = 20
HANGS_EVERYWHERE: Final = "hangs everywhere"
"""A fault of functions: a subscriber hangs in every executor slot of one process."""

KILLING: Final = frozenset(
    {"sigkill", "sigkill-at", "sigstop", "rebalance-storm", *(f"killed-{point}" for point in JOURNAL_POINTS)}
)
"""Faults after which an event may be wrongly considered the cause of a crash or of a timeout."""


class Subscribers(Subject):
    """The subscribers of the catalogue, on every worker.

    Attributes:
        chosen: Those that run.
        produced: The produced events.
        verdicts: Subscriber → its result.
    """

    name = "subscribers"
    full = Duration(3, 40.0)
    share = Duration(1, 15.0)
    alone = Amount(150.0)
    beside = Amount(60.0)
    settings = '[events]\ncatalogue = "tests.chaos.subscribers.catalogue:catalogue"\n'
    own_faults = (catalogue.KILLS, catalogue.KILLS_LATE, catalogue.HANGS, catalogue.BLOCKS, HANGS_EVERYWHERE)
    chosen: tuple[Declared, ...] = catalogue.ALL

    def __init__(self, run: StageRun, amount: Amount) -> None:
        super().__init__(run, amount)
        self.produced = Produced()
        self.verdicts: dict[str, Verdict] = {}
        self._calls = run.folder / "calls.db"
        self._numbers = 0
        self._drain_seconds = 0.0

    def prepare(self) -> None:
        """Create the file in which the workers of the stage record their calls, and name it in their environment."""
        os.environ[catalogue.CALLS] = str(self._calls)
        os.environ[catalogue.SUBSCRIBERS] = ",".join(one.name for one in self.chosen)
        ledger = catalogue.opened(str(self._calls))
        ledger.executescript(catalogue.TABLE)
        ledger.close()

    async def load(self, breaking: asyncio.Task[None]) -> None:
        """Produce until the faults have ended, and wait until every event is finished."""
        async with producing(self.run.stage.bootstrap) as self._producer:
            await asyncio.gather(paced(self.amount.rate, self._some, breaking.done), breaking)
        await self._drain()

    async def cause(self, fault: str) -> None:
        """Publish an event whose function misbehaves, and return when a function has been called with it."""
        if fault == HANGS_EVERYWHERE:
            return await self._hang_everywhere()
        number = await self._publish(fault)
        ledger = catalogue.opened(str(self._calls))
        try:
            called = "SELECT 1 FROM calls WHERE number = ? AND phase = 'begin'"
            await wait_until(
                lambda: ledger.execute(called, (number,)).fetchone(),
                TRACE_SECONDS,
                f"the function is called with an event that {fault}",
            )
            if fault in (catalogue.KILLS, catalogue.KILLS_LATE):
                await wait_until(lambda: self.run.stage.exits[-signal.SIGKILL], TRACE_SECONDS, "the event has killed a worker")
        finally:
            ledger.close()

    async def _hang_everywhere(self) -> None:
        one = self.chance.choice([one for one in self.chosen if not one.is_async])
        others = [other.name for other in self.chosen if other is not one]
        with closing(catalogue.opened(str(self._calls))) as ledger:
            hanging = Hanging(self.run.stage, ledger, self._publish, self._dead_letters)
            await hanging.fill_slots(one.name, one.idempotent, others, self.chance.randrange(PARTITIONS))

    async def _publish(self, fate: str, partition: int | None = None) -> int:
        number = self._next()
        if fate:
            self.produced.fates[number] = fate
        await self._send(number, fate, partition)
        return number

    def _some(self) -> list[Coroutine[Any, Any, None]]:
        """Return what sends the next event, some of them twice."""
        number = self._next()
        return [self._send(number) for _ in range(2 if number % TWICE_EVERY == 0 else 1)]

    def _next(self) -> int:
        self._numbers += 1
        return self._numbers

    async def _send(self, number: int, fate: str = "", partition: int | None = None) -> None:
        customer = f"customer_{number % KEYS}"
        event_id = self.produced.ids[number] = f"order-{number}"
        headers = [("ce_id", event_id.encode()), ("ce_type", catalogue.order_placed.key.encode())]
        value = json.dumps({"number": number, "customer": customer, "fate": fate}).encode()
        try:
            sent = await self._producer.send_and_wait(catalogue.TOPIC, value, customer.encode(), partition, headers=headers)
        except KafkaError:
            self.produced.perhaps.add(number)
        else:
            self.produced.sent[sent.partition, sent.offset] = number

    async def _drain(self) -> None:
        """Wait until every group has committed the end of its log."""
        loop = asyncio.get_running_loop()
        healed = loop.time()

        async def is_done() -> bool:
            ends, committed = await self._commits()
            return all(committed[one.name] == ends for one in self.chosen)

        try:
            await wait_until(is_done, DRAIN_SECONDS, "every group has committed the end of its log")
        except AssertionError:
            pass  # the judge reports the missing events
        self._drain_seconds = round(loop.time() - healed, 1)

    async def _commits(self) -> tuple[dict[int, int], dict[str, dict[int, int]]]:
        tps = [TopicPartition(catalogue.TOPIC, number) for number in range(PARTITIONS)]
        ends: dict[int, int] = {}
        committed: dict[str, dict[int, int]] = {}
        for one in self.chosen:
            consumer = AIOKafkaConsumer(
                bootstrap_servers=self.run.stage.bootstrap, group_id=f"{APP_ID}.{one.name}", enable_auto_commit=False
            )
            await consumer.start()
            try:
                committed[one.name] = {tp.partition: await consumer.committed(tp) or 0 for tp in tps}
                ends = {tp.partition: end for tp, end in (await consumer.end_offsets(tps)).items()}
            finally:
                await consumer.stop()
        return ends, committed

    async def _dead_letters(self, name: str) -> dict[Position, list[str]]:
        topic = f"{catalogue.TOPIC}.{name}.dead"
        tps = [TopicPartition(topic, number) for number in range(PARTITIONS)]
        consumer = AIOKafkaConsumer(bootstrap_servers=self.run.stage.bootstrap, enable_auto_commit=False)
        await consumer.start()
        found: dict[str, tuple[Position, str]] = {}
        try:
            consumer.assign(tps)
            await consumer.seek_to_beginning(*tps)
            ends = await consumer.end_offsets(tps)
            while any([await consumer.position(tp) < end for tp, end in ends.items()]):
                for records in (await consumer.getmany(timeout_ms=500)).values():
                    for record in records:
                        headers = {key: value.decode() for key, value in record.headers}
                        position = int(headers["source-partition"]), int(headers["source-offset"])
                        # A dead letter that was sent again has the id of the first one.
                        found[headers["letter-id"]] = position, headers["reason"]
        finally:
            await consumer.stop()
        dead_letters: dict[Position, list[str]] = defaultdict(list)
        for position, reason in found.values():
            dead_letters[position].append(reason)
        return dead_letters

    async def judge(self) -> None:
        """Judge each subscriber."""
        ledger = catalogue.opened(str(self._calls))
        ends, committed = await self._commits()
        for one in self.chosen:
            found = ledger.execute("SELECT * FROM calls WHERE subscriber = ? ORDER BY rowid", (one.name,)).fetchall()
            self.verdicts[one.name] = judged = verdict(
                one.idempotent, self.produced.as_in(one.name), [Row(*row) for row in found], await self._dead_letters(one.name),
                committed[one.name], ends, kept_data=self.run.stage.kept_data, is_ordered=one.ordered is not None,
                is_killed=not KILLING.isdisjoint(self.run.faults),
            )  # fmt: skip
            self.wrong += [f"{one.name}: {fault}" for fault in judged.wrong]
        ledger.close()

    def keep(self, stem: str) -> None:
        shutil.copy(self._calls, f"{stem}.db")

    def lines(self) -> list[str]:
        return [
            f"subscribers: {len(self.produced.sent):,} events, drained in {self._drain_seconds} s",
            *(
                f"  {name:<22} {one.calls:>6,} calls, {one.done:>6,} done, dead letters {one.dead_letters}, "
                f"repeated {one.repeated}, begun without an end {one.interrupted}"
                + (f", at most {one.deaths} deaths by one event" if one.deaths else "")
                for name, one in self.verdicts.items()
            ),
        ]
