"""A journal with a worker and a broker: how late a follower is, how fast it is filled beside bare reading, what folding loses."""

from __future__ import annotations

import asyncio
import json
import secrets
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, aclosing, asynccontextmanager
from pathlib import Path
from typing import Any, Final, NamedTuple

from aiokafka import AIOKafkaProducer

from benchmarks import topics
from benchmarks.contest import bare, long_ago_ms
from benchmarks.fences import Fences, fences
from benchmarks.journal_rows import Sizes
from benchmarks.live_redis import now_ms
from benchmarks.live_rows import Row, percentile
from benchmarks.loads import LOADS, PARTITIONS
from benchmarks.servers import Servers
from benchmarks.subscribers import create_topics
from benchmarks.worker import cpu_watch, deployed, running
from streams_app.journal.reading.entries import Entry
from streams_app.journal.reading.reader import JournalReader
from streams_app.journal.store.keys import journal_keys
from streams_app.settings import Settings
from tests.helpers.waiting import wait_until
from tests.helpers.worker.workers import WorkerProcess

JOURNAL: Final = "accounts"
ACCOUNTS: Final = 5
EVENTS_A_SECOND: Final = 20
LIMIT_SECONDS: Final = 300
STEADY_RATE: Final = 20_000
"""Events/s of a worker that keeps up: far below what it folds of a backlog."""

GOALS: Final = {"hot": 0.4, "wide": 0.1}
"""Load → filed events/s, of those of a bare reader."""


def journal(source: str) -> str:
    """The section of a journal."""
    return f'[journals.{JOURNAL}]\nsource = "{source}"\nkey = "account_id"\nkeep = "30d"\n'


@asynccontextmanager
async def alone(servers: Servers, folder: Path, source: str) -> AsyncIterator[Path]:
    """Settings of an application that has a journal and nothing else; what it holds is gone when the block ends."""
    app_id = f"bench-{secrets.token_hex(4)}"
    config = folder / f"{app_id}.toml"
    config.write_text(
        f'app_id = "{app_id}"\n[kafka]\nbootstrap_servers = {json.dumps(servers.bootstrap)}\n'
        f"[redis]\nurl = {json.dumps(servers.redis_url)}\n[http]\nport = 0\n{journal(source)}",
        "utf-8",
    )
    try:
        yield config
    finally:
        servers.forget(app_id)


async def follower(servers: Servers, folder: Path, sizes: Sizes) -> Row:
    """Events for a while, each of which somebody who follows its key is given."""
    topic = f"bench-journal-{time.time_ns():x}"
    took: list[float] = []
    await topics.make(servers.bootstrap, topic)

    async def follow(reader: JournalReader, account: int) -> None:
        async with aclosing(reader.read(f"account_{account}", follow=True)) as found:
            async for item in found:
                assert isinstance(item, Entry)
                took.append((now_ms() - item.at_ms) / 1000)

    try:
        async with alone(servers, folder, topic) as config:
            await create_topics(config, {})
            with WorkerProcess(config, folder) as worker:
                await worker.wait_ready()
                async with JournalReader(Settings.load(config, {})) as reader:
                    tasks = [asyncio.create_task(follow(reader, account)) for account in range(ACCOUNTS)]
                    try:
                        # At first: until each of them has learned that its partitions are claimed, and connected.
                        await _produce(servers.bootstrap, topic, ACCOUNTS)
                        await wait_until(lambda: len(took) >= ACCOUNTS, 60, "all who follow a key are given its first event")
                        took.clear()
                        produced = await _produce(servers.bootstrap, topic, max(ACCOUNTS, sizes.seconds * EVENTS_A_SECOND))
                        await wait_until(lambda: len(took) >= produced, 60, f"{produced} events reach those who follow their keys")
                    finally:
                        for task in tasks:
                            task.cancel()
                        await asyncio.gather(*tasks, return_exceptions=True)
                await worker.terminate()
    finally:
        await topics.remove(servers.bootstrap, topic)
    if len(took) != produced:
        raise RuntimeError(f"{produced} events were produced, {len(took)} came")
    beside = f"median {percentile(took, 0.5):.2f} s, of {produced} events, {servers.broker}"
    return Row("event -> follower of its key, p99", percentile(took, 0.99), 0.5, "s", beside)


async def _produce(bootstrap: str, topic: str, count: int) -> int:
    producer = AIOKafkaProducer(bootstrap_servers=bootstrap, acks="all")
    await producer.start()
    try:
        due = time.monotonic()
        for number in range(count):
            account = f"account_{number % ACCOUNTS}"
            value = json.dumps({"account_id": account, "n": number}).encode()
            await producer.send_and_wait(topic, value, account.encode(), timestamp_ms=now_ms())
            due += 1 / EVENTS_A_SECOND
            await asyncio.sleep(max(0.0, due - time.monotonic()))
        return count
    finally:
        await producer.stop()


