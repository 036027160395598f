"""Metrics of published events."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, Literal, NamedTuple, get_args

from prometheus_client import CollectorRegistry, Counter, Histogram

from streams_app.health.metric_table import METRICS
from streams_app.health.metrics import Metrics, made

_TABLE: Final = {metric.attribute: metric for metric in METRICS}

Result = Literal["acknowledged", "unknown", "refused"]


class PublishingMetrics(NamedTuple):
    """Metrics of published events.

    Attributes:
        published: Counter of events by their key and outcome.
        publish_seconds: Histogram of the time until the broker has acknowledged events, by their key.
    """

    published: Counter
    publish_seconds: Histogram

    @classmethod
    def in_registry(cls, where: Metrics | CollectorRegistry | None) -> PublishingMetrics:
        """Return the counter and the histogram of a worker, or create them in a registry.

        Args:
            where: The metrics of a worker, which contain them, or a registry in which to create them. None: a new registry, which
                is not exposed.
        """
        if isinstance(where, Metrics):
            return cls(where.published, where.publish_seconds)
        registry = where or CollectorRegistry()
        counter, histogram = (made(_TABLE[name], registry) for name in ("published", "publish_seconds"))
        assert isinstance(counter, Counter)
        assert isinstance(histogram, Histogram)
        return cls(counter, histogram)

    def begin(self, event_keys: Iterable[str]) -> None:
        """Create the time series of these event keys with the value 0, so that ``rate`` and alerts include the first event."""
        for event_key in event_keys:
            for result in get_args(Result):
                self.published.labels(event=event_key, result=result)

    def add(self, event_key: str, result: Result, events: int = 1) -> None:
        """Add to the number of events with an outcome."""
        self.published.labels(event=event_key, result=result).inc(events)
