"""``make chaos``: workers under load, faults at random seeded times, judged from the topics alone; then bad input at scale.

The run reports durations and asserts none. The exit code is 1 if anything was lost, invented or folded twice, or if a fault left no
trace.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import random
import shutil
import subprocess
import sys
import tempfile
from itertools import islice
from pathlib import Path

import click

from tests.chaos.faults import LOSING, OF_TOPOLOGY, available, schedule
from tests.chaos.health import Health, faults_of, reported_seconds
from tests.chaos.judge import Judge, folder_of
from tests.chaos.load import Load
from tests.chaos.report import UNDISTURBED, Report, summary
from tests.chaos.topologies import STAGES, SentinelStage
from tests.helpers.waiting import wait_until
from tests.servers.cache import ROOT

DRAIN_SECONDS = 120.0
WORKERS = 3
WAITING_SHARE = 0.5
BAD_INPUT = ("tests/integration/folding/test_bad_input.py", "tests/integration/folding/test_untrusted_bytes.py")
REDIS = ("valkey", "redis7")


class Run:
    """One run, from the first server to the judgement."""

    def __init__(self, seed: int, folder: Path, redis: str, *, is_apache: bool, topology: str = "single") -> None:
        self.report = Report(seed, redis if topology == "single" else f"{redis} {topology}")
        self.stage = STAGES[topology](folder, is_apache, is_redis7=redis == "redis7")
        self._faults = OF_TOPOLOGY[topology]
        self.judge = Judge(self.stage)
        self.load: Load | None = None
        self.health: Health | None = None
        self._chance = random.Random(seed)
        self._folder = folder
        self._is_drained = False

    async def perform(self, names: list[str], *, seconds: float, rate: float, least: int) -> Report:
        """Inject faults for a while, end them, drain and judge."""
        # Half of the runs keep Redis's data, so that exactly-once folding is judged, too.
        # A failover by Sentinel never keeps all of it.
        keeps = self.report.seed % 2 and not isinstance(self.stage, SentinelStage)
        chosen = [name for name in names if name not in LOSING] if keeps else names
        try:
            await self.stage.start(WORKERS)
            self.judge.start()
            self.load = Load(self.stage.bootstrap, seed=self.report.seed, rate=rate, is_idempotent=self.stage.is_apache)
            plan = schedule(self._chance, chosen, seconds, self.report.seed // 2)
            ledger = self.load.ledger
            self.health = Health(self.stage, lambda: len(ledger.sent))
            self.health.start()
            breaking = asyncio.create_task(self._break(self.load, plan, seconds))
            await self.load.run(seconds, least, breaking.done)
            await breaking
            await self._drain(self.load)
            codes = await self.stage.stop_workers()
            if any(codes):
                self.report.wrong.append(f"workers ended with {codes} on SIGTERM")
            await asyncio.sleep(1)  # the judge reads the last records; the embedded broker does not report the ends of its topics
        except AssertionError as error:
            self.report.wrong.append(f"{type(error).__name__}: {error}"[:3_000])
        finally:
            await self.judge.stop()
            if self.health is not None:
                await self.health.stop()
            self._judge()
            if self.report.wrong:
                (self._folder.parent / f"seed-{self.report.seed}.log").write_text(self.stage.logs(), "utf-8")
            await self.stage.close()
        return self.report

    async def _break(self, load: Load, plan: list[tuple[float, str]], seconds: float) -> None:
        loop = asyncio.get_running_loop()
        begin = loop.time()
        self.stage.acknowledged = lambda: len(load.ledger.sent)
        for number, (at, name) in enumerate(plan):
            await asyncio.sleep(max(0.0, begin + at - loop.time()))  # until this fault is planned
            # Some faults begin before the run has recovered from the previous one, others after it. This is decided
            # before the duration of the recovery is known, so that the measured seconds are an unbiased sample.
            waits = self._chance.random() < WAITING_SHARE
            if number == 0 and waits:
                self.stage.record_healed()
                await self._recover(load, UNDISTURBED)
            if loop.time() - begin > seconds:
                break
            self.report.faults.append(name)
            self.stage.record_healed()
            started = loop.time()
            variant = await self._faults[name](self.stage, self._chance)
            self.report.variants.append(f"{name} ({variant})" if variant else name)
            if name == "sigkill":
                self.report.claim_seconds.append(round(loop.time() - started, 1))
            if waits:
                await self._recover(load, name)

    async def _recover(self, load: Load, name: str) -> None:
        """Wait until every event that was acknowledged before the end of the fault has been emitted."""
        healed_at, count = self.stage.healed_at
        waited = set(islice(load.ledger.sent, count))

        def is_emitted() -> bool:
            waited.difference_update([name for name in waited if name in self.judge.outcome.ids_of])
            return not waited

        await wait_until(is_emitted, DRAIN_SECONDS, f"events sent before the end of {name} are emitted")
        took = asyncio.get_running_loop().time() - healed_at
        self.report.recovery.setdefault(name, []).append(round(took, 1))

    async def _drain(self, load: Load) -> None:
        loop, judge = asyncio.get_running_loop(), self.judge
        healed = loop.time()
        while loop.time() - healed < DRAIN_SECONDS and not (
            judge.is_complete(load.ledger) and await asyncio.to_thread(lambda: judge.stored() == judge.rebuilt())
        ):
            await asyncio.sleep(0.5)  # a poll; a timeout is reported, not raised
        self.report.drain_seconds = round(loop.time() - healed, 1)
        self._is_drained = True

    def _judge(self) -> None:
        report, outcome = self.report, self.judge.outcome
        # If the run was interrupted, it has not reached the point at which every event must be emitted.
        if self.load is not None and self._is_drained:
            ledger = self.load.ledger
            report.wrong += self.judge.faults(ledger)
            report.events, report.dead_letters = len(ledger.sent), len(ledger.bad)
            report.lost = len(ledger.sent.keys() - outcome.ids_of.keys())
        report.records, report.redelivered = len(outcome.values), outcome.redelivered
        report.overlapping = sum(len(ids) > 1 for ids in outcome.ids_of.values())
        report.kept_data, report.exits = self.stage.kept_data, dict(self.stage.exits)
        if self.health is not None:
            report.wrong += faults_of(self.stage.outages, self.health.samples)
            report.reported_seconds = reported_seconds(self.stage.outages, self.health.samples)
        if 1 in self.stage.exits:
            report.wrong.append("a worker ended with exit code 1")


def redis_of(seed: int, choice: str) -> str:
    """Return both servers in turn, each with a run that keeps its data and a run that may lose some."""
    return REDIS[seed // 2 % 2] if choice == "both" else choice


def bad_input(kafka: str, redis: str, cases: int) -> int:
    """Run this many generated cases of each class of bad input; return the exit code."""
    environment = {
        "STREAMS_APP_TEST_KAFKA": kafka,
        "STREAMS_APP_TEST_REDIS": "embedded" if redis == "valkey" else "redis",
        "STREAMS_APP_TEST_CASES": str(cases),
        "CI": "true",  # a missing server is a failure
    }
    click.echo(f"\nbad input, {cases:,} generated cases of each class:")
    command = [sys.executable, "-m", "pytest", "-q", *BAD_INPUT]
    return subprocess.run(command, cwd=ROOT, env={**os.environ, **environment}, check=False).returncode


@click.command()
@click.option("--runs", default=10, show_default=True)
@click.option("--seed", default=1, show_default=True, help="Seed of the first run; the next runs use the following numbers.")
@click.option("--seconds", default=40.0, show_default=True, help="Duration of the load of one run.")
@click.option("--rate", default=1_700.0, show_default=True, help="Events a second.")
@click.option("--events", default=0, show_default=True, help="Minimum number of events of a run.")
@click.option("--kafka", type=click.Choice(["apache", "embedded"]), default="apache", show_default=True)
@click.option(
    "--redis", type=click.Choice(["both", *REDIS]), default="both", show_default=True, help="both: two runs each, in turn."
)
@click.option("--topology", type=click.Choice(list(STAGES)), default="single", show_default=True, help="Deployment of Redis.")
@click.option(
    "--faults",
    default=None,
    help="Only these, separated by commas. "
    + " ".join(f"With {name}: {', '.join(faults)}." for name, faults in OF_TOPOLOGY.items()),
)
@click.option(
    "--cases", default=10_000, show_default=True, help="Number of cases of each class of bad input, after the runs; 0: none."
)
@click.option("--json", "json_file", type=click.Path(path_type=Path), default=None, help="File for the reports as JSON.")
@click.option("--share", is_flag=True, help="Run the share of CI: two runs, no bad input.")
def main(
    runs: int,
    seed: int,
    seconds: float,
    rate: float,
    events: int,
    kafka: str,
    redis: str,
    topology: str,
    faults: str | None,
    cases: int,
    json_file: Path | None,
    share: bool,
) -> None:
    """Break workers, Redis, broker and read store under load, and check that nothing is lost."""
    logging.getLogger("aiokafka").setLevel(logging.CRITICAL)  # servers are down on purpose
    logging.getLogger("asyncio").setLevel(logging.CRITICAL)  # as above: its complaints about dropped connections
    is_apache = kafka == "apache"
    names = available(faults.split(",") if faults else None, is_apache=is_apache, topology=topology)
    if share:
        runs, cases = 2, 0
    base = Path(tempfile.mkdtemp(prefix="chaos-"))
    reports = []
    for number in range(seed, seed + runs):
        run = Run(number, folder_of(base, number), redis_of(number, redis), is_apache=is_apache, topology=topology)
        report = asyncio.run(run.perform(names, seconds=seconds, rate=rate, least=events))
        reports.append(report)
        click.echo(report.line())
    if reports:
        click.echo(summary(reports, kafka))
    if json_file:
        json_file.write_text(json.dumps([vars(report) for report in reports], indent=1), "utf-8")
    has_failed = any(report.wrong for report in reports)
    if has_failed:
        click.echo(f"worker logs: {base}", err=True)
    else:
        shutil.rmtree(base, ignore_errors=True)
    if cases:
        has_failed |= bad_input(kafka, redis_of(2, redis), cases) != 0
    sys.exit(1 if has_failed else 0)


if __name__ == "__main__":
    main()
