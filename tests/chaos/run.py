"""A kind of chaos run: what it declares for itself, and the options of the command line."""

from __future__ import annotations

import random
from abc import ABC, abstractmethod
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Literal

REDIS = ("valkey", "redis7")


@dataclass(frozen=True, slots=True)
class Duration:
    """Number of runs, each with its own seed, and the seconds of their load and faults.

    Attributes:
        faults: The only faults; empty: all.
    """

    runs: int = 1
    seconds: float = 0.0
    faults: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Options:
    """Options of a series; None and an empty tuple: what the kind of run declares.

    Attributes:
        rate: Events a second of each named subject.
        clients: Number of browsers, and of readers and followers of a journal.
        events: Minimum number of folded events of a run.
        redis: Server of each run; ``both``: in turn, by the seed.
        factor: Divisor of the durations in the rules of the alerts.
        cases: Number of cases of each class of bad input.
        share: Whether the share of CI runs.
    """

    runs: int | None = None
    seed: int = 1
    seconds: float | None = None
    rate: float | None = None
    clients: int | None = None
    events: int = 0
    faults: tuple[str, ...] = ()
    topology: str = "single"
    kafka: Literal["apache", "embedded"] | None = None
    redis: str = "both"
    factor: float = 6.0
    cases: int = 10_000
    share: bool = False

    def duration(self, full: Duration, share: Duration) -> Duration:
        """Return what is declared, except for what the command line says."""
        declared = share if self.share else full
        return Duration(
            declared.runs if self.runs is None else self.runs,
            declared.seconds if self.seconds is None else self.seconds,
            self.faults or declared.faults,
        )

    def redis_of(self, seed: int) -> str:
        """Return both servers in turn, each with a run that keeps its data and a run that may lose some."""
        return REDIS[seed // 2 % 2] if self.redis == "both" else self.redis


class Run(ABC):
    """One run, from the first server to the judgement.

    Attributes:
        full: Duration of a series.
        share: Duration of the series of CI.
        faults: Faults that have happened, in order.
        wrong: Violations and failures.
        chance: Random numbers of the run.
    """

    full: ClassVar[Duration] = Duration()
    share: ClassVar[Duration] = Duration()

    def __init__(self, seed: int, folder: Path, options: Options, duration: Duration) -> None:
        """Create a run without starting it; its files are in ``folder``."""
        self.seed = seed
        self.folder = folder
        self.options = options
        self.duration = duration
        self.chance = random.Random(seed)
        self.faults: list[str] = []
        self.wrong: list[str] = []

    @classmethod
    def possible(cls, options: Options) -> list[str]:
        """Return the names of its faults."""
        return []

    @abstractmethod
    async def perform(self) -> None:
        """Start everything, cause faults under load, judge, and stop everything."""

    @abstractmethod
    def line(self) -> str:
        """Return the summary of the run in a few lines."""
