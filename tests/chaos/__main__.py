"""``make chaos``: breaks what runs under load, at random seeded times, and judges the results from outside.

Each subject has its own load, faults and judge: ``folds``, ``subscribers``, ``live`` and ``journal`` share one stage, the others
have their own. The runs report durations and assert none. The exit code is 1 if anything was lost, invented or processed more often
than promised, or if a fault left no trace.
"""

from __future__ import annotations

import json
import logging
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from tests.chaos.faults import OF_TOPOLOGY
from tests.chaos.run import REDIS, Options
from tests.chaos.series import KINDS, SUBJECTS, Row, Series, split
from tests.servers.cache import ROOT, ServerUnavailableError

ALL: tuple[tuple[str, ...], ...] = (
    ("folds",),
    ("folds", "--topology", "sentinel", "--runs", "4", "--seconds", "75"),
    ("folds", "--topology", "cluster", "--runs", "4", "--seconds", "60"),
    ("subscribers",),
    ("stores",),
    ("mariadb",),
    ("opensearch",),
    ("live",),
    ("journal",),
    ("subscribers", "live", "journal", "--topology", "sentinel", "--runs", "1"),
    ("upgrade",),
    ("alerts",),
    ("bad-input",),
)
"""The series of a call without subjects, with their options."""

SHARE: tuple[tuple[str, ...], ...] = (
    ("folds", "subscribers", "live", "journal", "--seed", "9"),
    ("alerts",),
    ("upgrade",),
    ("opensearch",),
    ("stores",),
)
"""The series of CI, long ones first. These two seeds have faults of workers, Redis and the broker, and own ones of each subject."""

SHARE_JOBS = 2
"""The alerts mostly wait."""


SHOWN = 4
LONGEST = 600
"""Number of violations of each run below the table, and their length: of a failed CI, often the last lines alone are at hand."""


def table(rows: Sequence[Row]) -> str:
    """Return the table of all runs, and what was wrong."""
    width = max(len(row.name) for row in rows)
    lines = [
        f"{row.name:<{width}}  seed {row.seed:>4}  {'FAILED' if row.wrong else 'ok':<6}  {row.seconds:>6.1f} s  "
        f"{', '.join(row.faults)}"
        for row in rows
    ]
    wrong = [f"{row.name} seed {row.seed}: {one}"[:LONGEST] for row in rows for one in row.wrong[:SHOWN]]
    return "\n".join(["", *lines, *wrong, f"{len(rows)} runs, {sum(bool(row.wrong) for row in rows)} of them failed"])


def performed(series: Series, name: str) -> bool:
    """Perform one series in this process; return whether nothing was wrong. The folders of a failed run are kept."""
    for library in ("aiokafka", "asyncio"):
        logging.getLogger(library).setLevel(logging.CRITICAL)  # servers are down on purpose
    base = Path(tempfile.mkdtemp(prefix=f"chaos-{name}-"))
    base.chmod(0o755)  # a server that must not run as root reads it
    try:
        series.perform(base)
    except ServerUnavailableError as error:
        click.echo(f"no {name} test: {error}", err=True)
        return os.environ.get("CI") != "true"
    if any(row.wrong for row in series.rows):
        click.echo(f"logs: {base}", err=True)
        return False
    shutil.rmtree(base, ignore_errors=True)
    return True


def performed_apart(all_words: Sequence[Sequence[str]], jobs: int) -> tuple[list[Row], bool]:
    """Perform each series in a process of its own, at most ``jobs`` at the same time; return all runs, and whether none failed."""

    def perform(words: Sequence[str]) -> tuple[list[dict[str, Any]], bool]:
        with tempfile.NamedTemporaryFile(suffix=".json") as file:
            command = [sys.executable, "-m", "tests.chaos", *words, "--json", file.name]
            output = subprocess.PIPE if jobs > 1 else None
            ran = subprocess.run(
                command, cwd=ROOT, check=False, text=True, stdout=output, stderr=subprocess.STDOUT if output else None
            )
            click.echo(f"\n== {' '.join(words)}\n{ran.stdout or ''}")
            content = Path(file.name).read_text("utf-8")
            return json.loads(content) if content else [], ran.returncode == 0

    with ThreadPoolExecutor(jobs) as pool:
        results = list(pool.map(perform, all_words))
    return [Row(**row) for rows, _ in results for row in rows], all(is_right for _, is_right in results)


@click.command()
@click.argument("subjects", nargs=-1, type=click.Choice([*SUBJECTS, *KINDS]))
@click.option("--runs", type=click.IntRange(0), default=None, help="Number of runs of each series.")
@click.option(
    "--seed", default=1, show_default=True, help="Seed of the first run; the next runs use the following numbers. Redis keeps its "
    "data in runs with an odd seed.",
)  # fmt: skip
@click.option("--seconds", type=float, default=None, help="Duration of the load and the faults of a run.")
@click.option("--rate", type=float, default=None, help="Events a second of each named subject.")
@click.option("--clients", type=int, default=None, help="Number of browsers, and of readers and followers of a journal.")
@click.option("--events", default=0, show_default=True, help="Minimum number of folded events of a run.")
@click.option("--kafka", type=click.Choice(["apache", "embedded"]), default=None, help="The broker.")
@click.option(
    "--redis", type=click.Choice(["both", *REDIS]), default="both", show_default=True, help="both: two runs each, in turn."
)
@click.option("--topology", type=click.Choice(list(OF_TOPOLOGY)), default="single", show_default=True, help="Deployment of Redis.")
@click.option("--faults", default=None, help="Only these, separated by commas; an unknown one shows which there are.")
@click.option("--factor", default=6.0, show_default=True, help="Divisor of the durations in the rules of alerts; 1: as shipped.")
@click.option("--cases", default=10_000, show_default=True, help="Number of cases of each class of bad input.")
@click.option("--share", is_flag=True, help="Run the share of CI.")
@click.option("--jobs", type=click.IntRange(1), default=None, help="Number of series at the same time.")
@click.option("--json", "json_file", type=click.Path(path_type=Path), default=None, help="File for the runs as JSON.")
def main(subjects: tuple[str, ...], jobs: int | None, json_file: Path | None, faults: str | None, **given: Any) -> None:
    """Break SUBJECTS under load, and check that nothing is lost; without SUBJECTS all of them, in several series."""
    options = Options(faults=tuple(faults.split(",")) if faults else (), **given)
    chosen = split(subjects)
    if len(chosen) == 1:
        series = Series(chosen[0], options)
        is_right, rows = performed(series, chosen[0][0]), series.rows
    else:
        rest = words_of(click.get_current_context())
        rows, is_right = performed_apart(
            [(*words, *rest) for words in chosen or (SHARE if options.share else ALL)], jobs or (SHARE_JOBS if options.share else 1)
        )
    if json_file:
        json_file.write_text(json.dumps([asdict(row) for row in rows], indent=1), "utf-8")
    if rows:
        click.echo(table(rows))
    sys.exit(0 if is_right else 1)


def words_of(context: click.Context) -> list[str]:
    """Return the options of this call that apply to each of its series."""
    words = []
    for option in context.command.params:
        name = option.name or ""
        is_given = context.get_parameter_source(name) is click.core.ParameterSource.COMMANDLINE
        if is_given and name not in ("subjects", "jobs", "json_file"):
            words += [option.opts[0]] if context.params[name] is True else [option.opts[0], str(context.params[name])]
    return words


if __name__ == "__main__":
    main()
