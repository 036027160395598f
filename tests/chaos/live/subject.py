"""Live views under faults, and their own: hubs that are killed and frozen.

They are judged from outside: the states that browsers received are compared with the produced events. The report has the age of the
states; no durations are asserted.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import random
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Final

import aiohttp
from aiokafka import AIOKafkaProducer
from aiokafka.errors import KafkaError

from streams_app.embedded.ports import free_port
from tests.chaos.live.clients import VIEWS, Client
from tests.chaos.live.judge import EXPIRY_MS, GONE, RECENT_MS, SHOW, Judge, Produced, differing
from tests.chaos.pace import paced, producing
from tests.chaos.run import Duration
from tests.chaos.stage import Stage
from tests.chaos.subject import Amount, Subject
from tests.chaos.traces import must
from tests.helpers.waiting import wait_until
from tests.helpers.worker.workers import WorkerProcess

if TYPE_CHECKING:
    from tests.chaos.stage_run import StageRun

HUBS: Final = 2
PAGES: Final = 25
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


class Live(Subject):
    """Two hubs, and browsers that visit pages with a view of each kind.

    Attributes:
        hubs: The hubs.
        new_hub: Starts a hub by its number and port.
        pages: Page → its produced events.
    """

    name = "live"
    full = Duration(3, 60.0)
    share = Duration(1, 20.0)
    alone = Amount(50.0, clients=200)
    beside = Amount(30.0, clients=40)
    settings = SETTINGS
    own_faults = (HUB_KILLED, HUB_FROZEN)

    def __init__(self, run: StageRun, amount: Amount) -> None:
        super().__init__(run, amount)
        self.hubs: list[HubProcess] = []
        self.new_hub: Callable[[int, int], HubProcess] = lambda _, port: HubProcess(run.stage, port)
        self.pages: dict[str, list[Produced]] = {f"project_{number}": [] for number in range(PAGES)}
        self._clients = [self._client(number) for number in range(amount.clients)]
        self._numbers = itertools.count()
        self._judge: Judge | None = None
        self._drain_seconds = 0.0

    def _client(self, number: int) -> Client:
        chance = random.Random(f"{self.run.seed}/{number}")
        return Client(chance.choice(list(self.pages)), f"tab-{number:08d}", chance, self._urls)

    def _urls(self) -> list[str]:
        return [f"http://127.0.0.1:{hub.port}" for hub in self.hubs if hub.exit_code is None]

    async def start(self) -> None:
        self.hubs = [self.new_hub(number, free_port()) for number in range(HUBS)]
        for hub in self.hubs:
            await hub.wait_ready(60)

    async def load(self, breaking: asyncio.Task[None]) -> None:
        """Produce until the faults have ended, while browsers are connected to the hubs; judge what they received."""
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=5)
        async with aiohttp.ClientSession(timeout=timeout, connector=aiohttp.TCPConnector(limit=0)) as session:
            watching = [asyncio.create_task(client.run(session)) for client in self._clients]
            try:
                await asyncio.gather(self._produce(breaking.done), breaking)
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

    async def cause(self, fault: str) -> None:
        number = self.chance.randrange(HUBS)
        hub = self.hubs[number]
        if fault == HUB_KILLED:
            hub.kill()
            must(hub.exit_code == -signal.SIGKILL, "exit code -9")
            self.hubs[number] = self.new_hub(number, hub.port)
            self.run.stage.ended.append(hub)
        else:
            hub.stop_signal()
            try:
                await asyncio.sleep(FREEZE_SECONDS)  # the fault lasts
            finally:
                hub.continue_signal()
        self.run.stage.record_healed()

    async def _produce(self, is_over: Callable[[], bool]) -> None:
        async with producing(self.run.stage.bootstrap) as producer:
            await paced(self.amount.rate, lambda: [self._send(producer)], is_over)

    async def _send(self, producer: AIOKafkaProducer) -> None:
        page = self.chance.choice(list(self.pages))
        of_page = self.pages[page]
        is_gone = bool(of_page) and self.chance.random() < 0.15
        is_repeated = bool(of_page) and self.chance.random() < 0.2
        item = self.chance.choice(of_page[-20:]).item if is_gone or is_repeated else f"c{next(self._numbers)}"
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

    async def end(self) -> list[int]:
        return list(await asyncio.gather(*(hub.terminate(25) for hub in self.hubs)))

    async def stop(self) -> None:
        for hub in self.hubs:
            hub.continue_signal()
            hub.kill()

    def logs(self) -> str:
        return "".join(hub.log() for hub in self.hubs)

    def keep(self, stem: str) -> None:
        produced = {page: [asdict(event) for event in events] for page, events in self.pages.items()}
        Path(f"{stem}.json").write_text(json.dumps(produced), "utf-8")

    def lines(self) -> list[str]:
        events = sum(len(page) for page in self.pages.values())
        lines = [
            f"live: {events:,} events, {len(self._clients)} browsers, "
            f"{sum(client.connects for client in self._clients):,} connections, "
            f"all current {self._drain_seconds} s after the last fault"
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
        return lines
