"""``python -m tests.chaos.upgrade``: workers of the last released state and of the present one replace each other under load.

The state is live: folds, a read store, subscribers of each guarantee, views and a journal. Workers are upgraded and downgraded one
after the other, and some are killed while both versions run. The run is judged from outside, as those of the single parts.
"""

from __future__ import annotations

import asyncio
import logging
import os
import random
import signal
import sys
from collections import Counter
from collections.abc import Coroutine, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import click

from streams_app.embedded.ports import free_port
from tests.chaos import journal, live, subscribers
from tests.chaos.judge import Judge
from tests.chaos.load import Load
from tests.chaos.released import PRESENT, Program, released
from tests.chaos.run_series import run_all
from tests.chaos.stage import Stage
from tests.chaos.traces import claims, must, until_reclaimed
from tests.helpers.waiting import wait_until
from tests.helpers.worker.workers import WorkerProcess
from tests.servers.cache import ServerUnavailableError

FOLDED_RATE: Final = 150.0
SUBSCRIBED_RATE: Final = 40.0
VIEWED_RATE: Final = 20.0
JOURNALED_RATE: Final = 40.0
JOURNALED_SECONDS: Final = 60.0
BROWSERS: Final = 10
READERS: Final = 5
LEAST_EVENTS: Final = 1_000
PHASE_SECONDS: Final = 5.0
"""How long all workers have the same version: groups open, close, and stay open across the next change."""

DRAIN_SECONDS: Final = 120.0


class VersionedWorker(WorkerProcess):
    """A worker of one version."""

    def __init__(self, config: Path, directory: Path, program: Program) -> None:
        self.program = program
        super().__init__(config, directory, program.environment)

    def command(self, config: Path, arguments: Sequence[str]) -> list[str]:
        return [self.program.python, *super().command(config, arguments)[1:]]


class VersionedHub(live.HubProcess):
    """A hub of one version. The released one would reject settings that it does not know."""

    more_settings = ""

    def __init__(self, stage: Stage, port: int, program: Program) -> None:
        self.program = program
        super().__init__(stage, port, program.environment)

    def command(self, config: Path, arguments: Sequence[str]) -> list[str]:
        return [self.program.python, *super().command(config, arguments)[1:]]


@dataclass
class UpgradeStage(Stage):
    """A stage whose workers may have different versions.

    Attributes:
        programs: Number of a worker → the version that it has, or will have after its end.
    """

    programs: list[Program] = field(default_factory=list)

    def new_worker(self, number: int) -> WorkerProcess:
        config = self.cut_config if number == 0 else self.config
        return VersionedWorker(config, self.folder, self.programs[number])


