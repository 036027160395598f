"""A part of the product in a chaos run: what it needs on the stage, its load, its own faults, and its judge."""

# ruff: noqa: B027 - a subject has nothing to do at some of the steps

from __future__ import annotations

import asyncio
import random
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from tests.chaos.run import Duration

if TYPE_CHECKING:
    from tests.chaos.stage_run import StageRun


@dataclass(frozen=True, slots=True)
class Amount:
    """Load of a subject: events a second, and the number of its clients."""

    rate: float
    clients: int = 0


class Subject(ABC):
    """One part of the product in one run. A run has several of them at the same time, on the same stage.

    Attributes:
        name: Its name on the command line.
        full: Duration of its runs.
        share: Duration of its runs in CI.
        alone: Its load if it is the only named subject.
        beside: Its load beside others.
        settings: Settings of the workers; their topics are created, too.
        dated: Topics of those whose records may have any timestamp.
        own_faults: Faults that only this subject can cause.
        losing: Those of them after which Redis has lost data.
        noticed: Faults of the stage that are worth a run of this subject alone; None: all.
        topologies: Deployments of Redis for which it has a judge.
        wrong: Violations and failures.
    """

    name: ClassVar[str]
    full: ClassVar[Duration]
    share: ClassVar[Duration]
    alone: ClassVar[Amount]
    beside: ClassVar[Amount]
    settings: ClassVar[str] = ""
    dated: ClassVar[tuple[str, ...]] = ()
    own_faults: ClassVar[tuple[str, ...]] = ()
    losing: ClassVar[frozenset[str]] = frozenset()
    noticed: ClassVar[frozenset[str] | None] = None
    topologies: ClassVar[tuple[str, ...]] = ("single", "sentinel")

    def __init__(self, run: StageRun, amount: Amount) -> None:
        self.run = run
        self.amount = amount
        self.chance = random.Random(f"{run.seed}/{self.name}")
        self.wrong: list[str] = []

    def prepare(self) -> None:
        """Prepare files and environment, before anything starts."""

    async def fill(self) -> None:
        """Produce what must be there before the first worker starts; servers and topics exist."""

    async def start(self) -> None:
        """Start its clients; the workers are ready."""

    @abstractmethod
    async def load(self, breaking: asyncio.Task[None]) -> None:
        """Produce until the faults have ended, and wait until everything has been processed."""

    async def cause(self, fault: str) -> None:
        """Cause one of its own faults, and return when it has left its trace."""
        raise AssertionError(f"{self.name} has no fault {fault}")

    async def end(self) -> list[int]:
        """End its processes with SIGTERM and return their exit codes; the workers have ended."""
        return []

    async def judge(self) -> None:
        """Judge what is not judged before; all processes have ended."""

    async def stop(self) -> None:
        """Stop whatever is left, also after a failure."""

    def keep(self, stem: str) -> None:
        """Write files for the analysis of a failed run beside its folder; their names begin with a stem."""

    def logs(self) -> str:
        """Return the logs of its processes."""
        return ""

    @abstractmethod
    def lines(self) -> list[str]:
        """Return its part of the summary of a run."""
