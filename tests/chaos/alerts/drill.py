"""Causes each fault that has an alert, and reports which alerts fire, and after how long.

A real Prometheus scrapes a real worker every second and evaluates ``deploy/alerts.yml``. Every duration in it (``for``, ranges,
offsets) is divided by a factor, so that the drill is short; thresholds, such as a record that is a minute late, are as shipped.
Between two faults, the drill waits until no alert fires. It fails if none of the expected alerts of a fault fires, or if an alert
fires before the first fault.
"""

from __future__ import annotations

import asyncio
import os
import re
import signal
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, closing
from pathlib import Path
from typing import Final, NamedTuple

from streams_app.embedded.ports import free_port
from tests.chaos.alerts.stage import DrillStage
from tests.chaos.run import Duration, Options, Run
from tests.helpers.waiting import wait_until
from tests.servers.cache import ROOT
from tests.servers.prometheus import Prometheus

RULES: Final = ROOT / "deploy" / "alerts.yml"
UNITS: Final = {"s": 1_000, "m": 60_000, "h": 3_600_000}
FIRES_SECONDS: Final = 400
QUIET_SECONDS: Final = 600
UNDISTURBED_SECONDS: Final = 30
MORE_SECONDS: Final = 10
"""Time to wait for further alerts after the first one."""


def scaled(rules: str, factor: float) -> str:
    """Return the rules with every duration divided by a factor."""

    def shorter(found: re.Match[str]) -> str:
        return f"{max(1, round(int(found[1]) * UNITS[found[2]] / factor))}ms"

    def durations(found: re.Match[str]) -> str:
        return re.sub(r"(\d+)([smh])\b", shorter, found[0])

    return re.sub(r"for: \w+|\[\w+(:\w+)?\]|offset \w+", durations, rules)