class Run:
    """One run, from the first server to the judgement.

    Attributes:
        wrong: Violations and failures.
    """

    def __init__(self, seed: int, folder: Path, old: Program, workers: int) -> None:
        """Create a run without starting it; all workers begin with the version ``old``."""
        self.seed = seed
        self.wrong: list[str] = []
        self.steps: list[str] = []
        self._old = old
        self._chance = random.Random(seed)
        self._subscribers = subscribers.Run(seed, folder, "single")
        self._views = live.Run(seed, folder, BROWSERS, "single")
        self._journal = journal.Run(
            seed, folder, READERS, JOURNALED_RATE, JOURNALED_SECONDS, is_apache=True, topology="single"
        )  # fmt: skip
        self.stage = UpgradeStage(
            folder, is_apache=True, is_redis7=True, more_settings=subscribers.SETTINGS + live.SETTINGS + journal.SETTINGS,
            dated=self._journal.stage.dated, before_workers=self._journal.stage.before_workers, programs=[old] * workers,
            command_python=old.python, command_environment=old.environment,
        )  # fmt: skip
        for part in (self._subscribers, self._views, self._journal):
            part.stage = self.stage
        self._judge = Judge(self.stage)
        self._load: Load | None = None
        self._has_ended = False

    async def perform(self, changes: Sequence[Program]) -> None:
        """Change the version of all workers several times under load, drain and judge.

        Args:
            changes: The versions, in this order.
        """
        self._subscribers.prepare()
        try:
            await self.stage.start(len(self.stage.programs))
            self._judge.start()
            self._views.hubs = [VersionedHub(self.stage, free_port(), program) for program in (self._old, PRESENT)]
            for hub in self._views.hubs:
                await hub.wait_ready(60)
            await self._loaded(changes)
            await self.stage.stop_workers()
            await asyncio.gather(*(hub.terminate(25) for hub in self._views.hubs))
            self._has_ended = True
            self._subscribers.faults = ["sigkill"]
            await self._subscribers.judge()
        except AssertionError as error:
            self.wrong.append(f"{type(error).__name__}: {error}"[:3_000])
        finally:
            await self._judge.stop()
            self._collect()
            if self.wrong:
                logs = self.stage.logs() + "".join(hub.log() for hub in self._views.hubs)
                (self.stage.folder.parent / f"seed-{self.seed}.log").write_text(logs, "utf-8")
            for hub in self._views.hubs:
                hub.kill()
            await self.stage.close()

    async def _loaded(self, changes: Sequence[Program]) -> None:
        self._load = load = Load(self.stage.bootstrap, seed=self.seed, rate=FOLDED_RATE, is_idempotent=True)
        changing = asyncio.create_task(self._change(changes))
        await asyncio.gather(
            load.run(0, LEAST_EVENTS, changing.done),
            self._subscribers.load(SUBSCRIBED_RATE, changing),
            self._views.watched(VIEWED_RATE, changing),
            self._journal.judged(changing),
        )

        def is_complete() -> bool:
            return self._judge.is_complete(load.ledger) and self._judge.stored() == self._judge.rebuilt()

        await wait_until(is_complete, DRAIN_SECONDS, "every event is emitted and in the read store")

    async def _change(self, changes: Sequence[Program]) -> None:
        for program in changes:
            await asyncio.sleep(PHASE_SECONDS)  # the phase with one version
            numbers = list(range(len(self.stage.programs)))
            self._chance.shuffle(numbers)
            for number in numbers:
                await self._replace(number, program)
                mixed = [one for one in numbers if self.stage.programs[one] is not program]
                if mixed:
                    await self._kill(number if len(mixed) % 2 else self._chance.choice(mixed))
        await asyncio.sleep(PHASE_SECONDS)  # the phase with one version

    async def _replace(self, number: int, program: Program) -> None:
        """Stop a worker; the supervisor starts one of another version in its place."""
        before = self.stage.workers[number]
        self.stage.programs[number] = program
        await before.terminate(25)
        await self._restarted(number, before)
        self.steps.append(f"to {program.name[:12]}")

    async def _kill(self, number: int) -> None:
        before, count = self.stage.workers[number], claims(self.stage)
        before.kill()
        must(before.exit_code == -signal.SIGKILL, "exit code -9")
        await until_reclaimed(self.stage, count)
        await self._restarted(number, before)
        self.steps.append(f"kill -9 of {self.stage.programs[number].name[:12]}")

    async def _restarted(self, number: int, before: WorkerProcess) -> None:
        await wait_until(lambda: self.stage.workers[number] is not before, 30, "the supervisor starts a worker")
        await self.stage.workers[number].wait_ready(60)

    def _collect(self) -> None:
        """Collect the verdicts of all parts."""
        for part in (self._subscribers, self._views, self._journal):
            self.wrong += part.wrong
        # If the run was interrupted, it has not reached the point at which every event must be emitted.
        if self._load is not None and self._has_ended:
            self.wrong += self._judge.faults(self._load.ledger)
        # Of the released version only the results are judged: its faults cannot be changed any more.
        processes = [*self.stage.ended, *self.stage.workers, *self._views.hubs]
        codes = [one.exit_code for one in processes if isinstance(one, VersionedWorker | VersionedHub) and one.program is PRESENT]
        if exits := set(codes) - {None, 0, -signal.SIGKILL}:
            self.wrong.append(f"workers and hubs of the present version ended with {exits}")

    def line(self) -> str:
        """Return a summary of the run in a few lines."""
        events = 0 if self._load is None else len(self._load.ledger.sent)
        exits = ", ".join(f"{times}x {code}" for code, times in sorted(self.stage.exits.items()))
        steps = ", ".join(f"{name} x{times}" for name, times in Counter(self.steps).items())
        head = f"seed {self.seed}: from {self._old.name[:12]}, {events:,} folded events, exits: {exits or 'none'}; {steps}"
        parts = [part.line() for part in (self._subscribers, self._views, self._journal)]
        return "\n".join([head, *parts, *(f"WRONG: {fault}"[:600] for fault in self.wrong)])


@click.command()
@click.option("--runs", default=2, show_default=True, help="Number of runs, each with its own seed.")
@click.option("--seed", default=1, show_default=True, help="Seed of the first run.")
@click.option("--workers", default=3, show_default=True, help="Number of workers.")
@click.option("--share", is_flag=True, help="Run the share of CI: one run with two workers, up and down once.")
def main(runs: int, seed: int, workers: int, share: bool) -> None:
    """Upgrade and downgrade workers between the last released state and the present one under load, and check the results."""
    try:
        old = released()
    except ServerUnavailableError as error:
        click.echo(f"no upgrade test: {error}", err=True)
        sys.exit(1 if os.environ.get("CI") == "true" else 0)
    for name in ("aiokafka", "asyncio", "streams_app"):
        logging.getLogger(name).setLevel(logging.CRITICAL)  # workers are killed on purpose
    if share:
        runs, workers = 1, 2
    changes = [PRESENT, old] if share else [PRESENT, old, PRESENT]

    def perform(seed: int, folder: Path) -> tuple[Run, Coroutine[Any, Any, None]]:
        run = Run(seed, folder, old, workers)
        return run, run.perform(changes)

    run_all("chaos-upgrade", range(seed, seed + runs), perform)


if __name__ == "__main__":
    main()
