"""A run of subjects on one stage: faults at random seeded times while all of them are under load, then the judgement of each.

Every run folds, because some faults happen at a point of folding, and recovery is measured by the folded events.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine, Sequence
from pathlib import Path
from typing import Any

from tests.chaos.faults import LOSING, OF_TOPOLOGY, available, schedule
from tests.chaos.folds.subject import Folds
from tests.chaos.report import UNDISTURBED, Report, text_of_failure
from tests.chaos.run import Duration, Options, Run
from tests.chaos.stage import TOPIC_MISSING, Stage
from tests.chaos.subject import Amount, Subject
from tests.chaos.topologies import STAGES, SentinelStage
from tests.helpers.worker.workers import WorkerProcess

WAITING_SHARE = 0.5
SHOWN = 8
"""Number of violations of each subject in the summary; a file has all."""


def first_failure(tasks: Sequence[asyncio.Task[Any]]) -> None:
    """Raise the error of a task that has one."""
    for task in tasks:
        if task.done() and not task.cancelled() and (error := task.exception()) is not None:
            raise error


async def together(*steps: Coroutine[Any, Any, Any]) -> None:
    """Wait for all steps; if one fails, cancel the others, wait until they have ended, and raise the error."""
    tasks = [asyncio.create_task(step) for step in steps]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    first_failure(tasks)


def possible_faults(kinds: Sequence[type[Subject]], options: Options) -> list[str]:
    """Return the names of the faults of the stage and of these subjects."""
    own = [name for kind in kinds for name in kind.own_faults]
    return [*available(is_apache=options.kafka != "embedded", topology=options.topology), *own]


class StageRun(Run):
    """A run of subjects on one stage.

    Attributes:
        workers: Number of workers.
        load_share: Share of the load that subjects have beside others.
        report: What has happened.
        subjects: The subjects, folds first.
    """

    workers = 3
    load_share = 1.0

    def __init__(self, seed: int, folder: Path, options: Options, duration: Duration, kinds: Sequence[type[Subject]]) -> None:
        """Create a run of the named subjects without starting it."""
        super().__init__(seed, folder, options, duration)
        is_alone = len(kinds) == 1 and not options.share
        self.folds = Folds(self, self._amount(Folds, kinds, is_alone=is_alone))
        others = [kind for kind in kinds if kind is not Folds]
        self.subjects: list[Subject] = [self.folds, *(kind(self, self._amount(kind, kinds, is_alone=is_alone)) for kind in others)]
        redis = options.redis_of(seed)
        self.report = Report(
            seed, redis if options.topology == "single" else f"{redis} {options.topology}", self.faults, wrong=self.wrong
        )
        self.stage = self.new_stage(folder, is_redis7=redis == "redis7")
        self.stage.more_settings = "".join(kind.settings for kind in others)
        self.stage.dated = tuple(topic for kind in others for topic in kind.dated)
        self.stage.before_workers = self._fill

    def _amount(self, kind: type[Subject], named: Sequence[type[Subject]], *, is_alone: bool) -> Amount:
        if kind not in named:
            return kind.beside
        declared = kind.alone if is_alone else kind.beside
        rate, clients = declared.rate * self.load_share, round(declared.clients * self.load_share)
        return Amount(self.options.rate or rate, self.options.clients or clients)

    def new_stage(self, folder: Path, *, is_redis7: bool) -> Stage:
        """Return the stage, which is not started yet."""
        return STAGES[self.options.topology](folder, is_apache=self.options.kafka != "embedded", is_redis7=is_redis7)

    async def _fill(self) -> None:
        for subject in self.subjects:
            await subject.fill()

    async def perform(self) -> None:
        """Inject faults for a while, end them, wait until everything has been processed, and judge."""
        for subject in self.subjects:
            subject.prepare()
        try:
            await self.stage.start(self.workers)
            for subject in self.subjects:
                await subject.start()
            breaking = asyncio.create_task(self.disturb())
            try:
                await together(*(subject.load(breaking) for subject in self.subjects))
            finally:
                breaking.cancel()
            codes = await self.stage.stop_workers()
            for subject in self.subjects:
                codes += await subject.end()
            self.judge_codes(codes)
            for subject in self.subjects:
                await subject.judge()
        except AssertionError as error:
            self.wrong.append(f"{type(error).__name__}: {error}"[:3_000])
        except Exception as error:
            self.wrong.append(text_of_failure(error))
        finally:
            await self._finish()

    async def _finish(self) -> None:
        """Collect the results, keep the logs of a run that has failed, and stop everything."""
        for subject in self.subjects:
            await subject.stop()
            self.wrong.extend(f"{subject.name}: {fault}" for fault in subject.wrong[:SHOWN])
            if len(subject.wrong) > SHOWN:
                self.wrong.append(f"{subject.name}: and {len(subject.wrong) - SHOWN:,} more")
        self.judge_exits()
        self.report.kept_data, self.report.exits = self.stage.kept_data, dict(self.stage.exits)
        if self.wrong:
            stem = str(self.stage.folder.parent / f"seed-{self.seed}")
            logs = self.stage.logs() + "".join(subject.logs() for subject in self.subjects)
            Path(f"{stem}.log").write_text(logs, "utf-8")  # noqa: ASYNC240 - the run is over
            everything = "\n".join(fault for subject in self.subjects for fault in subject.wrong)
            Path(f"{stem}.txt").write_text(everything, "utf-8")  # noqa: ASYNC240 - as above
            for subject in self.subjects:
                subject.keep(stem)
        await self.stage.close()

    def judge_codes(self, codes: Sequence[int]) -> None:
        """Judge the exit codes of all processes after SIGTERM."""
        if any(codes):
            self.wrong.append(f"processes ended with {codes} on SIGTERM")

    def judge_exits(self) -> None:
        """Judge the exit codes of workers that ended by themselves."""
        # A worker that starts while that topic is missing on purpose ends with 1.
        processes: list[WorkerProcess] = [*self.stage.ended, *self.stage.workers]
        if any(one.exit_code == 1 and TOPIC_MISSING not in one.log() for one in processes):
            self.wrong.append("a worker ended with exit code 1")

    def _possible(self) -> list[str]:
        """Return the names of the faults that this run may cause, own ones of the subjects first."""
        names = list(self.duration.faults) or self._noticed(
            possible_faults([type(subject) for subject in self.subjects], self.options)
        )
        # Half of the runs keep Redis's data, so that the guarantees that hold only then are judged, too.
        # A failover by Sentinel never keeps all of it.
        if self.seed % 2 and not isinstance(self.stage, SentinelStage):
            losing = LOSING.union(*(subject.losing for subject in self.subjects))
            names = [name for name in names if name not in losing] or names
        return names

    def _noticed(self, names: list[str]) -> list[str]:
        """Leave out the faults that the only named subject does not notice."""
        alone = self.subjects[-1]
        if len(self.subjects) > 2 or alone.noticed is None or self.options.topology != "single":
            return names
        return [name for name in names if name in alone.noticed or name in alone.own_faults]

    async def disturb(self) -> None:
        """Cause the faults of the schedule, each at its time, or later if the previous one lasts longer."""
        begin = asyncio.get_running_loop().time()
        async for number, name in self._planned(begin):
            # Some faults begin before the run has recovered from the previous one, others after it. This is decided
            # before the duration of the recovery is known, so that the measured seconds are an unbiased sample.
            waits = self.chance.random() < WAITING_SHARE
            if number == 0 and waits:
                self.stage.record_healed()
                await self._recover(UNDISTURBED)
            if asyncio.get_running_loop().time() - begin > self.duration.seconds:
                break
            await self._cause(name)
            if waits:
                await self._recover(name)
        await asyncio.sleep(max(0.0, begin + self.duration.seconds - asyncio.get_running_loop().time()))  # the load continues

    async def _planned(self, begin: float) -> AsyncIterator[tuple[int, str]]:
        for number, (at, name) in enumerate(schedule(self.chance, self._possible(), self.duration.seconds, self.seed // 2)):
            await asyncio.sleep(max(0.0, begin + at - asyncio.get_running_loop().time()))  # until this fault is planned
            yield number, name

    async def _cause(self, name: str) -> None:
        loop = asyncio.get_running_loop()
        self.faults.append(name)
        self.stage.record_healed()
        started = loop.time()
        owner = next((subject for subject in self.subjects if name in subject.own_faults), None)
        if owner is not None:
            await owner.cause(name)
            variant = None
        else:
            variant = await OF_TOPOLOGY[self.options.topology][name](self.stage, self.chance)
        self.report.variants.append(f"{name} ({variant})" if variant else name)
        if name == "sigkill":
            self.report.claim_seconds.append(round(loop.time() - started, 1))

    async def _recover(self, name: str) -> None:
        self.report.recovery.setdefault(name, []).append(await self.folds.recovered(name))

    def line(self) -> str:
        """Return the summary of the run in a few lines."""
        lines = [self.report.line(), *(f"    {line}" for subject in self.subjects[1:] for line in subject.lines())]
        return "\n".join([*lines, *(f"    WRONG {wrong}"[:600] for wrong in self.wrong)])
