"""Series of chaos runs: which kinds there are, and the runs of one series, one after the other."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import click

from tests.chaos.alerts.drill import Drill
from tests.chaos.bad_input import BadInput
from tests.chaos.folds.subject import Folds
from tests.chaos.journal.subject import Journal
from tests.chaos.live.subject import Live
from tests.chaos.report import Report, summary, text_of_failure
from tests.chaos.run import Duration, Options, Run
from tests.chaos.stage_run import StageRun, possible_faults
from tests.chaos.stores.mariadb import MariaDBRun
from tests.chaos.stores.opensearch import OpenSearchGroupsRun, OpenSearchRun
from tests.chaos.stores.postgresql import PostgresRun
from tests.chaos.subject import Subject
from tests.chaos.subscribers.subject import Subscribers
from tests.chaos.upgrade.run import UpgradeRun

SUBJECTS: dict[str, type[Subject]] = {kind.name: kind for kind in (Folds, Subscribers, Live, Journal)}
"""Subjects that share a stage."""

KINDS: dict[str, type[Run]] = {
    "stores": PostgresRun,
    "mariadb": MariaDBRun,
    "opensearch": OpenSearchRun,
    "opensearch-groups": OpenSearchGroupsRun,
    "upgrade": UpgradeRun,
    "alerts": Drill,
    "bad-input": BadInput,
}
"""Runs with a stage of their own."""


def split(names: Sequence[str]) -> list[tuple[str, ...]]:
    """Return the series of these names: the subjects that share a stage, and each other kind."""
    together = tuple(name for name in SUBJECTS if name in names)
    return [*([together] if together else []), *((name,) for name in KINDS if name in names)]


@dataclass(frozen=True, slots=True)
class Row:
    """One run in the table of all series."""

    name: str
    seed: int
    seconds: float
    faults: list[str]
    wrong: list[str]


class Series:
    """Runs of one kind, or of subjects on one stage.

    Attributes:
        rows: The runs that have ended.
    """

    def __init__(self, names: Sequence[str], options: Options) -> None:
        """Create a series without starting it.

        Raises:
            click.UsageError: A subject has no judge for the topology, or there is no such fault.
        """
        self.rows: list[Row] = []
        self._name = "+".join(names)
        self._options = options
        self._reports: list[Report] = []
        if names[0] in SUBJECTS:
            kinds = [SUBJECTS[name] for name in names]
            if missing := [kind.name for kind in kinds if options.topology not in kind.topologies]:
                raise click.UsageError(f"{missing[0]} has no judge for --topology {options.topology}")
            full = Duration(max(kind.full.runs for kind in kinds), max(kind.full.seconds for kind in kinds))
            share = Duration(max(kind.share.runs for kind in kinds), max(kind.share.seconds for kind in kinds))
            possible = possible_faults(kinds, options)
            self._make: Callable[[int, Path], Run] = lambda seed, folder: StageRun(seed, folder, options, self._duration, kinds)
        else:
            kind = KINDS[names[0]]
            full, share, possible = kind.full, kind.share, kind.possible(options)
            self._make = lambda seed, folder: kind(seed, folder, options, self._duration)
        self._duration = options.duration(full, share)
        if unknown := [name for name in self._duration.faults if name not in possible]:
            raise click.UsageError(f"there is no fault {unknown[0]!r} of {self._name}; there are: {', '.join(possible)}")

    def perform(self, base: Path) -> None:
        """Perform the runs, each with its own seed and folder, and print a summary of each.

        Raises:
            ServerUnavailableError: The released version is not available.
        """
        for seed in range(self._options.seed, self._options.seed + self._duration.runs):
            folder = base / f"run-{seed}"
            folder.mkdir()
            begin = time.monotonic()
            run = self._make(seed, folder)
            asyncio.run(self._performed(run))
            self.rows.append(Row(self._name, seed, round(time.monotonic() - begin, 1), run.faults, run.wrong))
            click.echo(run.line())
            if isinstance(run, StageRun):
                self._reports.append(run.report)
        if self._reports:
            click.echo(summary(self._reports, self._options.kafka or "apache"))

    @staticmethod
    async def _performed(run: Run) -> None:
        try:
            await run.perform()
        except Exception as error:
            run.wrong.append(text_of_failure(error))
