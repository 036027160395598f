"""The report: a table of the contests, a line for each finding, and the comparison of ratios with those in the README."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from pathlib import Path
from statistics import median
from typing import Any, Final

from rich.console import Console
from rich.table import Table

from benchmarks.contest import Contest, Run
from benchmarks.finding import Finding

CONTESTANTS: Final = ("bare", "stock Faust", "sessions", "sessions native", "merge", "merge native")
NATIVE: Final = "sessions native"
_TABLE = re.compile(r"<!-- benchmark -->(.*?)<!-- /benchmark -->", re.DOTALL)


def runs_of(contest: Contest, contestant: str) -> list[Run]:
    """Return the runs of one contestant, in their order."""
    return [run for run in contest.runs if run.contestant == contestant]


def rate(contest: Contest, contestant: str) -> float:
    """Return the median of a load's figure: folded events/s, or events/s until the last record is out."""
    return median(_rate(contest, run) for run in runs_of(contest, contestant))


def _rate(contest: Contest, run: Run) -> float:
    by_record = contest.load.ratio_of == "record" and run.end_to_end is not None
    return run.end_to_end or 0.0 if by_record else run.events_per_second


def ratio(contest: Contest, contestant: str = "sessions", to: str = "bare") -> float:
    """Return the ratio of the medians; NaN if one is missing."""
    if not runs_of(contest, to):
        return float("nan")
    return rate(contest, contestant) / rate(contest, to)


def best_ratio(contest: Contest, contestant: str = "sessions", to: str = "bare") -> float:
    """Return the ratio of the fastest runs, for few short runs: other work on the machine only slows a run down."""
    return max(_rate(contest, run) for run in runs_of(contest, contestant)) / max(
        _rate(contest, run) for run in runs_of(contest, to)
    )


def show(contests: Sequence[Contest], findings: Sequence[Finding], head: str) -> None:
    """Print the report."""
    console = Console(width=168, highlight=False)
    console.print(head)
    if contests:
        console.print(_table(contests))
        console.print(
            "min / median / max of the runs; ÷: of the medians, hot, steady and big by the fold rate, the others by events/s until "
            "the last\nexpected record is on the output topic. CPU us/event: from the first folded event on; stolen: by the "
            "host of\na virtual machine, of all cores. `native`: with the native core; `sessions` and `merge` are without it."
        )
    for finding in findings:
        console.print(f"{finding.name}: " + ", ".join(f"{name} {_text(value)}" for name, value in finding.figures.items()))
    for fault in faults(contests, findings):
        console.print(f"WRONG: {fault}", style="bold red")


def _table(contests: Sequence[Contest]) -> Table:
    table = Table("load", "contestant")
    for column in ("events/s", "events/s to last record", "records/s", "÷ bare", "÷ stock", "CPU us/event", "peak RSS MB"):
        table.add_column(column, justify="right")
    for contest in contests:
        for contestant in CONTESTANTS:
            runs = runs_of(contest, contestant)
            if runs:
                table.add_row(*_row(contest, contestant, runs), end_section=contestant == contest.runs[-1].contestant)
    return table


def _row(contest: Contest, contestant: str, runs: Sequence[Run]) -> list[str]:
    return [
        contest.load.name,
        contestant,
        _spread(run.events_per_second for run in runs),
        _spread(run.end_to_end for run in runs),
        _spread(run.records_per_second for run in runs),
        f"{ratio(contest, contestant):.3f}",
        f"{ratio(contest, contestant, 'stock Faust'):.1f}" if runs_of(contest, "stock Faust") else "-",
        " ".join(f"{name} {_middle(run.micros().get(name) for run in runs):.1f}" for name in runs[0].micros()),
        f"{_middle(run.peak_rss_mb for run in runs):.0f}",
    ]


def _middle(values: Iterable[float | None]) -> float:
    present = [value for value in values if value is not None]
    return median(present) if present else float("nan")


def _spread(values: Iterable[float | None]) -> str:
    present = [value for value in values if value is not None]
    if not present:
        return "-"
    if len(present) == 1:
        return f"{present[0]:,.0f}"
    return f"{min(present):,.0f} / {median(present):,.0f} / {max(present):,.0f}"


def _text(value: Any) -> str:
    if isinstance(value, dict):
        return "(" + ", ".join(f"{name} {_text(each)}" for name, each in value.items()) + ")"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:,}" if isinstance(value, int | float) else str(value)


def faults(contests: Sequence[Contest], findings: Sequence[Finding]) -> list[str]:
    """Return all errors."""
    found = [
        f"{contest.load.name}, {run.contestant}: {fault}" for contest in contests for run in contest.runs for fault in run.faults
    ]
    return found + [f"{finding.name}: {fault}" for finding in findings for fault in finding.faults]


def as_json(contests: Sequence[Contest], findings: Sequence[Finding], about: dict[str, Any]) -> dict[str, Any]:
    """Return all runs as JSON, unrounded."""
    return {
        **about,
        "loads": {
            contest.load.name: {
                "what": contest.load.what,
                "expected": asdict(contest.expected),
                "ratio_to_bare": round(ratio(contest), 4),
                "best_ratio_to_bare": round(best_ratio(contest), 4),
                "native_ratio_to_bare": round(ratio(contest, NATIVE), 4) if runs_of(contest, NATIVE) else None,
                "ratio_to_stock_faust": round(ratio(contest, to="stock Faust"), 2) if runs_of(contest, "stock Faust") else None,
                "runs": [asdict(run) for run in contest.runs],
            }
            for contest in contests
        },
        "findings": [asdict(finding) for finding in findings],
    }


def promised_ratios(readme: Path) -> dict[str, float]:
    """Return load → ratio to bare reading, from the table between the ``benchmark`` markers.

    Raises:
        ValueError: The table is missing or cannot be read: otherwise the check would always pass.
    """
    found = _TABLE.search(readme.read_text("utf-8")) if readme.is_file() else None
    if found is None:
        raise ValueError(f"{readme.name}: no <!-- benchmark --> … <!-- /benchmark --> to check ratios against")
    lines = [line for line in found[1].splitlines() if line.startswith("|")]
    cells = [[cell.strip().strip("`*") for cell in line.strip("| \t").split("|")] for line in lines]
    if not cells:
        raise ValueError(f"{readme.name}: no table between the benchmark markers")
    columns = [number for number, name in enumerate(cells[0]) if name.startswith("ratio")]
    if cells[0][0] != "load" or not columns:
        raise ValueError(f"{readme.name}: the benchmark table needs the columns load and ratio")
    promised = {}
    for row in cells[1:]:
        number = re.search(r"\d+(\.\d+)?", row[columns[0]]) if len(row) > columns[0] else None
        if number:
            promised[re.split(r"\W", row[0])[0]] = float(number[0])
    if not promised:
        raise ValueError(f"{readme.name}: no ratio in the benchmark table")
    return promised


def broken_promises(contests: Sequence[Contest], promised: dict[str, float], factor: float) -> list[str]:
    """Return the loads whose ratio is below ``factor`` times that in the README, or missing there."""
    found = []
    for contest in contests:
        name, reached = contest.load.name, best_ratio(contest)
        if name not in promised:
            found.append(f"{name}: the README promises no ratio")
        elif reached < factor * promised[name]:
            found.append(f"{name}: ratio {reached:.3f} is below {factor} x {promised[name]} of the README")
    return found
