"""``python -m tests.chaos.live``: live views under the faults of :mod:`tests.chaos.faults`, and hubs that are killed and frozen.

The run is judged from outside: the states that browsers received are compared with the produced events. It reports the age of the
states, and asserts no durations.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import logging
import random
import signal
import sys
import time
from collections import Counter
from collections.abc import Coroutine, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

import aiohttp
import click
from aiokafka import AIOKafkaProducer
from aiokafka.errors import KafkaError

from streams_app.embedded.ports import free_port
from tests.chaos.faults import OF_TOPOLOGY, available, when_planned
from tests.chaos.live_clients import VIEWS, Client
from tests.chaos.live_judge import EXPIRY_MS, GONE, RECENT_MS, SHOW, Judge, Produced, differing
from tests.chaos.load import Load
from tests.chaos.run_series import run_all, topology_option
from tests.chaos.stage import Stage
from tests.chaos.topologies import STAGES
from tests.chaos.traces import must
from tests.helpers.waiting import wait_until
from tests.helpers.worker.workers import WorkerProcess

WORKERS: Final = 2
HUBS: Final = 2
PAGES: Final = 25
STEP_SECONDS: Final = 0.05
FOLDED_RATE: Final = 200.0
DRAIN_SECONDS: Final = 120.0
FREEZE_SECONDS: Final = 6.0
HUB_KILLED: Final = "hub-sigkill"
HUB_FROZEN: Final = "hub-sigstop"
TOPIC: Final = "contributions"

SETTINGS: Final = f"""\
[live.supporters]
kind = "count"
source = "{TOPIC}"
page = "project"
item = "id"
expiry = "{EXPIRY_MS}ms"
remove = {{"@type" = "{GONE}"}}
public = true
[live.news]
kind = "list"
source = "{TOPIC}"
page = "project"
item = "id"
payload = ["title"]
expiry = "{EXPIRY_MS}ms"
show = {SHOW}
remove = {{"@type" = "{GONE}"}}
public = true
[live.visitors]
kind = "presence"
expiry = "10s"
public = true
"""


class HubProcess(WorkerProcess):
    """A hub process, which keeps its port when it is restarted.

    Attributes:
        more_settings: Settings of the hub that only this version has.
    """

    more_settings = "tabs_per_client = 0\n"

    def __init__(self, stage: Stage, port: int, environment: Mapping[str, str] | None = None) -> None:
        self.port = port
        config = stage.folder / f"hub-{port}.toml"
        config.write_text(f'{stage.config.read_text()}[live_server]\nport = {port}\nbeat = "1s"\n{self.more_settings}')
        super().__init__(config, stage.folder, environment)

    def command(self, config: Path, arguments: Sequence[str]) -> list[str]:
        return [sys.executable, "-m", "streams_app", "live", "serve", "--config", str(config.resolve()), *arguments]


class Run:
    """One run, from the first server to the judgement.

    Attributes:
        wrong: Violations and failures.
    """

    def __init__(self, seed: int, folder: Path, clients: int, topology: str) -> None:
        """Create a run without starting it."""
        self.seed = seed
        self.stage = STAGES[topology](folder, is_apache=True, is_redis7=bool(seed // 2 % 2), more_settings=SETTINGS)
        self._faults_of = OF_TOPOLOGY[topology]
        self.faults: list[str] = []
        self.wrong: list[str] = []
        self.hubs: list[HubProcess] = []
        self.pages: dict[str, list[Produced]] = {f"project_{number}": [] for number in range(PAGES)}
        self._chance = random.Random(seed)
        self._clients = [self._client(number) for number in range(clients)]
        self._numbers = itertools.count()
        self._judge: Judge | None = None
        self._drain_seconds = 0.0

    def _client(self, number: int) -> Client:
        chance = random.Random(f"{self.seed}/{number}")
        return Client(chance.choice(list(self.pages)), f"tab-{number:08d}", chance, self._urls)

    def _urls(self) -> list[str]:
        return [f"http://127.0.0.1:{hub.port}" for hub in self.hubs if hub.exit_code is None]

    async def perform(self, names: list[str], seconds: float, rate: float) -> None:
        """Inject faults for a while, end them, drain and judge."""
        try:
            await self.stage.start(WORKERS)
            self.hubs = [HubProcess(self.stage, free_port()) for _ in range(HUBS)]
            for hub in self.hubs:
                await hub.wait_ready(60)
            # The same workers also fold, because some faults happen at a point of folding.
            folding = Load(self.stage.bootstrap, seed=self.seed, rate=FOLDED_RATE, is_idempotent=True)
            breaking = asyncio.create_task(self._break(names, seconds))
            await asyncio.gather(self.watched(rate, breaking), folding.run(seconds, 0, breaking.done))
            codes = [*await self.stage.stop_workers(), *await asyncio.gather(*(hub.terminate(25) for hub in self.hubs))]
            if any(codes):
                self.wrong.append(f"workers and hubs ended with {codes} on SIGTERM")
        except AssertionError as error:
            self.wrong.append(f"{type(error).__name__}: {error}"[:3_000])
        finally:
            if self.wrong:
                logs = self.stage.logs() + "".join(hub.log() for hub in self.hubs)
                produced = {page: [asdict(event) for event in events] for page, events in self.pages.items()}
                text = json.dumps({"pages": produced, "wrong": self.wrong})
                (self.stage.folder.parent / f"seed-{self.seed}.json").write_text(text, "utf-8")
                (self.stage.folder.parent / f"seed-{self.seed}.log").write_text(logs, "utf-8")
            for hub in self.hubs:
                hub.continue_signal()
                hub.kill()
            await self.stage.close()

    async def watched(self, rate: float, breaking: asyncio.Task[None]) -> None:
        """Produce until the faults have ended, while browsers are connected to the hubs; judge what they received."""
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=5)
        async with aiohttp.ClientSession(timeout=timeout, connector=aiohttp.TCPConnector(limit=0)) as session:
            watching = [asyncio.create_task(client.run(session)) for client in self._clients]
            try:
                await asyncio.gather(self._produce(rate, breaking), breaking)
                await self._drain()
            finally:
                for task in watching:
                    task.cancel()
                outcomes = await asyncio.gather(*watching, return_exceptions=True)
            self.wrong += [repr(error) for error in outcomes if isinstance(error, Exception)]
        self._judge = judge = Judge(self.pages)
        for client in self._clients:
            for shown in client.shown:
                judge.judge(shown)
        # Each browser receives at least one state of a count and one state of a list.
        judge.require(2 * len(self._clients))
        self.wrong += judge.wrong

    async def _break(self, names: list[str], seconds: float) -> None:
        async for name in when_planned(self._chance, names, seconds, self.seed):
            self.faults.append(name)
            if name in (HUB_KILLED, HUB_FROZEN):
                await self._break_hub(is_killed=name == HUB_KILLED)
            else:
                await self._faults_of[name](self.stage, self._chance)

    async def _break_hub(self, *, is_killed: bool) -> None:
        number = self._chance.randrange(HUBS)
        hub = self.hubs[number]
        if is_killed:
            hub.kill()
            must(hub.exit_code == -signal.SIGKILL, "exit code -9")
            self.hubs[number] = HubProcess(self.stage, hub.port)
            self.stage.ended.append(hub)
        else:
            hub.stop_signal()
            try:
                await asyncio.sleep(FREEZE_SECONDS)  # the fault lasts
            finally:
                hub.continue_signal()

    async def _produce(self, rate: float, breaking: asyncio.Task[None]) -> None:
        producer = AIOKafkaProducer(
            bootstrap_servers=self.stage.bootstrap, acks="all", enable_idempotence=True, linger_ms=5, request_timeout_ms=60_000
        )
        await producer.start()
        acks: set[asyncio.Task[None]] = set()
        due = 0.0
        try:
            while not breaking.done():
                due += rate * STEP_SECONDS
                while due >= 1:
                    due -= 1
                    acks.add(asyncio.create_task(self._send(producer)))
                await asyncio.sleep(STEP_SECONDS)  # the rate of the load
            await asyncio.wait(acks, timeout=90)
        finally:
            await producer.stop()

    async def _send(self, producer: AIOKafkaProducer) -> None:
        page = self._chance.choice(list(self.pages))
        of_page = self.pages[page]
        is_gone = bool(of_page) and self._chance.random() < 0.15
        is_repeated = bool(of_page) and self._chance.random() < 0.2
        item = self._chance.choice(of_page[-20:]).item if is_gone or is_repeated else f"c{next(self._numbers)}"
        now_ms = int(time.time() * 1000)
        event = Produced(item, now_ms, is_gone, now_ms)
        of_page.append(event)
        value = json.dumps({"project": page, "id": item, "title": f"title of {item}"}).encode()
        headers = [("ce_type", GONE.encode() if is_gone else b"made")]
        try:
            sent = await producer.send_and_wait(TOPIC, value, page.encode(), timestamp_ms=now_ms, headers=headers)
        except KafkaError:
            return
        event.acked_ms, event.offset = int(time.time() * 1000), sent.offset

    async def _drain(self) -> None:
        """Wait until every browser shows the current state."""
        loop = asyncio.get_running_loop()
        healed = loop.time()
        for client in self._clients:
            client.is_settled = True
        sizes = Counter(client.page for client in self._clients)
        ordered = {page: sorted(events, key=lambda event: event.offset) for page, events in self.pages.items()}

        def wrong() -> list[str]:
            now_ms = int(time.time() * 1000)
            found: list[str] = []
            for client in self._clients:
                if client.latest.keys() != set(VIEWS):
                    found.append(f"a browser of {client.page} received only {sorted(client.latest)}")
                elif all(event.acked_ms is not None for event in ordered[client.page]):
                    found += differing(client.latest, client.page, ordered[client.page], now_ms, sizes[client.page])
            return found

        try:
            await wait_until(lambda: not wrong(), DRAIN_SECONDS, "all browsers show the current state")
        except AssertionError:
            self.wrong += wrong()[:5]
        self._drain_seconds = round(loop.time() - healed, 1)

    def line(self) -> str:
        """Return a summary of the run in a few lines."""
        faults = ", ".join(f"{name} x{times}" if times > 1 else name for name, times in Counter(self.faults).items())
        exits = ", ".join(f"{times}x {code}" for code, times in sorted(self.stage.exits.items()))
        events = sum(len(page) for page in self.pages.values())
        data = "kept its data" if self.stage.kept_data else "lost data"
        lines = [
            f"seed {self.seed}: {events:,} events, {len(self._clients)} browsers, "
            f"{sum(client.connects for client in self._clients):,} connections, Redis {data}, "
            f"all current {self._drain_seconds} s after the last fault, exits of workers: {exits or 'none'}; {faults}"
        ]
        if self._judge is not None:
            ages = sorted(self._judge.ages_ms)
            of = {share: ages[min(len(ages) - 1, int(len(ages) * share))] for share in (0.5, 0.99, 1.0)} if ages else {}
            labelled = ", ".join(f"{count:,} {name}" for name, count in sorted(self._judge.labelled.items()))
            lines.append(
                f"  {len(ages):,} states without a label, last valid {of.get(0.5, 0)} ms before (p99 {of.get(0.99, 0)}, "
                f"max {of.get(1.0, 0)}; {self._judge.share_of_old:.2%} over {RECENT_MS}), {len(self._judge.wrong)} wrong; "
                f"labelled: {labelled or 'none'}"
            )
        return "\n".join([*lines, *(f"  WRONG: {fault}"[:600] for fault in self.wrong[:5])])


@click.command()
@click.option("--runs", default=3, show_default=True, help="Number of runs, each with its own seed.")
@click.option("--seed", default=1, show_default=True, help="Seed of the first run.")
@click.option("--seconds", default=60.0, show_default=True, help="Duration of the load and the faults of a run.")
@click.option("--rate", default=50.0, show_default=True, help="Events a second.")
@click.option("--clients", default=200, show_default=True, help="Number of browsers.")
@topology_option
@click.option("--faults", default=None, help="Only these, separated by commas.")
@click.option("--share", is_flag=True, help="Run the share of CI: one run of 20 s with 40 browsers.")
def main(runs: int, seed: int, seconds: float, rate: float, clients: int, topology: str, faults: str | None, share: bool) -> None:
    """Break workers, hubs, Redis and broker while browsers are connected, and compare the received states with the events."""
    for name in ("aiokafka", "asyncio"):
        logging.getLogger(name).setLevel(logging.CRITICAL)  # servers are down on purpose
    if share:
        runs, seconds, clients = 1, 20.0, 40
    own = (HUB_KILLED, HUB_FROZEN)
    chosen = faults.split(",") if faults else [*OF_TOPOLOGY[topology], *own]
    others = [name for name in chosen if name not in own]
    names = [*(available(others, is_apache=True, topology=topology) if others else []), *(name for name in chosen if name in own)]

    def perform(seed: int, folder: Path) -> tuple[Run, Coroutine[Any, Any, None]]:
        run = Run(seed, folder, clients, topology)
        return run, run.perform(names, seconds, rate)

    run_all("chaos-live", range(seed, seed + runs), perform)


if __name__ == "__main__":
    main()
