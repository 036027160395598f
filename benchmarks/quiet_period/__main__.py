"""`python -m benchmarks.quiet_period`: a quiet period that sets itself, beside the best fixed one, a daily one and the default.

Without a file, it compares them for the seven shapes of streams and their variants. The constants of the policy were chosen with
other seeds.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from itertools import product
from pathlib import Path
from statistics import mean
from typing import Final

import click
import numpy as np

from benchmarks.quiet_period.comparison import GOALS, Comparison, compare, limited_latency
from benchmarks.quiet_period.shapes import BEGIN_MS, DAY_MS, HOUR_MS, SHAPES, VARIANTS, Stream, stream
from streams_app.fold import Fold
from streams_app.folding.core.auto_quiet import POINT
from streams_app.folding.core.event import FoldInput
from streams_app.formatting import duration_text, span
from streams_app.settings import Limits
from streams_app.tuning.columns import Columns
from streams_app.tuning.file import LineReader
from streams_app.tuning.points import Point
from streams_app.tuning.read_counts import ReadCounts

SEED: Final = 101
"""The constants of the policy were chosen with the seeds 1 and 2."""

HEAD: Final = (
    "| stream | goal | best fixed | default | daily | **auto** | most below: daily | **auto** | wait of best | daily | **auto** "
    "| changes/h | reversals |"
)


@click.command(context_settings={"help_option_names": ["-h", "--help"], "show_default": True})
@click.option("--seed", default=SEED, help="Seed of the streams.")
@click.option("--shapes", default=",".join(SHAPES), help="Separated by commas.")
@click.option("--each", is_flag=True, help="A row for each variant, not the means of all variants of a shape.")
@click.option("--latency", is_flag=True, help="Compare two ways to limit the wait instead.")
@click.option("--processes", type=click.IntRange(1), default=2)
@click.option("--file", type=click.Path(exists=True, dir_okay=False, path_type=Path), help="Recorded events as JSON lines instead.")
@click.option("--time", default="at", help="Field of the file with the time of an event.")
@click.option("--group-key", default="group", help="Field of the file with the group key.")
def main(seed: int, shapes: str, processes: int, file: Path | None, time: str, group_key: str, **flags: bool) -> None:
    """Compare quiet periods, and print a table."""
    if file is not None:
        recorded = recorded_stream(file, time, group_key)
        if recorded.stamps_ms.max() - recorded.stamps_ms[0] < 2 * HOUR_MS:
            raise click.ClickException(f"{file} has less than two hours: the first hour is for learning, and is not compared")
        found = {name: compare(recorded, int(recorded.stamps_ms[0]), goal) for name, goal in GOALS.items()}
        _show([(file.name, found)])
        return
    if unknown := set(shapes.split(",")) - SHAPES.keys():
        raise click.UsageError(f"{', '.join(unknown)}: there are {', '.join(SHAPES)}")
    jobs = [(shape, variant) for shape in shapes.split(",") for variant in VARIANTS]
    with ProcessPoolExecutor(processes) as pool:
        if flags["latency"]:
            _show_latency(jobs, list(pool.map(partial(_limited, seed), *zip(*jobs, strict=True))))
        else:
            found_by_job = pool.map(partial(_compared, seed), *zip(*jobs, strict=True))
            names = [", ".join(job) if flags["each"] else job[0] for job in jobs]
            _show(list(zip(names, found_by_job, strict=True)))


def recorded_stream(file: Path, time: str, group_key: str) -> Stream:
    """Read a file as ``streams-app tune --file`` does; each line is an event."""
    fold = Fold(name="recorded", source="recorded", group_key=group_key, keep="events", quiet_period="15m")
    found = _Stamps()
    LineReader(fold, Limits(), found, ReadCounts(), time=time).read(file)
    if not found.stamps_ms:
        raise click.ClickException(f"{file} has no event with the fields {time} and {group_key}")
    _, groups = np.unique(found.members, return_inverse=True)
    return Stream(np.array(found.stamps_ms), groups)


class _Stamps(Columns):
    """Keeps times and groups in the order of the events, which columns do not."""

    def __init__(self) -> None:
        super().__init__(now_ms=0, capacity=1)
        self.stamps_ms: list[int] = []
        self.members: list[bytes] = []

    def add(self, partition: int, events: Iterable[FoldInput]) -> None:
        for event in events:
            self.stamps_ms.append(event[1])
            self.members.append(event[2])


def _compared(seed: int, shape: str, variant: str) -> dict[str, Comparison]:
    events = stream(shape, variant, seed)
    return {name: compare(events, BEGIN_MS + DAY_MS, goal) for name, goal in GOALS.items()}


def _limited(seed: int, shape: str, variant: str) -> tuple[Point, Point]:
    return limited_latency(stream(shape, variant, seed), BEGIN_MS + DAY_MS)


def _show(rows: list[tuple[str, dict[str, Comparison]]]) -> None:
    """Print a row for each name and goal: means of all comparisons with this name, and the largest losses."""
    click.echo(f"{HEAD}\n{re.sub('[^|]+', '---', HEAD)}")
    for name, goal in product(dict.fromkeys(name for name, _ in rows), GOALS):
        each = [found[goal] for named, found in rows if named == name]
        ways = [[getattr(one, way) for one in each] for way in ("best", "default", "daily", "auto")]
        ratios = " | ".join(f"{100 * mean(point.ratio for point in points):.1f}" for points in ways)
        best, _, *others = [span(round(mean(point.latency_mean_ms or 0 for point in points))) for points in ways]
        losses = (max(one.loss(way) for one in each) for way in ("daily", "auto"))
        below = " | ".join(f"{100 * max(0.0, loss):.1f}" for loss in losses)
        changes, reversals = mean(one.changes for one in each), sum(one.reversals for one in each)
        click.echo(f"| {name} | {goal} | {ratios} | {below} | {' | '.join([best, *others])} | {changes:.2f} | {reversals} |")
    for goal in GOALS:
        each = [found[goal] for _, found in rows]
        daily, auto = (sum(one.loss(way) > POINT for one in each) for way in ("daily", "auto"))
        click.echo(
            f"\n{goal}: more than one point below the best: auto in {auto} of {len(each)} streams, daily in {daily}; at most "
            f"{max(one.changes for one in each):.2f} changes an hour, {sum(one.reversals for one in each)} reversals"
        )


def _show_latency(jobs: list[tuple[str, str]], found: list[tuple[Point, Point]]) -> None:
    click.echo("| stream | variant | fixed quiet period | ratio | P99 | knee and max_hold | P99 |\n|---|---|---|---|---|---|---|")
    for (shape, variant), (fixed, auto) in zip(jobs, found, strict=True):
        waits = [span(point.latency_p99_ms or 0) for point in (fixed, auto)]
        ratios = [f"{100 * point.ratio:.1f}" for point in (fixed, auto)]
        head = f"{shape} | {variant} | {duration_text(fixed.quiet_ms)}"
        click.echo(f"| {head} | {ratios[0]} | {waits[0]} | {ratios[1]} | {waits[1]} |")


if __name__ == "__main__":
    main()
