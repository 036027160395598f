"""Applications under test, with folds of their own (`Site`) or one known fold (`Stage`), and queries of their workers."""

from __future__ import annotations

import json
import os
import re
import signal
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from aiokafka import AIOKafkaProducer
from aiokafka.structs import ConsumerRecord
from prometheus_client.parser import text_string_to_metric_families

from tests.conftest import Names
from tests.helpers.folding.checker import Outcome, event, outcome_of
from tests.helpers.kafka.topics import create_topics, delete_topic, produce, read_topic
from tests.helpers.waiting import wait_until
from tests.helpers.worker.workers import WorkerProcess, get_page

LIMIT_SECONDS = 150
SESSION = "2s"
"""Short, as the embedded broker delays a new group for half of it, and a group of killed members for twice as long."""

GROUPS = 12
"""The number of groups of the events that a `Stage` sends."""

FREQUENT_METADATA = {"CONSUMER_METADATA_MAX_AGE_MS": "2000"}
"""Faust's own variable: the client polls for new partitions every two seconds instead of every five minutes."""


@dataclass
class Site:
    """Servers and names; each test writes its own folds."""

    names: Names
    bootstrap: str
    redis_url: str
    folder: Path

    def config(self, folds: str, name: str = "streams.toml", session_timeout: str = SESSION) -> Path:
        path = self.folder / name
        path.write_text(
            f'app_id = "{self.names.app_id}"\n[kafka]\nbootstrap_servers = "{self.bootstrap}"\n'
            f'session_timeout = "{session_timeout}"\n'
            f'[redis]\nurl = "{self.redis_url}"\n[http]\nport = 0\n[worker]\ntick = "200ms"\ncommit_every = "500ms"\n{folds}'
        )
        return path

    def fold(self, name: str, source: str, **options: Any) -> str:
        """Return a table [folds.name] whose output is the topic ``name``."""
        given = {"group_key": "account_id", "changed": "metrics", "quiet_period": "1s"} | options
        lines = [f"{key} = {json.dumps(value)}" for key, value in given.items()]
        topics = f'source = "{self.names.topic(source)}"\noutput = "{self.names.topic(name)}"\n'
        return f"[folds.{name}]\n{topics}" + f'dead_letters = "{self.names.topic(source)}.dead"\n' + "\n".join(lines) + "\n"

    async def topics(self, *names: str, **options: Any) -> None:
        await create_topics(self.bootstrap, [self.names.topic(name) for name in names], **options)

    def worker(self, config: Path) -> WorkerProcess:
        return WorkerProcess(config, self.folder)

    async def recreate(self, name: str, **options: Any) -> None:
        """Delete a topic and create it again."""
        await delete_topic(self.bootstrap, self.names.topic(name))
        await self.topics(name, **options)

    async def send(self, source: str, items: Sequence[tuple[bytes | None, bytes | None]], **options: Any) -> None:
        await produce(self.bootstrap, self.names.topic(source), items, **options)

    async def records(self, topic: str, events: int) -> list[ConsumerRecord]:
        """Return an output topic, once that many events are in its records."""
        seen = Outcome()
        counted = 0

        def enough(found: list[ConsumerRecord]) -> bool:
            nonlocal counted
            for record in found[counted:]:
                seen.add(record)
            counted = len(found)
            return seen.events >= events

        return await read_topic(self.bootstrap, self.names.topic(topic), until=enough, timeout_seconds=LIMIT_SECONDS)

    async def outcome(self, topic: str, events: int) -> Outcome:
        return outcome_of(await self.records(topic, events))


def write_config(
    path: Path,
    *,
    app_id: str,
    bootstrap: str,
    redis_url: str,
    source: str,
    output: str,
    dead: str,
    quiet_period: str = "1s",
    fold_name: str = "account-metrics",
    session_timeout: str = SESSION,
    fold: str = "",
    extra: str = "",
) -> Path:
    """Write a ``streams.toml`` with one fold of ``account_id`` and short times.

    Args:
        path: The file.
        app_id: Consumer group and key prefix.
        bootstrap: host:port.
        redis_url: The Redis with the open groups.
        source: Topic of the events.
        output: Topic of the folded records.
        dead: Topic of the dead letters.
        quiet_period: The quiet period of the fold.
        fold_name: The name of the fold.
        session_timeout: How long a worker may be silent before its group removes it.
        fold: Further lines of the fold's table.
        extra: Further tables, at the end.

    Returns:
        ``path``.
    """
    # A JSON string is a TOML string.
    text = f"""\
app_id = {json.dumps(app_id)}

[kafka]
bootstrap_servers = {json.dumps(bootstrap)}
session_timeout = {json.dumps(session_timeout)}

[redis]
url = {json.dumps(redis_url)}

[http]
port = 0

[worker]
tick = "200ms"
commit_every = "500ms"

[folds.{fold_name}]
source = {json.dumps(source)}
output = {json.dumps(output)}
dead_letters = {json.dumps(dead)}
group_key = "account_id"
changed = "metrics"
quiet_period = {json.dumps(quiet_period)}
{fold}

{extra}
"""
    path.write_text(text, "utf-8")
    return path


def with_topics(program: str, **topics: str) -> str:
    """Return a program of the docs or the examples whose events have topics of a test.

    Args:
        program: Its text.
        topics: Name of the payload's class → topic of its event.
    """
    for payload, topic in topics.items():
        program, found = re.subn(rf'Event\("[\w.]+", {payload}\b', rf'\g<0>, topic="{topic}"', program)
        assert found == 1, payload
    return program


