"""What pages of the console take with many open groups and dead letters, beside the commands that show the same.

Run by ``make bench-console``. One worker folds the events of one topic with many folds. Each figure is printed with its goal.
"""

from __future__ import annotations

import asyncio
import secrets
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import aiohttp
import click
from aiokafka import AIOKafkaProducer
from aiokafka.admin import AIOKafkaAdminClient, NewTopic

from benchmarks.live_rows import Row
from benchmarks.processes import CpuWatch, machine
from benchmarks.servers import Servers, started
from streams_app.embedded.ports import free_port
from streams_app.errors import StreamsAppError
from streams_app.folding.store.keys import shard_keys
from tests.helpers.waiting import wait_until
from tests.helpers.worker.workers import WorkerProcess
from tests.servers.cache import ServerUnavailableError

FOLDS: Final = 20
PARTITIONS: Final = 50
GROUPS: Final = 100_000
DEAD_LETTERS: Final = 1_000_000
BROWSERS: Final = 100
SECONDS: Final = 20

FIRST_BYTE_MS: Final = 200
PAGE_MS: Final = 1_000
REDIS_SHARE: Final = 0.01
SHARED_SECONDS: Final = 2.2
"""Answers are shared among browsers for 2 s: after this time, a page is collected anew."""

TURNS: Final = 5
STREAM: Final = {"HX-Request": "true", "Accept": "text/html, text/event-stream"}


@dataclass(frozen=True, slots=True)
class Application:
    """An application whose state is as large as wanted, with its running worker."""

    config: Path
    app_id: str
    topic: str
    worker: WorkerProcess
    folds: int
    partitions: int
    groups: int
    dead_letters: int
    turns: int
    seconds: float

    @property
    def size(self) -> str:
        """What it has, in words."""
        groups, dead = f"{self.groups:,} open groups", f"{self.dead_letters:,} dead letters"
        return f"{self.folds} folds, {self.partitions} partitions, {groups}, {dead}"


class ConsoleProcess(WorkerProcess):
    """A process of ``console`` instead of a worker."""

    def command(self, config: Path, arguments: Sequence[str]) -> list[str]:
        """Return the command line."""
        return [sys.executable, "-m", "streams_app", "console", "--config", str(config.resolve()), *arguments]


def configured(servers: Servers, folder: Path, folds: int, partitions: int) -> tuple[Path, str, str]:
    """Return the settings of an application, its ``app_id``, and its source topic."""
    app_id = f"bench-{secrets.token_hex(4)}"
    topic, config = f"{app_id}.events", folder / f"{app_id}.toml"
    head = f"""\
app_id = "{app_id}"
[kafka]
bootstrap_servers = "{servers.bootstrap}"
partitions = {partitions}
[redis]
url = "{servers.redis_url}"
[http]
port = {free_port()}
"""
    declared = "".join(
        f'[folds.fold-{number}]\nsource = "{topic}"\ngroup_key = "id"\nchanged = "m"\nquiet_period = "5h"\n'
        for number in range(folds)
    )
    config.write_text(head + declared, "utf-8")
    return config, app_id, topic


@asynccontextmanager
async def application(servers: Servers, folder: Path, scale: float) -> AsyncIterator[Application]:
    """Yield an application whose worker has folded everything; remove its state at the end."""
    folds, partitions = max(2, round(FOLDS * scale)), max(2, round(PARTITIONS * scale))
    groups, dead = max(1, round(GROUPS * scale / folds)), round(DEAD_LETTERS * scale)
    turns, seconds = max(1, round(TURNS * scale)), max(1.0, SECONDS * scale)
    config, app_id, topic = configured(servers, folder, folds, partitions)
    admin = AIOKafkaAdminClient(bootstrap_servers=servers.bootstrap)
    await admin.start()
    try:
        outputs = [f"{topic}.fold-{number}" for number in range(folds)]
        await admin.create_topics([NewTopic(name, partitions, 1) for name in (topic, f"{topic}.dead", *outputs)])
        await produce(servers, topic, [(b"g%d" % number, b'{"id":"g%d","m":["likes"]}' % number) for number in range(groups)])
        await produce(servers, f"{topic}.dead", ((b"g", b'{"id":null}') for _ in range(dead)), [("reason", b"no-group")])
        with WorkerProcess(config, folder) as worker:
            await worker.wait_ready(300)
            keys = [
                shard_keys(app_id, f"fold-{fold}", topic, number).first for fold in range(folds) for number in range(partitions)
            ]

            def is_folded() -> bool:
                with servers.client() as client, client.pipeline(transaction=False) as pipe:
                    for key in keys:
                        pipe.zcard(key)
                    counts: list[int] = pipe.execute()
                    return sum(counts) >= groups * folds

            await wait_until(is_folded, 600, "every group is open")
            yield Application(config, app_id, topic, worker, folds, partitions, groups * folds, dead, turns, seconds)
    finally:
        await admin.close()
        servers.forget(app_id)


async def produce(
    servers: Servers, topic: str, records: Iterable[tuple[bytes, bytes]], headers: list[tuple[str, bytes]] | None = None
) -> None:
    """Write records, given as pairs of key and value."""
    producer = AIOKafkaProducer(bootstrap_servers=servers.bootstrap, linger_ms=20, max_batch_size=500_000)
    await producer.start()
    try:
        for key, value in records:
            await producer.send(topic, value, key, headers=headers)
        await producer.flush()
    finally:
        await producer.stop()


