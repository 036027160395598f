"""Reports of chaos runs: one line for each run, and tables over all runs."""

from __future__ import annotations

import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from statistics import median

UNDISTURBED = "(none yet)"
"""Row of the table before the first fault: the time for which an event stays in its open group without any fault."""


@dataclass
class Report:
    """One run.

    Attributes:
        faults: Faults in the order in which they happened.
        variants: The same, with the variant of each fault, for people.
        overlapping: Number of events under two fold ids.
        recovery: Fault → seconds from its end until every event acknowledged before had been emitted, for the faults after
            which the run waited.
        claim_seconds: Seconds from each SIGKILL to the next claim.
        reported_seconds: Seconds from the begin of each outage of broker or Redis until no worker was ready.
        exits: Exit code → number of workers that ended with it and were not stopped on purpose.
    """

    seed: int
    redis: str = ""
    faults: list[str] = field(default_factory=list)
    variants: list[str] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)
    events: int = 0
    records: int = 0
    lost: int = 0
    redelivered: int = 0
    overlapping: int = 0
    dead_letters: int = 0
    kept_data: bool = True
    drain_seconds: float = 0.0
    recovery: dict[str, list[float]] = field(default_factory=dict)
    claim_seconds: list[float] = field(default_factory=list)
    reported_seconds: list[float] = field(default_factory=list)
    exits: dict[int, int] = field(default_factory=dict)

    def line(self) -> str:
        """Return the run in two lines."""
        exits = ", ".join(f"{count}x {code}" for code, count in sorted(self.exits.items()))
        kept = "kept its data" if self.kept_data else "lost data"
        return (
            f"seed {self.seed:>4}  {'FAILED' if self.wrong else 'ok':<6} events {self.events:>7,}  records {self.records:>6,}  "
            f"re-sent {self.redelivered:>4}  in two folds {self.overlapping:>5}  {self.redis} {kept}  "
            f"drained in {self.drain_seconds:>5.1f} s  exits: {exits or 'none'}\n           {', '.join(self.variants)}"
        )


def text_of_failure(error: BaseException) -> str:
    """Return the error, then the innermost calls: tables show the beginning alone."""
    return f"{type(error).__name__}: {error}\n{''.join(traceback.format_tb(error.__traceback__)[-5:])}"[:3_000]


def summary(reports: list[Report], kafka: str) -> str:
    """Return the tables over all runs."""
    lines = ["", f"{'':<28} {'runs':>5} {'events':>10} {'records':>8} {'lost':>5} {'two folds':>9} {'re-sent':>8}  drained within"]
    kinds: dict[str, Callable[[Report], bool]] = {
        "Redis kept its data": lambda report: report.kept_data,
        "Redis lost data": lambda report: not report.kept_data,
        **{name: lambda report, name=name: report.redis == name for name in sorted({report.redis for report in reports})},  # type: ignore[misc]  # a default binds the name
        "all": lambda report: True,
    }
    for kind, is_one in kinds.items():
        if chosen := [report for report in reports if is_one(report)]:
            lines.append(
                f"{kind:<28} {len(chosen):>5} {sum(report.events for report in chosen):>10,} "
                f"{sum(report.records for report in chosen):>8,} {sum(report.lost for report in chosen):>5} "
                f"{sum(report.overlapping for report in chosen):>9} {sum(report.redelivered for report in chosen):>8}  "
                f"{max(report.drain_seconds for report in chosen):.1f} s"
            )
    lines += ["", *_by_fault(reports), ""]
    failed = sum(bool(report.wrong) for report in reports)
    lines.append(f"{len(reports)} runs on {kafka}, {failed} of them failed")
    if claims := [seconds for report in reports for seconds in report.claim_seconds]:
        lines.append(f"from SIGKILL to the next claim: median {median(claims):.1f} s, max {max(claims):.1f} s")
    if reported := [seconds for report in reports for seconds in report.reported_seconds]:
        lines.append(
            "from an outage until no worker was ready: "
            f"median {median(reported):.1f} s, max {max(reported):.1f} s ({len(reported)})"
        )
    return "\n".join(lines)


def _by_fault(reports: list[Report]) -> list[str]:
    """Return the results of the runs by fault; a run with several faults counts for each of them."""
    lines = [
        f"{'fault':<18} {'times':>5} {'runs':>5} {'events':>10} {'lost':>5} {'two folds':>9}  seconds to recover: median, max (of)"
    ]
    names = {name for report in reports for name in (*report.faults, *report.recovery)}
    for name in sorted(names):
        having = [report for report in reports if name in report.faults]
        kept = [report for report in having if report.kept_data]
        took = [seconds for report in reports for seconds in report.recovery.get(name, [])]
        recovery = f"{median(took):.1f}, {max(took):.1f} ({len(took)})" if took else "-"
        lines.append(
            f"{name:<18} {sum(report.faults.count(name) for report in having):>5} {len(having):>5} "
            f"{sum(report.events for report in having):>10,} {sum(report.lost for report in having):>5} "
            f"{sum(report.overlapping for report in kept) if kept else '-':>9}  {recovery}"
        )
    return [*lines, "two folds: events under two fold ids, in the runs in which Redis kept its data"]
