"""Results of ``tune``: records, latency and memory for each candidate quiet period, and the recommended one (pure)."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Point:
    """Records, latency and memory that one candidate quiet period gives; a value is None if it is unknown.

    Latencies are from the score of an event until its record closes; percentiles are by nearest rank.

    Attributes:
        records: Number of folded records; an estimate if the curve has a :class:`CurveSample`.
        ratio: Folding ratio, 1 - records / events; 0 if there are no events.
        peak_open_groups: Largest number of groups that are open at the same time. A group is open from its first event until it
            closes, including both times: if one group closes in the instant in which another opens, both count.
        redis_bytes: Estimated memory in Redis at that peak, in bytes.
    """

    quiet_ms: int
    records: int
    ratio: float
    latency_p50_ms: int | None
    latency_p95_ms: int | None
    latency_p99_ms: int | None
    latency_mean_ms: int | None
    latency_max_ms: int | None
    peak_open_groups: int | None
    redis_bytes: int | None


@dataclass(frozen=True, slots=True)
class AutoPoint:
    """Records, latency and memory that a quiet period which sets itself gives, if it has learned nothing before the first event.

    Attributes:
        point: The same numbers as for a candidate; its quiet period is the default, with which each partition begins.
        changes: Number of changes of the quiet period.
        last_ms: Quiet period of each partition after the last event, in ms.
    """

    point: Point
    changes: int
    last_ms: dict[int, int]

    def as_json(self) -> dict[str, Any]:
        """Return the point as ``--json`` prints it."""
        values = asdict(self.point)
        last_ms = {str(partition): quiet_ms for partition, quiet_ms in self.last_ms.items()}
        return {"default_ms": values.pop("quiet_ms"), **values, "changes": self.changes, "last_quiet_ms": last_ms}


@dataclass(frozen=True, slots=True)
class CurveSample:
    """The part of the events from which a :class:`Curve` was computed, if it was not computed from all of them.

    Usually it is a sample of groups, chosen by hash. If a few groups have nearly all events, it is the beginning of the range
    instead (of the sampled groups, if groups were dropped before).

    Attributes:
        share: Probability that an event is in the sample.
        ratio_error: Largest standard error of the folding ratio among the points; None for the beginning of a range, whose error
            is unknown.
    """

    share: float
    events: int
    groups: int
    ratio_error: float | None


@dataclass(frozen=True, slots=True)
class Curve:
    """Records, latency and memory that each candidate quiet period gives for the same events.

    Attributes:
        groups: Number of groups, in which a group key counts once for each partition; an estimate if the curve has a
            :class:`CurveSample`.
        from_ms: Score of the first event; 0 if there is none. With ``--live``, the start of the workers.
        to_ms: Score of the last event; 0 if there is none. With ``--live``, the time of the query.
        points: Points in rising order of the quiet period.
        sample: Sample from which the curve was computed; None if the curve is exact.
        own_periods: Number of events that set their own quiet period; the candidates are then values for the default. None if no
            event of the fold can set one.
        auto: What the quiet period gives if it sets itself; None if it does not.
    """

    fold: str
    events: int
    groups: int
    from_ms: int
    to_ms: int
    points: tuple[Point, ...]
    sample: CurveSample | None = None
    own_periods: int | None = None
    auto: AutoPoint | None = None

    def as_json(self) -> dict[str, Any]:
        """Return the curve as ``--json`` prints it, without the recommendation."""
        return {
            "fold": self.fold, "events": self.events, "groups": self.groups, "from_ms": self.from_ms, "to_ms": self.to_ms,
            "curve": [asdict(point) for point in self.points], "sample": None if self.sample is None else asdict(self.sample),
            "own_periods": self.own_periods, "auto": None if self.auto is None else self.auto.as_json(),
        }  # fmt: skip


@dataclass(frozen=True, slots=True)
class Recommendation:
    """The recommended quiet period, with the reason.

    Attributes:
        quiet_ms: The quiet period; 0 if there are no candidates, None if the events do not allow a recommendation.
        why: The reason, as one sentence with figures.
    """

    quiet_ms: int | None
    why: str
