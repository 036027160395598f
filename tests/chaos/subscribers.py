"""``python -m tests.chaos.subscribers``: subscribers of each delivery guarantee under the faults of :mod:`tests.chaos.faults`.

The run is judged from outside, by the recorded calls, dead letters and commits. Some events are published twice with one id.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import random
import shutil
import signal
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager, closing
from pathlib import Path
from typing import Any, Final

import click
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.errors import KafkaError

from tests.chaos import subscribers_catalogue
from tests.chaos.faults import LOSING, OF_TOPOLOGY, available, when_planned
from tests.chaos.load import Load
from tests.chaos.run_series import run_all, topology_option
from tests.chaos.stage import APP_ID, EXCUSED, PARTITIONS
from tests.chaos.subscribers_hanging import Hanging
from tests.chaos.subscribers_judge import KEYS, Position, Produced, Row, Verdict, verdict
from tests.chaos.topologies import STAGES
from tests.chaos.traces import TRACE_SECONDS
from tests.helpers.waiting import wait_until

WORKERS: Final = 3
STEP_SECONDS: Final = 0.05
DRAIN_SECONDS: Final = 240.0
FOLDED_RATE: Final = 300.0
TWICE_EVERY: Final = 20
HANGS_EVERYWHERE: Final = "hangs everywhere"
"""A fault of functions: a subscriber hangs in every executor slot of one process."""

BADLY_WRITTEN: Final = (
    subscribers_catalogue.KILLS,
    subscribers_catalogue.KILLS_LATE,
    subscribers_catalogue.HANGS,
    subscribers_catalogue.BLOCKS,
    HANGS_EVERYWHERE,
)
"""Faults of functions: the run publishes one event with this fate."""

KILLING: Final = frozenset({"sigkill", "sigkill-at", "sigstop", "rebalance-storm"})
"""Faults after which an event may be wrongly considered the cause of a crash or of a timeout."""

SETTINGS: Final = '[events]\ncatalogue = "tests.chaos.subscribers_catalogue:catalogue"\n'
CHOSEN: Final = [one for one in subscribers_catalogue.ALL if one in subscribers_catalogue.catalogue.subscribers]
IN_THREADS: Final = [one for one in CHOSEN if not one.is_async]


class Run:
    """One run, from the first server to the judgement.

    Attributes:
        wrong: Violations and failures.
        verdicts: Subscriber → its result.
    """

    def __init__(self, seed: int, folder: Path, topology: str) -> None:
        """Create a run without starting it."""
        self.seed = seed
        self.stage = STAGES[topology](folder, is_apache=True, is_redis7=bool(seed // 2 % 2), more_settings=SETTINGS)
        self._faults_of = OF_TOPOLOGY[topology]
        self._may_keep_data = topology == "single"  # a failover by Sentinel never keeps all data
        self.produced = Produced()
        self.faults: list[str] = []
        self.wrong: list[str] = []
        self.verdicts: dict[str, Verdict] = {}
        self._calls = folder / "calls.db"
        self._chance = random.Random(seed)
        self._numbers = 0
        self._drain_seconds = 0.0

    async def perform(self, names: list[str], seconds: float, rate: float) -> None:
        """Inject faults for a while, end them, drain and judge."""
        self.prepare()
        # Half of the runs keep the data of Redis, so that "unknown" is judged by its full guarantee.
        chosen = [name for name in names if name not in LOSING] if self.seed % 2 and self._may_keep_data else names
        try:
            await self.stage.start(WORKERS)
            self.stage.acknowledged = lambda: len(self.produced.sent)
            # The same workers also fold, because some faults happen at a point of folding.
            folding = Load(self.stage.bootstrap, seed=self.seed, rate=FOLDED_RATE, is_idempotent=True)
            breaking = asyncio.create_task(self._break(chosen, seconds))
            await asyncio.gather(self.load(rate, breaking), folding.run(seconds, 0, breaking.done))
            codes = await self.stage.stop_workers()
            if any(codes):
                self.wrong.append(f"workers ended with {codes} on SIGTERM")
            await self.judge()
        except AssertionError as error:
            self.wrong.append(f"{type(error).__name__}: {error}"[:3_000])
        finally:
            if self.wrong:
                (self.stage.folder.parent / f"seed-{self.seed}.log").write_text(self.stage.logs(), "utf-8")
                shutil.copy(self._calls, self.stage.folder.parent / f"seed-{self.seed}.db")
            await self.stage.close()

    def prepare(self) -> None:
        """Create the file in which the workers of the stage record their calls."""
        os.environ[subscribers_catalogue.CALLS] = str(self._calls)  # the workers of the stage inherit it
        ledger = subscribers_catalogue.opened(str(self._calls))
        ledger.executescript(subscribers_catalogue.TABLE)
        ledger.close()

    async def load(self, rate: float, breaking: asyncio.Task[None]) -> None:
        """Produce until the faults have ended, and wait until every event is finished."""
        async with self._producing():
            await asyncio.gather(self._produce(rate, breaking), breaking)
        await self._drain()

    async def _break(self, names: list[str], seconds: float) -> None:
        async for name in when_planned(self._chance, names, seconds, self.seed // 2):
            self.faults.append(name)
            await (self._write_badly(name) if name in BADLY_WRITTEN else self._faults_of[name](self.stage, self._chance))

    async def _write_badly(self, fate: str) -> None:
        """Publish an event whose function misbehaves, and return when a function has been called with it."""
        if fate == HANGS_EVERYWHERE:
            return await self._hang_everywhere()
        number = await self._publish(fate)
        ledger = subscribers_catalogue.opened(str(self._calls))
        try:
            called = "SELECT 1 FROM calls WHERE number = ? AND phase = 'begin'"
            await wait_until(
                lambda: ledger.execute(called, (number,)).fetchone(),
                TRACE_SECONDS,
                f"the function is called with an event that {fate}",
            )
            if fate in (subscribers_catalogue.KILLS, subscribers_catalogue.KILLS_LATE):
                await wait_until(lambda: self.stage.exits[-signal.SIGKILL], TRACE_SECONDS, "the event has killed a worker")
        finally:
            ledger.close()

    async def _hang_everywhere(self) -> None:
        one = self._chance.choice(IN_THREADS)
        others = [other.name for other in CHOSEN if other is not one]
        with closing(subscribers_catalogue.opened(str(self._calls))) as ledger:
            hanging = Hanging(self.stage, ledger, self._publish, self._dead_letters)
            await hanging.fill_slots(one.name, one.idempotent, others, self._chance.randrange(PARTITIONS))

    async def _publish(self, fate: str, partition: int | None = None) -> int:
        number = self._next()
        if fate:
            self.produced.fates[number] = fate
        await self._send(number, fate, partition)
        return number

    @asynccontextmanager
    async def _producing(self) -> AsyncIterator[None]:
        self._producer = AIOKafkaProducer(
            bootstrap_servers=self.stage.bootstrap, acks="all", enable_idempotence=True, linger_ms=5, request_timeout_ms=60_000
        )
        await self._producer.start()
        try:
            yield
        finally:
            await self._producer.stop()

    async def _produce(self, rate: float, until: asyncio.Task[None]) -> None:
        acks: list[asyncio.Task[None]] = []
        loop = asyncio.get_running_loop()
        begin = loop.time()
        while not until.done():
            while self._numbers < (loop.time() - begin) * rate and not until.done():
                number = self._next()
                times = 2 if number % TWICE_EVERY == 0 else 1
                acks += [asyncio.create_task(self._send(number)) for _ in range(times)]
            await asyncio.sleep(STEP_SECONDS)  # the rate of the load
        await asyncio.wait(acks, timeout=90)

    def _next(self) -> int:
        self._numbers += 1
        return self._numbers

    async def _send(self, number: int, fate: str = "", partition: int | None = None) -> None:
        customer = f"customer_{number % KEYS}"
        event_id = self.produced.ids[number] = f"order-{number}"
        headers = [("ce_id", event_id.encode()), ("ce_type", subscribers_catalogue.order_placed.key.encode())]
        value = json.dumps({"number": number, "customer": customer, "fate": fate}).encode()
        try:
            sent = await self._producer.send_and_wait(
                subscribers_catalogue.TOPIC, value, customer.encode(), partition, headers=headers
            )
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
            return all(committed[one.name] == ends for one in CHOSEN)

        try:
            await wait_until(is_done, DRAIN_SECONDS, "every group has committed the end of its log")
        except AssertionError:
            pass  # the judge reports the missing events
        self._drain_seconds = round(loop.time() - healed, 1)

    async def _commits(self) -> tuple[dict[int, int], dict[str, dict[int, int]]]:
        tps = [TopicPartition(subscribers_catalogue.TOPIC, number) for number in range(PARTITIONS)]
        ends: dict[int, int] = {}
        committed: dict[str, dict[int, int]] = {}
        for one in CHOSEN:
            consumer = AIOKafkaConsumer(
                bootstrap_servers=self.stage.bootstrap, group_id=f"{APP_ID}.{one.name}", enable_auto_commit=False
            )
            await consumer.start()
            try:
                committed[one.name] = {tp.partition: await consumer.committed(tp) or 0 for tp in tps}
                ends = {tp.partition: end for tp, end in (await consumer.end_offsets(tps)).items()}
            finally:
                await consumer.stop()
        return ends, committed

    async def _dead_letters(self, name: str) -> dict[Position, list[str]]:
        topic = f"{subscribers_catalogue.TOPIC}.{name}.dead"
        tps = [TopicPartition(topic, number) for number in range(PARTITIONS)]
        consumer = AIOKafkaConsumer(bootstrap_servers=self.stage.bootstrap, enable_auto_commit=False)
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
        """Judge each subscriber; the workers have ended."""
        ledger = subscribers_catalogue.opened(str(self._calls))
        ends, committed = await self._commits()
        for one in CHOSEN:
            found = ledger.execute("SELECT * FROM calls WHERE subscriber = ? ORDER BY rowid", (one.name,)).fetchall()
            self.verdicts[one.name] = judged = verdict(
                one.idempotent, self.produced.as_in(one.name), [Row(*row) for row in found], await self._dead_letters(one.name),
                committed[one.name], ends, kept_data=self.stage.kept_data, is_ordered=one.ordered is not None,
                is_killed=not KILLING.isdisjoint(self.faults),
            )  # fmt: skip
            self.wrong += [f"{one.name}: {fault}" for fault in judged.wrong]
        ledger.close()
        # If a function kills its process while that topic is missing on purpose, no worker can start.
        excused = f"topic '{EXCUSED}' (output of {EXCUSED}) does not exist"
        if any(one.exit_code == 1 and excused not in one.log() for one in (*self.stage.ended, *self.stage.workers)):
            self.wrong.append("a worker ended with exit code 1")

    def line(self) -> str:
        """Return a summary of the run in a few lines."""
        data = "kept its data" if self.stage.kept_data else "lost data"
        faults = ", ".join(f"{name} x{times}" if times > 1 else name for name, times in Counter(self.faults).items())
        exits = ", ".join(f"{times}x {code}" for code, times in sorted(self.stage.exits.items()))
        head = (
            f"seed {self.seed}: {len(self.produced.sent):,} events, Redis {data}, drained in {self._drain_seconds} s, "
            f"exits: {exits or 'none'}; {faults}"
        )
        lines = [
            f"  {name:<22} {one.calls:>6,} calls, {one.done:>6,} done, dead letters {one.dead_letters}, repeated {one.repeated}, "
            f"begun without an end {one.interrupted}" + (f", at most {one.deaths} deaths by one event" if one.deaths else "")
            for name, one in self.verdicts.items()
        ]
        return "\n".join([head, *lines, *(f"  WRONG: {fault}" for fault in self.wrong)])


@click.command()
@click.option(
    "--runs",
    default=3,
    show_default=True,
    help="Number of runs, each with its own seed; Redis keeps its data in those with an odd seed.",
)
@click.option("--seed", default=1, show_default=True, help="Seed of the first run.")
@click.option("--seconds", default=40.0, show_default=True, help="Duration of the load and the faults of a run.")
@click.option("--rate", default=150.0, show_default=True, help="Events a second.")
@topology_option
@click.option("--faults", default=None, help="Only these, separated by commas.")
def main(runs: int, seed: int, seconds: float, rate: float, topology: str, faults: str | None) -> None:
    """Break workers, Redis and broker while subscribers are called, and check each delivery guarantee."""
    for name in ("aiokafka", "asyncio"):
        logging.getLogger(name).setLevel(logging.CRITICAL)  # servers are down on purpose
    chosen = faults.split(",") if faults else [*OF_TOPOLOGY[topology], *BADLY_WRITTEN]
    own = [name for name in chosen if name in BADLY_WRITTEN]
    others = [name for name in chosen if name not in BADLY_WRITTEN]
    names = [*(available(others, is_apache=True, topology=topology) if others else []), *own]

    def perform(seed: int, folder: Path) -> tuple[Run, Coroutine[Any, Any, None]]:
        run = Run(seed, folder, topology)
        return run, run.perform(names, seconds, rate)

    run_all("chaos-subscribers", range(seed, seed + runs), perform)


if __name__ == "__main__":
    main()
