"""What is summary of wrong events: refused ones, once a minute, and misrouted ones."""

from __future__ import annotations

import logging
from collections.abc import Iterable

from streams_app.delivery.batch import TP
from streams_app.fold import Fold
from streams_app.folding.reading.reader import DecodedRange
from streams_app.formatting import counted
from streams_app.health.metrics import Metrics

logger = logging.getLogger(__name__)


def report_misrouted_events(name: str, reading: DecodedRange, tp: TP, metrics: Metrics) -> None:
    """Counts the events of a fold that are keyed otherwise than they are grouped; warns at the first of them."""
    if metrics.is_first_misrouted(name):
        logger.warning(
            "events are keyed otherwise than they are grouped: a group may be split over partitions and its records come "
            "in no order; produce them with the group key as record key fold=%s source=%s offset=%s count=%d",
            name, tp, reading.misrouted_example, reading.misrouted,
        )  # fmt: skip
    metrics.misrouted_events.labels(fold=name).inc(reading.misrouted)


def report_rejected_events(folds: Iterable[Fold], metrics: Metrics) -> None:
    """Logs how many events were refused since it was last called, and why; nothing where none were."""
    topics = {fold.name: fold.dead_letters for fold in folds}
    for name, reasons in metrics.refused_since().items():
        summary = ", ".join(f"{count} {reason}" for reason, count in reasons.most_common())
        logger.warning(
            "%s refused in the last minute (%s) fold=%s dead_letters=%s",
            counted(reasons.total(), "event"), summary, name, topics.get(name, "?"),
        )  # fmt: skip