@asynccontextmanager
async def broker_frozen(stage: DrillStage) -> AsyncIterator[None]:
    os.kill(stage.broker.pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(stage.broker.pid, signal.SIGCONT)


@asynccontextmanager
async def redis_killed(stage: DrillStage) -> AsyncIterator[None]:
    stage.redis.kill()
    try:
        yield
    finally:
        await asyncio.to_thread(stage.start_redis)


@asynccontextmanager
async def redis_full(stage: DrillStage) -> AsyncIterator[None]:
    with stage.client() as client:
        client.config_set("maxmemory", 1)
        try:
            yield
        finally:
            client.config_set("maxmemory", 0)


@asynccontextmanager
async def redis_read_only(stage: DrillStage) -> AsyncIterator[None]:
    """Make Redis a replica of an unreachable primary: it keeps its data, and rejects writes."""
    with stage.client() as client:
        client.replicaof("127.0.0.1", free_port())
        try:
            yield
        finally:
            client.replicaof("NO", "ONE")


@asynccontextmanager
async def folds_stuck(stage: DrillStage) -> AsyncIterator[None]:
    """Send an event that both folds reject, without a dead-letter topic: no fold continues past an event that is not stored."""
    topics = ("likes.dead", "views.dead")
    for topic in topics:
        await stage.delete(topic)
    await stage.send(b"this is not JSON")
    try:
        yield
    finally:
        for topic in topics:
            await stage.make(topic)


@asynccontextmanager
async def output_topic_deleted(stage: DrillStage) -> AsyncIterator[None]:
    await stage.delete("views")
    try:
        yield
    finally:
        await stage.make("views")


@asynccontextmanager
async def read_store_locked(stage: DrillStage) -> AsyncIterator[None]:
    with closing(stage.store()) as connection:
        connection.execute("BEGIN EXCLUSIVE")
        yield


@asynccontextmanager
async def worker_gone(stage: DrillStage) -> AsyncIterator[None]:
    stage.worker.kill()
    yield  # the stage restarts it


@asynccontextmanager
async def worker_frozen(stage: DrillStage) -> AsyncIterator[None]:
    stage.worker.stop_signal()
    try:
        yield
    finally:
        stage.worker.continue_signal()


@asynccontextmanager
async def subscriber_suspended(stage: DrillStage) -> AsyncIterator[None]:
    stage.switch.touch()
    try:
        yield
    finally:
        stage.switch.unlink()


class Fault(NamedTuple):
    """A fault and its expected alerts, one of which must fire."""

    breaks: Callable[[DrillStage], AbstractAsyncContextManager[None]]
    expected: frozenset[str]


FAULTS: Final = {
    "broker frozen": Fault(broker_frozen, frozenset({"WorkerNotReady"})),
    "Redis killed": Fault(redis_killed, frozenset({"WorkerNotReady"})),
    "Redis full": Fault(redis_full, frozenset({"RedisRefusesWrites"})),
    "Redis read-only": Fault(redis_read_only, frozenset({"RedisRefusesWrites"})),
    "output topic deleted": Fault(output_topic_deleted, frozenset({"WorkerNotReady", "FoldOverdue"})),
    "read store locked": Fault(read_store_locked, frozenset({"ReadStoreAway", "ReadStoreStandsStill", "ReadStoreBehind"})),
    "worker gone": Fault(worker_gone, frozenset({"WorkerDown", "NoWorker"})),
    "worker frozen": Fault(worker_frozen, frozenset({"WorkerDown", "NoWorker"})),
    "subscriber suspended": Fault(subscriber_suspended, frozenset({"SubscriberSuspended"})),
    "both folds standing still": Fault(folds_stuck, frozenset({"FoldStandsStill"})),
}
"""The last faults leave dead letters and errors, whose alerts fire for a while after the fault has ended."""


class Found(NamedTuple):
    """The result of one fault: alert → seconds until it fired, and the seconds until no alert fired."""

    name: str
    fired: dict[str, float]
    quiet_seconds: float

    def row(self) -> str:
        """Return a line of the table."""
        fired = ", ".join(f"`{alert}` {seconds:.0f} s" for alert, seconds in sorted(self.fired.items(), key=lambda one: one[1]))
        return f"| {self.name} | {fired or 'NOTHING'} | {self.quiet_seconds:.0f} s |"


class Drill(Run):
    """One drill: alerts may not fire before the first fault, and of each fault one of the expected ones must."""

    share = Duration(faults=("Redis killed", "Redis full", "read store locked", "worker gone", "subscriber suspended"))

    def __init__(self, seed: int, folder: Path, options: Options, duration: Duration) -> None:
        super().__init__(seed, folder, options, duration)
        self._stage = DrillStage(folder, options.kafka == "apache")
        self._found: list[Found] = []

    @classmethod
    def possible(cls, options: Options) -> list[str]:
        return list(FAULTS)

    async def perform(self) -> None:
        """Cause each fault, and judge which alerts fire."""
        async with self._stage.running():
            with Prometheus.start(self._stage.target, scaled(RULES.read_text("utf-8"), self.options.factor)) as prometheus:
                await wait_until(lambda: bool(prometheus.values("streams_app_build_info")), 60, "the worker is scraped")
                await asyncio.sleep(UNDISTURBED_SECONDS)  # no fault yet
                if early := prometheus.firing():
                    self.wrong.append(f"{', '.join(sorted(early))} fired before the first fault")
                for name in self.duration.faults or FAULTS:
                    self.faults.append(name)
                    self._found.append(await self._tried(name, prometheus))

    async def _tried(self, name: str, prometheus: Prometheus) -> Found:
        """Cause one fault until an expected alert fires, end it, and wait until no alert fires."""
        loop, fault = asyncio.get_running_loop(), FAULTS[name]
        fired: dict[str, float] = {}
        begin = loop.time()

        async def has_fired() -> bool:
            for alert in await asyncio.to_thread(prometheus.firing):
                fired.setdefault(alert, loop.time() - begin)
            return bool(fault.expected & fired.keys())

        async with fault.breaks(self._stage):
            try:
                await wait_until(has_fired, FIRES_SECONDS, f"an alert fires of: {name}")
                until = loop.time() + MORE_SECONDS
                while loop.time() < until:
                    await has_fired()
                    await asyncio.sleep(0.5)  # other alerts may follow
            except AssertionError:
                self.wrong.append(f"{name}: none of {', '.join(sorted(fault.expected))} has fired")
        healed = loop.time()
        await self._stage.supervise()
        await wait_until(lambda: not (prometheus.firing() or prometheus.pending()), QUIET_SECONDS, f"no alert fires after: {name}")
        return Found(name, fired, loop.time() - healed)

    def line(self) -> str:
        """Return the table of the drill."""
        kafka = "Apache Kafka" if self._stage.is_apache else "the embedded broker"
        return "\n".join(
            [
                f"durations of deploy/alerts.yml divided by {self.options.factor:g}; {kafka}; scraped and evaluated every second\n",
                "| fault | alerts, and seconds until each fired | no alert after |\n|---|---|---|",
                *(one.row() for one in self._found),
                *(f"    WRONG {wrong}" for wrong in self.wrong),
            ]
        )
