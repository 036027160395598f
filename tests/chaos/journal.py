"""``python -m tests.chaos.journal``: journals under the faults of :mod:`tests.chaos.faults`, and kills at points of their keeper.

The run is judged from outside: what readers received is compared byte for byte with the topic. It asserts no durations.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections import Counter
from collections.abc import Coroutine
from pathlib import Path
from typing import Any, Final

import click

from streams_app.journal.reading.entries import Gap
from streams_app.journal.reading.reader import JournalReader
from streams_app.settings import Settings
from tests.chaos.faults import OF_TOPOLOGY, available, killed_at, when_planned
from tests.chaos.faults_redis import flushall
from tests.chaos.journal_clients import Client
from tests.chaos.journal_final_state import FinalState
from tests.chaos.journal_judge import Judge
from tests.chaos.journal_load import DAYS, TOPIC, DatedLoad, ProducedPositions, read_topic
from tests.chaos.journal_removals import Removals
from tests.chaos.kill_points import JOURNAL_POINTS
from tests.chaos.load import Load
from tests.chaos.run_series import run_all, topology_option
from tests.chaos.stage import KilledAt
from tests.chaos.topologies import STAGES
from tests.chaos.traces import TRACE_SECONDS
from tests.helpers.waiting import wait_until

WORKERS: Final = 2
FOLDED_RATE: Final = 50.0
FOLLOW_SECONDS: Final = 120.0
END_SECONDS: Final = 20.0
CLAIMED: Final = "claimed journal="
CONNECTED: Final = 6
"""Readers that share the connections of one :class:`JournalReader`."""

AT_POINTS: Final = {f"killed-{point}": point for point in JOURNAL_POINTS}
NOTICED: Final = (
    "sigkill", "sigstop", "sigterm", "flushall", "redis-restart", "redis-tail-cut", "redis-roll-back", "script-flush",
    "client-kill", "redis-full", "redis-frozen", "redis-failover", "broker-frozen", "broker-restart",
)  # fmt: skip
"""The faults of workers, Redis and broker that a journal notices."""

SETTINGS: Final = f"""\
[journals.days]
source = "{TOPIC}"
key = "@key"
keep = "{DAYS + 20}d"
max_bytes = 6_000_000
"""


class OutsideReader(JournalReader):
    """A reader outside of workers, with another connection name: a fault checks by this name whether workers have left a Redis."""

    def __init__(self, settings: Settings) -> None:
        super().__init__(settings)
        self._redis.connection_pool.connection_kwargs["client_name"] = "reader"


class Run:
    """One run, from the first server to the judgement.

    Attributes:
        wrong: Violations and failures.
    """

    def __init__(
        self, seed: int, folder: Path, clients: int, rate: float, seconds: float, *, is_apache: bool, topology: str
    ) -> None:
        """Create a run without starting it; ``clients`` is the number of readers, and also of followers."""
        self.seed = seed
        self._produced = ProducedPositions()
        self._load = load = DatedLoad(
            lambda: self.stage.bootstrap, self._produced, seed=seed, rate=rate, seconds=seconds, is_idempotent=is_apache
        )
        self.stage = STAGES[topology](
            folder, is_apache=is_apache, is_redis7=bool(seed // 2 % 2), more_settings=SETTINGS, dated=(TOPIC,),
            before_workers=load.before,
        )  # fmt: skip
        self._faults_of = OF_TOPOLOGY[topology]
        self.faults: list[str] = []
        self.wrong: list[str] = []
        self._seconds = seconds
        self._chance = random.Random(seed)
        self._readers: list[JournalReader] = []
        self._clients = [self._client(number, follows=bool(number % 2)) for number in range(2 * clients)]
        self._removed: Removals | None = None
        self._judge: Judge | None = None
        self._final: FinalState | None = None
        self._settled_seconds = self._drain_seconds = 0.0

    def _client(self, number: int, *, follows: bool) -> Client:
        return Client(
            lambda: self._readers[number % CONNECTED], self._produced, random.Random(f"{self.seed}/{number}"), follows=follows
        )

    async def perform(self, names: list[str]) -> None:
        """Inject faults for a while, end them, drain and judge."""
        try:
            await self.stage.start(WORKERS)
            # The same workers also fold, because some faults happen at a point of folding.
            folding = Load(self.stage.bootstrap, seed=self.seed, rate=FOLDED_RATE, is_idempotent=self.stage.is_apache)
            breaking = asyncio.create_task(self._break(names, self._seconds))
            await asyncio.gather(self.judged(breaking), folding.run(self._seconds, 0, breaking.done))
            codes = await self.stage.stop_workers()
            if any(codes):
                self.wrong.append(f"workers ended with {codes} on SIGTERM")
        except AssertionError as error:
            self.wrong.append(f"{type(error).__name__}: {error}"[:3_000])
        finally:
            if self.wrong:
                base = self.stage.folder.parent
                (base / f"seed-{self.seed}.txt").write_text("\n".join(self.wrong), "utf-8")
                (base / f"seed-{self.seed}.log").write_text(self.stage.logs(), "utf-8")
            await self.stage.close()

    async def judged(self, breaking: asyncio.Task[None]) -> None:
        """Produce until the faults have ended, while clients read; judge what they received, and the journal at the end."""
        settings = Settings.load(self.stage.config, {})
        self._readers = [OutsideReader(settings) for _ in range(CONNECTED)]
        try:
            await self._judged(breaking)
        finally:
            for reader in self._readers:
                await reader.aclose()

    async def _judged(self, breaking: asyncio.Task[None]) -> None:
        clients = [asyncio.create_task(client.run()) for client in self._clients]
        load = self._load
        try:
            await asyncio.gather(load.run(breaking.done), breaking)
            healed = time.monotonic()
            topic = await read_topic(self.stage.bootstrap)
            assert sum(map(len, topic.values())) >= load.sent, "the topic contains all acknowledged events"
            self._final = final = FinalState(self.stage, self._readers[0].journal, topic)
            await final.settle()
            self._settled_seconds = round(time.monotonic() - healed, 1)
            self._removed = removed = final.removed(may_be_full="redis-full" in self.faults)
            self._judge = judge = Judge(topic, removed.ends, final.floors if self.stage.kept_data else None)
            await self._follow_to_the_end(judge)
            self._drain_seconds = round(time.monotonic() - healed, 1)
        finally:
            breaking.cancel()
            stuck = await self._cancelled(clients)
        self.wrong += [f"a client does not end: {task.get_stack()}" for task in stuck]
        self.wrong += [f"a client ended: {task.exception()!r}" for task in clients if task.done() and not task.cancelled()]
        for client in self._clients:
            self.wrong += client.wrong
            for reading in client.readings:
                judge.judge(reading)
            if not client.readings:
                self.wrong.append("a client never read")
        # Each client reads more than once, and a busy key has hundreds of events.
        judge.require(3 * len(self._clients), 50 * len(self._clients))
        if {type(item) for client in self._clients for reading in client.readings for item in reading.items} == {Gap}:
            self.wrong.append("clients received only gaps")
        await final.judge(judge, self._readers[0])
        await final.verify()
        self.wrong += [*final.wrong, *judge.wrong]

    @staticmethod
    async def _cancelled(tasks: list[asyncio.Task[None]]) -> set[asyncio.Task[None]]:
        """Cancel tasks repeatedly, because the client of Redis may swallow it before Python 3.12; return those that continue."""
        left = set(tasks)
        for _ in range(int(END_SECONDS)):
            for task in left:
                task.cancel()
            _, left = await asyncio.wait(left, timeout=1)
            if not left:
                break
        return left

    async def _follow_to_the_end(self, judge: Judge) -> None:
        """Wait until each follower has received the last event of its key, or a report that it was removed."""
        followers = [client for client in self._clients if client.follows]
        for client in followers:
            client.is_settled = True

        def behind() -> list[str]:
            found = []
            for client in followers:
                if not client.readings:
                    found.append("a follower never read")
                    continue
                reading = client.readings[-1]
                for partition in judge.topic:
                    at, last = reading.position(partition), judge.last(reading, partition)
                    if at < last:
                        found.append(f"a follower of {reading.key!r} reached {partition}-{at} of {last}")
            return found

        try:
            await wait_until(lambda: not behind(), FOLLOW_SECONDS, "all followers have received everything")
        except AssertionError:
            self.wrong += behind()[:5]

    async def _break(self, names: list[str], seconds: float) -> None:
        async for name in when_planned(self._chance, names, seconds, self.seed):
            self.faults.append(name)
            if name in AT_POINTS:
                await self._killed_at(AT_POINTS[name])
            else:
                await self._faults_of[name](self.stage, self._chance)

    async def _killed_at(self, point: str) -> None:
        if point != "midnight":
            await killed_at(self.stage, self._chance, point, self._chance.randrange(1, 4))
            return
        # A partition that has caught up uses the wall clock: it passes midnights only if it is stored again. The first days of two
        # or more partitions begin without one.
        await killed_at(self.stage, self._chance, point, self._chance.randrange(5, 25), self._wipe)

    async def _wipe(self, worker: KilledAt) -> None:
        await wait_until(lambda: CLAIMED in worker.log(), TRACE_SECONDS, "the worker that will be killed has claimed the journal")
        await flushall(self.stage, self._chance)

    def line(self) -> str:
        """Return a summary of the run in a few lines."""
        faults = ", ".join(f"{name} x{times}" if times > 1 else name for name, times in Counter(self.faults).items())
        exits = ", ".join(f"{times}x {code}" for code, times in sorted(self.stage.exits.items()))
        data = "kept its data" if self.stage.kept_data else "lost data"
        sent, size = self._load.sent, self._load.bytes
        begins = sum((client.begins for client in self._clients), Counter[str]())
        lines = [
            f"seed {self.seed}: {sent:,} events, {size / 1e6:.1f} MB, Redis {data}, exits of workers: {exits or 'none'}; {faults}"
        ]
        lines.append(f"  begins: {', '.join(f'{kind} x{times}' for kind, times in begins.most_common())}")
        if self._judge is not None and self._final is not None and self._removed is not None:
            removed = ", ".join(f"{times} for {cause}" for cause, times in self._removed.causes.most_common())
            lines += [
                f"  {self._judge.readings:,} readings of {len(self._judge.keys):,} keys, {self._judge.entries:,} entries compared, "
                f"{self._judge.gaps:,} gaps reported, {len(self._judge.wrong)} wrong",
                f"  {self._final.segments} segments of {len(self._final.days)} days from {sorted(self._final.floors.values())}, "
                f"removed: {removed or 'none'}; all stored and packed {self._settled_seconds} s "
                f"after the load, followed {self._drain_seconds} s",
            ]
        return "\n".join([*lines, *(f"  WRONG: {fault}"[:600] for fault in self.wrong[:8])])


@click.command()
@click.option("--runs", default=3, show_default=True, help="Number of runs, each with its own seed.")
@click.option("--seed", default=1, show_default=True, help="Seed of the first run.")
@click.option("--seconds", default=60.0, show_default=True, help="Duration of the load and the faults of a run.")
@click.option("--rate", default=150.0, show_default=True, help="Events a second.")
@click.option("--clients", default=30, show_default=True, help="Number of readers, and also of followers.")
@topology_option
@click.option("--faults", default=None, help="Only these, separated by commas.")
@click.option("--embedded", is_flag=True, help="Use the embedded broker instead of Apache Kafka.")
@click.option("--share", is_flag=True, help="Run the share of CI: one run of 20 s.")
def main(
    runs: int,
    seed: int,
    seconds: float,
    rate: float,
    clients: int,
    topology: str,
    faults: str | None,
    embedded: bool,
    share: bool,
) -> None:
    """Break workers, Redis and broker while journals are read, and compare what readers receive with the topic."""
    for name in ("aiokafka", "asyncio", "streams_app"):
        logging.getLogger(name).setLevel(logging.CRITICAL)  # servers are down on purpose
    if share:
        runs, seconds = 1, 20.0
    chosen = faults.split(",") if faults else [*AT_POINTS, *(NOTICED if topology == "single" else OF_TOPOLOGY[topology])]
    others = [name for name in chosen if name not in AT_POINTS]
    names = [
        *(name for name in chosen if name in AT_POINTS),
        *(available(others, is_apache=not embedded, topology=topology) if others else []),
    ]

    def perform(seed: int, folder: Path) -> tuple[Run, Coroutine[Any, Any, None]]:
        run = Run(seed, folder, clients, rate, seconds, is_apache=not embedded, topology=topology)
        return run, run.perform(names)

    run_all("chaos-journal", range(seed, seed + runs), perform)


if __name__ == "__main__":
    main()