async def speed(servers: Servers, folder: Path, sizes: Sizes) -> list[Row]:
    """A topic is read by a bare reader and by a journal alone; the hot one also by a fold without a journal, and with one."""
    rows = []
    for name, goal in GOALS.items():
        source, load = f"bench-{name}-{secrets.token_hex(4)}", LOADS[name]
        await topics.make(servers.bootstrap, source)
        try:
            events = list(load.generate(sizes.backlog / load.events, PARTITIONS))
            await topics.fill(servers.bootstrap, source, iter(events), long_ago_ms())
            reader = (await bare(servers, source, len(events))).events_per_second
            async with alone(servers, folder, source) as config:
                await create_topics(config, {})
                async with _filed(servers, config.stem, source) as appended:
                    filed = await _rate(config, folder, appended, len(events))
            beside = f"{filed:,.0f} events/s of one worker, bare {reader:,.0f}"
            rows.append(Row(f"filed a second, of bare reading, {name}", filed / reader, goal, "x", beside, at_least=True))
            if name == "hot":
                rows += await _loss(servers, folder, source, len(events))
        finally:
            await topics.remove(servers.bootstrap, source)
    return rows


async def _loss(servers: Servers, folder: Path, source: str, events: int) -> list[Row]:
    """What folding a backlog loses while the same worker, or one beside it, files it: the best of four runs of each."""
    rates: dict[str, float] = {}
    for place in ["", "same", "own"] * 4:
        async with AsyncExitStack() as stack:
            if place == "own":
                config = await stack.enter_async_context(alone(servers, folder, source))
                await create_topics(config, {})
                stack.enter_context(WorkerProcess(config, folder))
            more = journal(source) if place == "same" else ""
            options: Any = {"quiet_period": "60s", "backlog": "sessions", "more": more}
            deployment = await stack.enter_async_context(deployed(servers, folder, source, **options))
            rate = await _rate(folder / f"{deployment.app_id}.toml", folder, deployment.fences, events)
            rates[place] = max(rate, rates.get(place, 0.0))
    rows = []
    for place, name in (("same", "the same worker"), ("own", "a worker of its own")):
        beside = f"a backlog, folding {rates['']:,.0f} events/s without a journal, {rates[place]:,.0f} while {name} files it"
        rows.append(Row(f"folding a backlog loses while {name} files it", 1 - rates[place] / rates[""], 0.03, "%", beside))
    return rows


async def caught_up(servers: Servers, folder: Path, sizes: Sizes) -> Row:
    """What folding loses of a steady stream while the same worker files it."""
    without = await _steady(servers, folder, sizes.seconds, is_filed=False)
    with_ = await _steady(servers, folder, sizes.seconds, is_filed=True)
    beside = (
        f"{STEADY_RATE:,} events/s are produced: folded {without.folded:,.0f}, with a journal {with_.folded:,.0f} and filed "
        f"{with_.filed:,.0f}; the worker takes {without.cores:.2f} and {with_.cores:.2f} of a core"
    )
    return Row("folding loses while the same worker files, caught up", 1 - with_.folded / without.folded, 0.03, "%", beside)


class _Steady(NamedTuple):
    """What a worker did each second while a steady stream was produced: events folded and filed, and cores it took."""

    folded: float
    filed: float
    cores: float


async def _steady(servers: Servers, folder: Path, seconds: int, *, is_filed: bool) -> _Steady:
    source, total = f"bench-steady-{secrets.token_hex(4)}", STEADY_RATE * seconds
    # First so many, after which the worker has begun and waits at the end.
    events = LOADS["hot"].generate((total + STEADY_RATE) / LOADS["hot"].events, PARTITIONS)

    async def has(found: Sequence[Fences], count: int) -> bool:
        return all([await each.count() >= count for each in found])

    await topics.make(servers.bootstrap, source)
    try:
        more = journal(source) if is_filed else ""
        async with (
            running(servers, folder, source, quiet_period="60s", more=more) as worker,
            _filed(servers, worker.app_id, source) as appended,
        ):
            progress = [worker.fences, appended] if is_filed else [worker.fences]
            await worker.ready()
            await topics.steady(servers.bootstrap, source, events, STEADY_RATE, STEADY_RATE)
            await wait_until(lambda: has(progress, STEADY_RATE), LIMIT_SECONDS, "the worker has caught up")
            cpu = cpu_watch(servers, [worker])
            took, _ = await topics.steady(servers.bootstrap, source, events, total, STEADY_RATE)
            used, folded, filed = cpu.used(), await worker.fences.count(), await appended.count()
            await wait_until(lambda: has(progress, STEADY_RATE + total), LIMIT_SECONDS, "all is folded and filed")
            return _Steady((folded - STEADY_RATE) / took, (filed - STEADY_RATE) / took, used["worker"] / took)
    finally:
        await topics.remove(servers.bootstrap, source)


def _filed(servers: Servers, app_id: str, source: str) -> AbstractAsyncContextManager[Fences]:
    metas = [journal_keys(app_id, JOURNAL, source, partition).meta for partition in range(PARTITIONS)]
    return fences(servers.redis_url, metas)


async def _rate(config: Path, folder: Path, progress: Fences, events: int) -> float:
    """Events/s of one worker, from the first to the last."""
    with WorkerProcess(config, folder) as worker:
        deadline = time.monotonic() + LIMIT_SECONDS
        first, began, found = 0, time.monotonic(), 0
        while found < events:
            if worker.exit_code is not None or time.monotonic() > deadline:
                why = f"exit code {worker.exit_code}, {found:,} of {events:,} events, limit {LIMIT_SECONDS} s"
                raise RuntimeError(f"{why}:\n{worker.log()[-2_000:]}")
            await asyncio.sleep(0.1 if first else 0.02)
            asked = time.monotonic()
            found = await progress.count()
            if not first and found:
                first, began = found, asked
        seconds = time.monotonic() - began
        await worker.terminate()
    return (events - first) / seconds if events > first else events / max(seconds, 0.02)
