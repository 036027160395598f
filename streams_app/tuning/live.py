"""The curve of a fold by what its running workers count, without reading the topic (pure).

As silence alone closes groups, a quiet period X makes one record a group, and one more for each gap that is longer. Workers tell
how many gaps there were, sorted into buckets: at the bound of a bucket the number of longer ones is known, between two it is
interpolated. What workers estimate from a sample of groups is an estimate here too, and its error is told.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from prometheus_client.parser import text_string_to_metric_families

from streams_app.tuning.points import Curve, CurveSample, Point

_PREFIX = "streams_app_"


@dataclass(frozen=True, slots=True)
class LiveMetrics:
    """What one worker has counted of one fold since it started; but for the first two, estimates where it watches a sample.

    Attributes:
        events: Events folded.
        emitted: Folded records, whatever closed them.
        begun: Groups seen for the first time.
        split: Folds opened within the quiet period after the one before them was closed.
        gaps: (upper bound in ms, gaps up to it), rising; the last bound is infinite.
        share: The share of groups that is watched.
        error: Relative standard error of the number of records; 0 where every group is watched.
        since_ms: When the worker started; 0 where it does not say.
    """

    events: float
    emitted: float
    begun: float
    split: float
    gaps: tuple[tuple[float, float], ...]
    share: float
    error: float
    since_ms: int

    def longer(self, quiet_ms: int) -> float:
        """Gaps longer than that; between two bounds interpolated on the logarithmic scale."""
        bounds = [bound for bound, _ in self.gaps]
        at = bisect_left(bounds, quiet_ms)
        if math.isinf(bounds[at]) or at == 0:
            return self.gaps[-1][1] - self.gaps[at][1]
        (low, below), (high, upto) = self.gaps[at - 1], self.gaps[at]
        return self.gaps[-1][1] - below - (upto - below) * math.log(quiet_ms / low) / math.log(high / low)


def live_metrics_in(page: str, fold: str) -> LiveMetrics | None:
    """What a worker's page of metrics says of a fold; None: it says nothing of it.

    Raises:
        ValueError: It is not a page of metrics.
    """
    values: dict[str, float] = {}
    gaps: dict[float, float] = {}
    for family in text_string_to_metric_families(page):
        for sample in family.samples:
            name = sample.name.removeprefix(_PREFIX)
            if sample.labels.get("fold", fold) != fold:
                continue
            if name == "gap_seconds_bucket":
                gaps[float(sample.labels["le"]) * 1_000] = sample.value
            else:
                values[name] = values.get(name, 0.0) + sample.value
    if not gaps:
        return None
    return LiveMetrics(
        events=values["events_folded_total"], emitted=values.get("records_emitted_total", 0.0), begun=values["groups_begun_total"],
        split=values["split_folds_total"], gaps=tuple(sorted(gaps.items())), share=values["sample_share"],
        error=values["sample_error_ratio"], since_ms=int(values.get("process_start_time_seconds", 0.0) * 1_000),
    )  # fmt: skip


def combined(workers: Sequence[LiveMetrics], quiet_ms: int) -> LiveMetrics:
    """Several workers of a fold, each with partitions of its own, as one; their errors are independent of each other.

    Args:
        workers: At least one.
        quiet_ms: The errors are those of the records that this quiet period would make.

    Raises:
        ValueError: They sort gaps into different buckets.
    """
    if len({tuple(bound for bound, _ in worker.gaps) for worker in workers}) > 1:
        raise ValueError("they sort gaps into different buckets")
    records = [worker.begun + worker.longer(quiet_ms) for worker in workers]
    squares = sum((worker.error * count) ** 2 for worker, count in zip(workers, records, strict=True))
    counts = zip(*([count for _, count in worker.gaps] for worker in workers), strict=True)
    return LiveMetrics(
        events=sum(worker.events for worker in workers), emitted=sum(worker.emitted for worker in workers),
        begun=sum(worker.begun for worker in workers), split=sum(worker.split for worker in workers),
        gaps=tuple((bound, sum(each)) for (bound, _), each in zip(workers[0].gaps, counts, strict=True)),
        share=min(worker.share for worker in workers), error=math.sqrt(squares) / sum(records) if sum(records) else 0.0,
        since_ms=min(worker.since_ms for worker in workers),
    )  # fmt: skip


def live_windows(metrics: LiveMetrics, quiet_ms: int) -> tuple[int, ...]:
    """The candidates for which nothing is interpolated, up to the first that folds all there is; and the one there is now."""
    bounds = [int(bound) for bound, _ in metrics.gaps[:-1]]
    wanted = [bounds[0], *(bound for before, bound in pairwise(bounds) if metrics.longer(before) > 0)]
    return tuple(sorted({*wanted, min(max(quiet_ms, bounds[0]), bounds[-1])}))


def live_curve(fold: str, metrics: LiveMetrics, windows: Iterable[int], now_ms: int) -> Curve:
    """The curve; latencies and memory are not known.

    Args:
        fold: Name of the fold.
        metrics: Of its workers, see :func:`together`.
        windows: Candidates, from the first bound of the histogram to the last.
        now_ms: Wall clock; the range goes from the start of the workers to it.
    """
    events = round(metrics.events)
    points = []
    for quiet_ms in sorted(windows):
        records = max(1, min(events, round(metrics.begun + metrics.longer(quiet_ms))))
        points.append(Point(quiet_ms, records, 1 - records / events, *[None] * 7))
    sample = None
    if metrics.share < 1:
        watched = metrics.share * metrics.begun
        error = max(metrics.error * (1 - point.ratio) for point in points)
        sample = CurveSample(metrics.share, round(metrics.share * events), round(watched), error)
    return Curve(fold, events, round(metrics.begun), metrics.since_ms or now_ms, now_ms, tuple(points), sample)


def widest_interval(metrics: LiveMetrics, curve: Curve) -> tuple[int, float] | None:
    """The candidate whose ratio is least certain, as it lies within a bucket, and how wide the ratio may be; None: none does.

    The gaps of a bucket may all lie at either end of it.
    """
    bounds = [bound for bound, _ in metrics.gaps]
    widest: tuple[int, float] | None = None
    for point in curve.points:
        at = bisect_left(bounds, point.quiet_ms)
        if 0 < at and bounds[at] != point.quiet_ms and not math.isinf(bounds[at]):
            width = (metrics.gaps[at][1] - metrics.gaps[at - 1][1]) / max(1.0, metrics.events)
            if width > 0 and (widest is None or width > widest[1]):
                widest = point.quiet_ms, width
    return widest
