"""Output of ``streams-app tune``: its progress, a table and a plot of the candidate quiet periods, and the recommendation."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import click
from rich.console import Console
from rich.text import Text

from streams_app.cli.progress import ReportProgress, show_progress
from streams_app.clock import Clock
from streams_app.formatting import counted, duration_text, escaped, percentage, span, time_text
from streams_app.tuning.plot import Signs, plot
from streams_app.tuning.points import AutoPoint, Curve, Recommendation
from streams_app.tuning.read_counts import ReadCounts
from streams_app.tuning.table import table

WHY_WIDTH: Final = 100


def show(
    curve: Curve, recommended: Recommendation, configured_ms: int, console: Console | None = None, *, is_default: bool = False
) -> None:
    """Print the candidate quiet periods as a table and a plot, as wide as the terminal, then the recommendation with its reason.

    If ``is_default``, events decide the quiet period, and the candidates are values of its default.
    """
    console = console or Console()
    signs = Signs(is_fine=console.encoding.lower().startswith("utf"))
    console.print(Text(_about(curve)))
    console.print()
    console.print(table(curve, recommended.quiet_ms, configured_ms, console.width, signs))
    legend = _legend(curve, recommended.quiet_ms, configured_ms, signs)
    if is_default:
        legend += "\nX: the default of quiet_period, after events that do not decide it"
    console.print(Text(legend.strip(), style="dim"))
    drawn = plot(curve, recommended.quiet_ms, configured_ms, console.width, signs)
    if drawn:
        console.print()
    for line in drawn:
        console.print(line, no_wrap=True, crop=True)
    console.print()
    if recommended.quiet_ms is None:
        console.print(Text("no recommendation", style="bold yellow"))
    else:
        name = "quiet_period.default" if is_default else "quiet_period"
        recommends = "recommended: " if curve.auto is None else "recommended if it were fixed: "
        console.print(Text.assemble((recommends, "bold"), (f'{name} = "{duration_text(recommended.quiet_ms)}"', "bold green")))
    why = textwrap.fill(recommended.why, min(console.width, WHY_WIDTH), initial_indent="  ", subsequent_indent="  ")
    console.print(Text(why), soft_wrap=True)


def report_unused(tally: ReadCounts, unit: str) -> None:
    """Report on stderr the rejected events, with the first one for each reason, and the other remarks of ``tally``."""
    rejected = tally.rejected.total()
    if rejected:
        click.echo(f"{rejected:,} of {tally.read:,} {unit} were rejected and are not in the curve:", err=True)
    for reason, count in tally.rejected.most_common():
        click.echo(f"  {count:,} {reason}, the first at {escaped(tally.examples[reason])}", err=True)
    for remark in tally.remarks:
        click.echo(f"note: {escaped(remark)}", err=True)


def _about(curve: Curve) -> str:
    own = ""
    if curve.own_periods is not None:
        verb = "decides" if curve.own_periods == 1 else "decide"
        own = f"; {counted(curve.own_periods, 'event')} {verb} the quiet period"
    return (
        f"{curve.fold}: {counted(curve.events, 'event')} of {counted(curve.groups, 'group')}{own}\n"
        f"{time_text(curve.from_ms)} to {time_text(curve.to_ms)} ({span(max(1, curve.to_ms - curve.from_ms))})"
    )


def _legend(curve: Curve, recommended_ms: int | None, configured_ms: int, signs: Signs) -> str:
    legend = [f"{signs.recommended} recommended"] if recommended_ms is not None else []
    if configured_ms == recommended_ms:
        legend = [f"{legend[0]}, and configured now"]
    elif curve.auto is not None or any(point.quiet_ms == configured_ms for point in curve.points):
        legend.append(f"{signs.configured} configured now")
    lines = ["   ".join(legend)] if legend else []
    if curve.auto is not None:
        lines.append(_about_auto(curve.auto))
    if any(point.latency_p50_ms is not None for point in curve.points):
        lines.append("P50, P95, P99: so many of 100 events are in a record within this time")
    if any(point.redis_bytes is not None for point in curve.points):
        lines.append("REDIS: an estimate of what the groups hold that are open at the peak")
    if curve.sample is not None and curve.sample.ratio_error is None:
        lines.append(f"the beginning of the range, {curve.sample.events:,} events, as a few groups have nearly all of them")
    elif curve.sample is not None:
        lines.append(
            f"a sample: {curve.sample.groups:,} groups ({percentage(curve.sample.share)}), chosen by hash, with "
            f"{curve.sample.events:,} events; standard error of the ratio {curve.sample.ratio_error:.2%}"
        )
    return "\n".join(lines)


def _about_auto(auto: AutoPoint) -> str:
    begin_ms, ends = auto.point.quiet_ms, sorted(auto.last_ms.values()) or [auto.point.quiet_ms]
    until = duration_text(ends[0]) if ends[0] == ends[-1] else f"{duration_text(ends[0])} to {duration_text(ends[-1])}"
    return (
        f"auto: the quiet period sets itself; it begins with {duration_text(begin_ms)}, changes {counted(auto.changes, 'time')}, "
        f"and is {until} at the end"
    )


LEAST_MS: Final = 200
"""Time, in ms, for which reading must have lasted before its rate is shown; an earlier rate would be too inaccurate."""


class ReadProgress:
    """Shows the progress of ``tune``: first of reading the events, then of replaying them for each candidate quiet period."""

    def __init__(self, clock: Clock, unit: str, show: ReportProgress) -> None:
        self._clock = clock
        self._began_ms = clock.monotonic_ms()
        self._unit = unit
        self._show = show

    def reading(self, tally: ReadCounts) -> None:
        elapsed_ms = self._clock.monotonic_ms() - self._began_ms
        rate = f", {tally.read * 1000 / elapsed_ms:,.0f} a second" if elapsed_ms >= LEAST_MS else ""
        self._show(f"{tally.read:,} {self._unit} read{rate}", tally.done, tally.total)

    def replaying(self, done: int, total: int) -> None:
        """Show for how many candidates the events were replayed; the first of the steps sorts the events."""
        self._show(f"candidates replayed: {max(0, done - 1)} of {total - 1}", done, total)


@contextmanager
def read_progress(clock: Clock, unit: str) -> Iterator[ReadProgress]:
    """Show the progress of ``tune`` on stderr during the ``with`` block; ``unit`` is ``events`` or ``lines``."""
    with show_progress(clock, "reading") as show:
        yield ReadProgress(clock, unit, show)