@dataclass
class Stage:
    """An application with one fold of ``account_id``: its topics, its settings, and the events sent to it."""

    names: Names
    bootstrap: str
    redis_url: str
    folder: Path
    sent: dict[str, bytes] = field(default_factory=dict)

    @property
    def source(self) -> str:
        return self.names.topic("events")

    @property
    def output(self) -> str:
        return self.names.topic("folded")

    @property
    def dead(self) -> str:
        return self.names.topic("dead")

    def config(self, **options: Any) -> Path:
        return write_config(
            self.folder / "streams.toml",
            app_id=self.names.app_id,
            bootstrap=self.bootstrap,
            redis_url=self.redis_url,
            source=self.source,
            output=self.output,
            dead=self.dead,
            **options,
        )

    def worker(self, config: Path | None = None) -> WorkerProcess:
        return WorkerProcess(config or self.folder / "streams.toml", self.folder)

    async def send(self, count: int, **options: Any) -> None:
        """Send events, each with a changed name of its own."""
        items = []
        for _ in range(count):
            name, account = f"n{len(self.sent)}", f"account_{len(self.sent) % GROUPS}"
            items.append(event(account, name))
            self.sent[name] = account.encode()
        await produce(self.bootstrap, self.source, items, **options)

    async def outcome(self, enough: Any = None) -> Outcome:
        """Return the output topic, once every event sent is in it."""

        def is_enough(records: list[ConsumerRecord]) -> bool:
            seen = outcome_of(records)
            return len(seen.ids_of) >= len(self.sent) and (enough is None or enough(seen))

        return outcome_of(await read_topic(self.bootstrap, self.output, until=is_enough, timeout_seconds=LIMIT_SECONDS))

    async def dead_letters(self, count: int) -> list[ConsumerRecord]:
        return await read_topic(
            self.bootstrap, self.dead, until=lambda records: len(records) >= count, timeout_seconds=LIMIT_SECONDS
        )


class DyingWorker(WorkerProcess):
    """A worker that kills itself at a point of :mod:`tests.chaos.kill_points`, such as ``after-fold:3``."""

    def __init__(self, config: Path, directory: Path, point: str) -> None:
        super().__init__(config, directory, {"STREAMS_APP_TEST_KILL_AT": point})

    def command(self, config: Path, arguments: Sequence[str]) -> list[str]:
        return [sys.executable, "-m", "tests.chaos.kill_points", "worker", "--config", str(config.resolve()), *arguments]


@contextmanager
def frozen(pid: int) -> Iterator[None]:
    """Stop a process by SIGSTOP for the block: connections stay open and nothing answers."""
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


async def send_at(site: Site, source: str, events: Iterable[tuple[str, int, int]]) -> None:
    """Produce one event for each (account, record timestamp, number of its changed name), in this order."""
    producer = AIOKafkaProducer(bootstrap_servers=site.bootstrap, acks="all", linger_ms=20)
    await producer.start()
    for group, at_ms, number in events:
        key, value = event(group, f"n{number % 50}")
        await producer.send(site.names.topic(source), value, key, timestamp_ms=at_ms)
    await producer.stop()


def metrics_of(worker: WorkerProcess) -> str:
    """Return the text of the worker's metrics page."""
    return get_page(f"{worker.url}/metrics")[1]


def metric(worker: WorkerProcess, name: str) -> float:
    """Return the sum of the series of a metric."""
    lines = (line for line in metrics_of(worker).splitlines() if line.startswith((f"{name}{{", f"{name} ")))
    return sum(float(line.rsplit(" ", 1)[1]) for line in lines)


async def until_folded(worker: WorkerProcess, events: int) -> None:
    """Return when a worker has folded this number of events; on a slow machine their groups may have been emitted already."""
    await wait_until(lambda: metric(worker, "streams_app_events_folded_total") >= events, LIMIT_SECONDS, f"{events} are folded")


async def reasons(worker: WorkerProcess) -> list[str]:
    """Return why the worker is not ready; empty if it does not answer, too."""
    _, text = await worker.get("/health/ready")
    found: list[str] = json.loads(text)["reasons"] if text else []
    return found


def up(worker: WorkerProcess) -> dict[str, float]:
    """Return component → whether it is up."""
    samples = [sample for family in text_string_to_metric_families(metrics_of(worker)) for sample in family.samples]
    return {sample.labels["component"]: sample.value for sample in samples if sample.name == "streams_app_up"}


async def outage_reason(worker: WorkerProcess, what: str) -> str:
    """Return the reason that names the unavailable dependency, once it exists."""

    async def found() -> str | None:
        return next(
            (reason for reason in await reasons(worker) if re.search(rf"^{what} at \S+ has not answered since", reason)), None
        )

    reason = await wait_until(found, LIMIT_SECONDS, f"the worker says that {what} is away")
    assert reason is not None
    return reason


def unhelpful_lines(log: str) -> list[str]:
    """Return log lines that do not help an operator."""
    wrong = ("NoneType: None", "Event loop is closed", "never retrieved", "Task was destroyed", "Traceback", "Unclosed")
    return [line for line in log.splitlines() if any(text in line for text in wrong)]
