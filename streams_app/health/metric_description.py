"""What the table of metrics says of each metric (pure)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class Description:
    """Definition of one metric, with advice for operators.

    Attributes:
        name: Name in Prometheus.
        kind: Type of the metric.
        labels: Names of its labels.
        help: Description of the measured value.
        advice: What operators should do if the value is unusual.
        buckets: Upper bounds of the buckets of a histogram, in the unit of the metric.
        initial: Value before the first measurement, for a gauge whose only label is ``fold``.
    """

    name: str
    kind: Literal["counter", "gauge", "histogram"]
    labels: tuple[str, ...]
    help: str
    advice: str
    buckets: tuple[float, ...] = ()
    initial: float = 0

    @property
    def attribute(self) -> str:
        """Name of the attribute of :class:`.Metrics` for this metric."""
        return self.name.removeprefix("streams_app_").removesuffix("_total")
