"""Folds under faults: no event is lost, invented or, while Redis keeps its data, folded twice."""

from __future__ import annotations

import asyncio
from itertools import islice
from typing import TYPE_CHECKING

from tests.chaos.folds.health import Health, faults_of, reported_seconds
from tests.chaos.folds.judge import LEAST_EVENTS, Judge
from tests.chaos.folds.load import Load
from tests.chaos.run import Duration
from tests.chaos.subject import Amount, Subject
from tests.helpers.waiting import wait_until

if TYPE_CHECKING:
    from tests.chaos.stage_run import StageRun

DRAIN_SECONDS = 120.0


class Folds(Subject):
    """The folds and the read store of the stage; they are judged from the topics, the dead letters, the commits and the store."""

    name = "folds"
    full = Duration(10, 40.0)
    share = Duration(2, 40.0)
    alone = Amount(1_700.0)
    beside = Amount(500.0)
    topologies = ("single", "sentinel", "cluster")

    def __init__(self, run: StageRun, amount: Amount) -> None:
        super().__init__(run, amount)
        self._judge: Judge | None = None
        self._load: Load | None = None
        self._health: Health | None = None

    async def start(self) -> None:
        stage = self.run.stage
        self._judge = Judge(stage)
        self._judge.start()
        self._load = Load(stage.bootstrap, seed=self.run.seed, rate=self.amount.rate, is_idempotent=stage.is_apache)
        sent = self._load.ledger.sent
        stage.acknowledged = lambda: len(sent)
        self._health = Health(stage, stage.acknowledged)
        self._health.start()

    async def load(self, breaking: asyncio.Task[None]) -> None:
        assert self._load is not None
        await self._load.run(self.run.duration.seconds, max(self.run.options.events, LEAST_EVENTS), breaking.done)
        await breaking
        await self._drain(self._load)

    async def _drain(self, load: Load) -> None:
        loop, judge = asyncio.get_running_loop(), self._judge
        assert judge is not None
        healed = loop.time()
        while loop.time() - healed < DRAIN_SECONDS and not (
            judge.is_complete(load.ledger) and await asyncio.to_thread(lambda: judge.stored() == judge.rebuilt())
        ):
            await asyncio.sleep(0.5)  # a poll; a timeout is reported, not raised
        self.run.report.drain_seconds = round(loop.time() - healed, 1)

    async def recovered(self, name: str) -> float:
        """Wait until every event that was acknowledged before the end of the fault has been emitted; return how long it took."""
        assert self._load is not None
        assert self._judge is not None
        healed_at, count = self.run.stage.healed_at
        waited, emitted = set(islice(self._load.ledger.sent, count)), self._judge.outcome.ids_of

        def is_emitted() -> bool:
            waited.difference_update([name for name in waited if name in emitted])
            return not waited

        await wait_until(is_emitted, DRAIN_SECONDS, f"events sent before the end of {name} are emitted")
        return round(asyncio.get_running_loop().time() - healed_at, 1)

    async def judge(self) -> None:
        assert self._load is not None
        assert self._judge is not None
        await asyncio.sleep(1)  # the judge reads the last records; the embedded broker reports ends that are too low
        await self._judge.stop()
        ledger = self._load.ledger
        self.wrong += self._judge.faults(ledger)
        self.run.report.lost = len(ledger.sent.keys() - self._judge.outcome.ids_of.keys())

    async def stop(self) -> None:
        report, outages = self.run.report, self.run.stage.outages
        if self._judge is not None:
            await self._judge.stop()
            outcome = self._judge.outcome
            report.records, report.redelivered = len(outcome.values), outcome.redelivered
            report.overlapping = sum(len(ids) > 1 for ids in outcome.ids_of.values())
        if self._load is not None:
            report.events, report.dead_letters = len(self._load.ledger.sent), len(self._load.ledger.bad)
        if self._health is not None:
            await self._health.stop()
            self.wrong += faults_of(outages, self._health.samples)
            report.reported_seconds = reported_seconds(outages, self._health.samples)

    def lines(self) -> list[str]:
        return []  # the report of the run has them
