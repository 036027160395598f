"""Computes the folding ratio of each candidate quiet period from the gaps that running workers have counted (pure).

If silence alone closes groups, a quiet period X gives one record for each group, and one more for each gap that is longer than X.
Workers count the gaps in the buckets of a histogram: the number of longer gaps is exact at the bound of a bucket, and interpolated
between two bounds. If workers watch only a sample of the groups, the result is an estimate, and its error is reported.
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
    """The metrics of one fold in one worker since the worker started.

    If the worker watches only a sample of the groups, ``begun``, ``split`` and ``gaps`` are estimates for all groups.

    Attributes:
        begun: Number of groups seen for the first time.
        split: Number of times that a group reopened within the quiet period after it had closed.
        gaps: Pairs of an upper bound in ms, and the number of gaps up to this bound. The bounds rise, and the last one is infinite.
        share: Fraction of the groups that are watched, from 0 to 1.
        error: Relative standard error of the number of records; 0 if every group is watched.
        since_ms: Start time of the worker; 0 if it is unknown.
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
        """Return the number of gaps longer than a quiet period, interpolated on a logarithmic scale between two bounds.

        Below the first bound, the result is the number of gaps longer than that bound; above the last finite bound, it is 0.
        """
        bounds = [bound for bound, _ in self.gaps]
        at = bisect_left(bounds, quiet_ms)
        if math.isinf(bounds[at]) or at == 0:
            return self.gaps[-1][1] - self.gaps[at][1]
        (low, below), (high, upto) = self.gaps[at - 1], self.gaps[at]
        return self.gaps[-1][1] - below - (upto - below) * math.log(quiet_ms / low) / math.log(high / low)


def live_metrics_in(page: str, fold: str) -> LiveMetrics | None:
    """Return the metrics of a fold from a worker's ``/metrics``, in the text format of Prometheus; None if it does not occur there.

    Raises:
        ValueError: The text has another format.
        KeyError: A metric of the fold is missing, because the worker is of another version.
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
    """Combine the metrics of several workers of a fold, which own different partitions.

    Counts are added, and standard errors are combined as those of independent estimates, for the number of records that
    ``quiet_ms`` would give. The fraction of watched groups and the start time are the lowest of all workers.

    Raises:
        ValueError: The workers use different buckets.
    """
    if len({tuple(bound for bound, _ in worker.gaps) for worker in workers}) > 1:
        raise ValueError("they use different buckets")
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
    """Return the candidate quiet periods, in ms and in rising order.

    They are the bounds of the histogram, up to the first bound that no gap exceeds, and the configured quiet period, limited to the
    bounds.
    """
    bounds = [int(bound) for bound, _ in metrics.gaps[:-1]]
    wanted = [bounds[0], *(bound for before, bound in pairwise(bounds) if metrics.longer(before) > 0)]
    return tuple(sorted({*wanted, min(max(quiet_ms, bounds[0]), bounds[-1])}))


def live_curve(fold: str, metrics: LiveMetrics, windows: Iterable[int], now_ms: int) -> Curve:
    """Compute the folding ratio of each candidate from combined metrics; latencies and memory are unknown (None).

    The range begins when the workers started, and ends at ``now_ms``. Candidates lie within the bounds of the histogram.
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
    """Return the candidate whose folding ratio is least certain, and the width of the uncertainty; None if no ratio is uncertain.

    The ratio between two bounds is interpolated. The width is the difference between the ratio if all gaps of the bucket are as
    short as its lower bound, and if all are as long as its upper bound.
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
