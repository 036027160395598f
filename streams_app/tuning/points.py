"""The curve over the candidates for the quiet period, of a replay or of what workers have counted; the one recommended (pure)."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Point:
    """What one candidate for the quiet period leads to; None where it is not known.

    Attributes:
        quiet_ms: The candidate X.
        records: Folded records; an estimate where the curve has a :class:`Sample`.
        ratio: Folding ratio, 1 - records / events; 0 where there are no events.
        latency_p50_ms: From the score of an event to the moment its record closes: half of the events wait at most so long.
        latency_p95_ms: Likewise 95 of 100 events.
        latency_p99_ms: Likewise 99 of 100 events.
        latency_mean_ms: The mean of these times.
        latency_max_ms: The longest of them.
        peak_open_groups: Most groups open in the same instant; a group counts from its first event to the moment it closes, both
            included, so that one which closes in the instant in which another opens counts beside it.
        redis_bytes: Estimate of what Redis holds at that peak.
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
class CurveSample:
    """What a curve was computed from where it is not exact: some of the groups, chosen by hash.

    Attributes:
        share: Chance of an event to be looked at.
        events: How many were.
        groups: How many groups they belong to.
        ratio_error: Standard error of the folding ratio, the largest of all points. None: it cannot be told, as a few groups have
            nearly all events, and only the beginning of the range was looked at.
    """

    share: float
    events: int
    groups: int
    ratio_error: float | None


@dataclass(frozen=True, slots=True)
class Curve:
    """What each candidate leads to, on the same events.

    Attributes:
        fold: Name of the fold.
        events: How many there are in the range.
        groups: Different (partition, group); an estimate where the curve has a :class:`Sample`.
        from_ms: Score of the first event; 0 where there is none.
        to_ms: Score of the last event; 0 where there is none.
        points: In rising order of the quiet period.
        sample: What the curve was computed from; None: from every event, exactly.
    """

    fold: str
    events: int
    groups: int
    from_ms: int
    to_ms: int
    points: tuple[Point, ...]
    sample: CurveSample | None = None

    def as_json(self) -> dict[str, Any]:
        """The curve as ``--json`` shows it, without the recommendation."""
        return {
            "fold": self.fold, "events": self.events, "groups": self.groups, "from_ms": self.from_ms, "to_ms": self.to_ms,
            "curve": [asdict(point) for point in self.points], "sample": None if self.sample is None else asdict(self.sample),
        }  # fmt: skip


@dataclass(frozen=True, slots=True)
class Recommended:
    """The candidate to take.

    Attributes:
        quiet_ms: The quiet period; None: the events do not allow a recommendation.
        why: One plain sentence with figures.
    """

    quiet_ms: int | None
    why: str
