"""``make chaos``: workers under load, faults at random seeded times, judged from the topics alone.

Reports; asserts no durations. Exit code 1 if anything was lost, invented, folded twice, or if a fault left no trace.
"""

from __future__ import annotations

import asyncio
import json
import logging
import random
import shutil
import sys
import tempfile
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import click

from tests.chaos.faults import FAULTS, LOSING, NoTraceError, available, schedule
from tests.chaos.judge import Judge, folder_of
from tests.chaos.load import Load
from tests.chaos.stage import Stage

DRAIN_SECONDS = 120.0
WORKERS = 3


@dataclass
class Report:
    """One run."""

    seed: int
    faults: list[str] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)
    events: int = 0
    records: int = 0
    redelivered: int = 0
    overlapping: int = 0
    dead_letters: int = 0
    kept_data: bool = True
    drain_seconds: float = 0.0
    recovery_seconds: list[float] = field(default_factory=list)
    exits: dict[int, int] = field(default_factory=dict)


async def run_once(
    seed: int, folder: Path, names: list[str], *, is_apache: bool, seconds: float, rate: float, least: int
) -> Report:
    """One run from the first server to the judgement."""
    chance = random.Random(seed)
    # Half of the runs keep Redis's data, so that exactly-once folding is judged, too.
    chosen = [name for name in names if name not in LOSING] if seed % 2 else names
    report, stage, loop = Report(seed), Stage(folder, is_apache), asyncio.get_running_loop()
    load, judge = None, Judge(stage)
    try:
        await stage.start(WORKERS)
        judge.start()
        load = Load(stage.bootstrap, seed=seed, rate=rate, is_idempotent=is_apache)
        producing = asyncio.create_task(load.run(seconds, least))
        begin = loop.time()
        for at, name in schedule(chance, chosen, seconds):
            await asyncio.sleep(max(0.0, begin + at - loop.time()))
            if loop.time() - begin > seconds:
                break
            started = loop.time()
            report.faults.append(name)
            await FAULTS[name](stage, chance)
            if name == "sigkill":
                report.recovery_seconds.append(round(loop.time() - started, 1))
        await producing
        healed = loop.time()
        while loop.time() - healed < DRAIN_SECONDS and not (
            judge.is_complete(load.ledger) and await asyncio.to_thread(lambda: judge.stored() == judge.rebuilt())
        ):
            await asyncio.sleep(0.5)
        report.drain_seconds = round(loop.time() - healed, 1)
        codes = await stage.stop_workers()
        if any(codes):
            report.wrong.append(f"workers ended with {codes} on SIGTERM")
        await asyncio.sleep(1)
    except (NoTraceError, AssertionError) as error:
        report.wrong.append(f"{type(error).__name__}: {error}"[:3_000])
    finally:
        await judge.stop()
        if load is not None:
            report.wrong += judge.faults(load.ledger)
            report.events, report.dead_letters = len(load.ledger.sent), len(load.ledger.bad)
        report.records, report.redelivered = len(judge.outcome.values), judge.outcome.redelivered
        report.overlapping = sum(len(ids) > 1 for ids in judge.outcome.ids_of.values())
        report.kept_data, report.exits = stage.kept_data, dict(stage.exits)
        if 1 in stage.exits:
            report.wrong.append("a worker ended with exit code 1")
        if report.wrong:
            (folder.parent / f"seed-{seed}.log").write_text(stage.logs(), "utf-8")
        await stage.close()
    return report


@click.command()
@click.option("--runs", default=10, show_default=True)
@click.option("--seed", default=1, show_default=True, help="Of the first run; the others follow.")
@click.option("--seconds", default=40.0, show_default=True, help="Load of one run.")
@click.option("--rate", default=1_700.0, show_default=True, help="Events a second.")
@click.option("--events", default=0, show_default=True, help="At least so many events a run.")
@click.option("--kafka", type=click.Choice(["apache", "embedded"]), default="apache", show_default=True)
@click.option("--faults", default=None, help=f"Only these, with commas: {', '.join(FAULTS)}")
@click.option("--json", "json_file", type=click.Path(path_type=Path), default=None, help="Write the reports there.")
@click.option("--share", is_flag=True, help="The share of it that CI runs: two runs of 40 s.")
def main(
    runs: int,
    seed: int,
    seconds: float,
    rate: float,
    events: int,
    kafka: str,
    faults: str | None,
    json_file: Path | None,
    share: bool,
) -> None:
    """Breaks workers, Redis, broker and read store under load, and looks whether anything is lost."""
    logging.getLogger("aiokafka").setLevel(logging.CRITICAL)  # servers are away on purpose
    logging.getLogger("asyncio").setLevel(logging.CRITICAL)  # as above: its complaints about dropped connections
    is_apache = kafka == "apache"
    names = available(faults.split(",") if faults else None, is_apache=is_apache)
    if share:
        runs = 2
    base = Path(tempfile.mkdtemp(prefix="chaos-"))
    reports = []
    for number in range(runs):
        report = asyncio.run(
            run_once(seed + number, folder_of(base, number), names, is_apache=is_apache, seconds=seconds, rate=rate, least=events)
        )
        reports.append(report)
        click.echo(line(report))
    click.echo(summary(reports, kafka))
    if json_file:
        json_file.write_text(json.dumps([vars(report) for report in reports], indent=1), "utf-8")
    failed = [report for report in reports if report.wrong]
    if failed:
        click.echo(f"worker logs: {base}", err=True)
        sys.exit(1)
    shutil.rmtree(base, ignore_errors=True)


def line(report: Report) -> str:
    """One run in a line, and what is wrong with it below."""
    exits = ", ".join(f"{count}x {code}" for code, count in sorted(report.exits.items()))
    kept = "Redis kept its data" if report.kept_data else "Redis lost data"
    text = (
        f"seed {report.seed:>4}  {'FAILED' if report.wrong else 'ok':<6} events {report.events:>7,}  records {report.records:>6,}  "
        f"re-sent {report.redelivered:>4}  in two folds {report.overlapping:>5} ({kept})  "
        f"drained in {report.drain_seconds:>5.1f} s  exits: {exits or 'none'}\n           {', '.join(report.faults)}"
    )
    return "\n".join([text, *(f"    WRONG {wrong}" for wrong in report.wrong)])


def summary(reports: list[Report], kafka: str) -> str:
    """The table."""
    counts: Counter[str] = Counter(name for report in reports for name in report.faults)
    recovery = sorted(seconds for report in reports for seconds in report.recovery_seconds)
    lines: list[Any] = ["", f"{'fault':<20} times", *(f"{name:<20} {count}" for name, count in counts.most_common()), ""]
    lines.append(
        f"{len(reports)} runs on {kafka}: {sum(report.events for report in reports):,} events, "
        f"{sum(report.records for report in reports):,} records, {sum(bool(report.wrong) for report in reports)} runs failed"
    )
    if recovery:
        lines.append(f"from SIGKILL to the next claim: median {recovery[len(recovery) // 2]} s, max {recovery[-1]} s")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