async def page_rows(app: Application, url: str) -> list[Row]:
    """Measure the time until the first and the last byte of each page, collected anew each time."""
    fold, dead = "/folds/fold-0", f"/topics/{app.topic}.dead"
    pages = {
        "overview": ("/", FIRST_BYTE_MS, None),
        "fold": (fold, PAGE_MS, ["groups", "list", "--fold", "fold-0"]),
        "group": (f"{fold}/group?key=g0", PAGE_MS, ["groups", "explain", "g0", "--fold", "fold-0"]),
        "topic": (f"/topics/{app.topic}", PAGE_MS, None),
        "dead letters": (dead, PAGE_MS, ["dead-letters", "list", "--fold", "fold-0"]),
        "workers": ("/workers", PAGE_MS, None),
        "settings": ("/settings", PAGE_MS, None),
        "search": ("/search?q=g0", PAGE_MS, None),
    }
    rows = []
    async with aiohttp.ClientSession() as session:
        for name, (path, goal, command) in pages.items():
            times = []
            for _ in range(app.turns):
                await asyncio.sleep(SHARED_SECONDS)
                begin = time.monotonic()
                async with session.get(url + path) as reply:
                    await reply.content.readany()
                    first_ms = (time.monotonic() - begin) * 1_000
                    await reply.read()
                    assert reply.status == 200, f"{path}: status {reply.status}"
                times.append((first_ms, (time.monotonic() - begin) * 1_000))
            first_ms, whole_ms = (sorted(column)[app.turns // 2] for column in zip(*times, strict=True))
            beside = f"whole page {whole_ms:.0f} ms, first time {times[0][0]:.0f} ms"
            if command is not None:
                took_ms = await command_ms(app, command)
                beside += f"; the command takes {took_ms:.0f} ms: {first_ms / took_ms:.2f} of it"
            rows.append(Row(f"first byte of the page: {name}", first_ms, goal, "ms", beside))
    return rows


async def command_ms(app: Application, words: Sequence[str]) -> float:
    """Return how long a command takes, with the start of its process."""
    begin = time.monotonic()
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "streams_app", *words, "--config", str(app.config), stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    _, text = await process.communicate()
    assert process.returncode == 0, text.decode()
    return (time.monotonic() - begin) * 1_000


async def browsers_row(servers: Servers, app: Application, console: ConsoleProcess, url: str) -> Row:
    """Measure the CPU of Redis while browsers have the overview open, without what the worker and the history take."""
    pids = {"redis": servers.redis_pid, "console": console.pid, "worker": app.worker.pid}
    idle = CpuWatch(pids)
    await asyncio.sleep(app.seconds)
    before = idle.used()
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:
        replies = [await session.get(f"{url}/", headers=STREAM) for _ in range(BROWSERS)]
        faults = sum(reply.status != 200 for reply in replies)
        reading = [asyncio.create_task(_read_all(reply)) for reply in replies]
        busy = CpuWatch(pids)
        await asyncio.sleep(app.seconds)
        after = busy.used()
        for task in reading:
            task.cancel()
        received = sum(await asyncio.gather(*reading))
    share = {name: (after[name] - before[name]) / app.seconds for name in after if name in before}
    beside = f"the console takes {share.get('console', 0):.1%} more, {received / app.seconds:.0f} updates/s; {app.size}"
    fault = f"{faults} streams were rejected" if faults else "" if "redis" in share else "Redis was not started here"
    return Row(f"Redis, with {BROWSERS} browsers on the overview", share.get("redis", 0.0), REDIS_SHARE, "%", beside, fault)


async def _read_all(reply: aiohttp.ClientResponse) -> int:
    """Count the updates of a stream until it is cancelled."""
    received = 0
    try:
        async for line in reply.content:
            received += not line.strip()  # an empty line ends an update
    except asyncio.CancelledError:
        reply.close()
    return received


async def run(servers: Servers, folder: Path, scale: float) -> list[Row]:
    """Measure all rows one after the other, and print each at once."""
    rows: list[Row] = []
    async with application(servers, folder, scale) as app:
        click.echo(app.size)
        url = f"http://127.0.0.1:{free_port()}"
        with ConsoleProcess(app.config, folder, arguments=["--listen", url.removeprefix("http://")]) as console:
            await wait_until(lambda: url in console.log(), 60, "the console listens")
            for row in await page_rows(app, url):
                click.echo(row.text)
                rows.append(row)
            rows.append(await browsers_row(servers, app, console, url))
            click.echo(rows[-1].text)
    return rows


@click.command()
@click.option("--kafka", default="embedded", show_default=True, help="embedded, apache (the version of the tests) or HOST:PORT.")
@click.option("--redis", "redis_choice", default="valkey", show_default=True, help="valkey (embedded), redis (version 7) or a URL.")
@click.option("--scale", type=click.FloatRange(0, min_open=True), default=1.0, help="Factor for all sizes; the goals apply to 1.")
def main(kafka: str, redis_choice: str, scale: float) -> None:
    """Measure pages of the console, each figure with its goal. The exit code is 1 if a measurement fails."""
    try:
        with started(kafka, redis_choice) as servers, tempfile.TemporaryDirectory(prefix="bench-console-") as folder:
            click.echo(f"{servers.broker}, {servers.redis}, {machine()}")
            rows = asyncio.run(run(servers, Path(folder), scale))
    except (RuntimeError, TimeoutError, StreamsAppError, ServerUnavailableError, AssertionError) as error:
        raise click.ClickException(str(error) or repr(error)) from error
    missed = [row.name for row in rows if not row.is_reached]
    click.echo(f"{len(rows) - len(missed)} of {len(rows)} goals are reached" + (f"; missed: {'; '.join(missed)}" if missed else ""))


if __name__ == "__main__":
    main()
