"""Workers of the last released state and of the present one replace each other under the load of every subject.

Workers are upgraded and downgraded one after the other, and some are killed while both versions run. The run is judged from
outside, by the judges of the subjects.
"""

from __future__ import annotations

import asyncio
import signal
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from tests.chaos.folds.subject import Folds
from tests.chaos.journal.subject import Journal
from tests.chaos.live.subject import HubProcess, Live
from tests.chaos.run import Duration, Options
from tests.chaos.stage import Stage
from tests.chaos.stage_run import StageRun
from tests.chaos.subscribers import catalogue
from tests.chaos.subscribers.subject import Subscribers
from tests.chaos.traces import claims, must, until_reclaimed
from tests.chaos.upgrade.released import PRESENT, Program, released
from tests.helpers.waiting import wait_until
from tests.helpers.worker.workers import WorkerProcess

PHASE_SECONDS: Final = 5.0
"""How long all workers have the same version: groups open, close, and stay open across the next change."""


class VersionedWorker(WorkerProcess):
    """A worker of one version."""

    def __init__(self, config: Path, directory: Path, program: Program) -> None:
        self.program = program
        super().__init__(config, directory, program.environment)

    def command(self, config: Path, arguments: Sequence[str]) -> list[str]:
        return [self.program.python, *super().command(config, arguments)[1:]]


class VersionedHub(HubProcess):
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


class OneOfEach(Subscribers):
    """A subscriber of each guarantee."""

    chosen = (catalogue.at_least_once, catalogue.deduplicated, catalogue.at_most_once)


class UpgradeRun(StageRun):
    """One run: up, down and up again; in CI two workers go up and down once."""

    full = Duration(2)
    share = Duration(1)
    load_share = 0.4

    def __init__(self, seed: int, folder: Path, options: Options, duration: Duration) -> None:
        """Create a run without starting it; all workers begin with the released version."""
        self._old = old = released()
        self.workers = 2 if options.share else 3
        super().__init__(seed, folder, options, duration, (Folds, OneOfEach, Live, Journal))
        self._changes = [PRESENT, old] if options.share else [PRESENT, old, PRESENT]
        self.stage.command_python, self.stage.command_environment = old.python, old.environment
        self._live = next(subject for subject in self.subjects if isinstance(subject, Live))
        self._live.new_hub = lambda number, port: VersionedHub(self.stage, port, (old, PRESENT)[number])

    def new_stage(self, folder: Path, *, is_redis7: bool) -> UpgradeStage:
        return UpgradeStage(folder, is_apache=True, is_redis7=is_redis7, programs=[self._old] * self.workers)

    async def disturb(self) -> None:
        """Change the version of all workers several times."""
        programs = self._programs()
        for program in self._changes:
            await asyncio.sleep(PHASE_SECONDS)  # the phase with one version
            numbers = list(range(len(programs)))
            self.chance.shuffle(numbers)
            for number in numbers:
                await self._replace(number, program)
                mixed = [one for one in numbers if programs[one] is not program]
                if mixed:
                    await self._kill(number if len(mixed) % 2 else self.chance.choice(mixed))
        await asyncio.sleep(PHASE_SECONDS)  # the phase with one version

    def _programs(self) -> list[Program]:
        assert isinstance(self.stage, UpgradeStage)
        return self.stage.programs

    async def _replace(self, number: int, program: Program) -> None:
        """Stop a worker; the supervisor starts one of another version in its place."""
        before = self.stage.workers[number]
        self._programs()[number] = program
        await before.terminate(25)
        await self._restarted(number, before)
        self.report.variants.append(f"to {program.name[:12]}")

    async def _kill(self, number: int) -> None:
        before, count = self.stage.workers[number], claims(self.stage)
        before.kill()
        must(before.exit_code == -signal.SIGKILL, "exit code -9")
        await until_reclaimed(self.stage, count)
        await self._restarted(number, before)
        self.faults.append("sigkill")
        self.report.variants.append(f"kill -9 of {self._programs()[number].name[:12]}")

    async def _restarted(self, number: int, before: WorkerProcess) -> None:
        await wait_until(lambda: self.stage.workers[number] is not before, 30, "the supervisor starts a worker")
        await self.stage.workers[number].wait_ready(60)

    def judge_codes(self, codes: Sequence[int]) -> None:
        """Leave them to :meth:`judge_exits`."""

    def judge_exits(self) -> None:
        """Judge the exit codes of the present version; the faults of a released one cannot be changed any more."""
        processes = [*self.stage.ended, *self.stage.workers, *self._live.hubs]
        codes = [one.exit_code for one in processes if isinstance(one, VersionedWorker | VersionedHub) and one.program is PRESENT]
        if exits := set(codes) - {None, 0, -signal.SIGKILL}:
            self.wrong.append(f"workers and hubs of the present version ended with {exits}")

    def line(self) -> str:
        steps = [f"{name} x{times}" for name, times in Counter(self.report.variants).items()]
        return super().line().replace(", ".join(self.report.variants), f"from {self._old.name[:12]}: {', '.join(steps)}", 1)
