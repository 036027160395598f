"""What expressions of PromQL ask for, as far as it takes to compare them with the table of metrics."""

from __future__ import annotations

import re

from streams_app.metric_table import METRICS

LABELS = {metric.name: set(metric.labels) for metric in METRICS}


def unknown_labels(expression: str) -> dict[str, set[str]]:
    """Metric → labels by which an expression selects or sums it and which it does not have; of all metrics that are asked for.

    Raises:
        KeyError: There is no such metric.
    """
    asked = re.findall(r"(streams_app_\w+)(?:\{([^}]*)\})?", expression)
    by = {label for labels in re.findall(r"by \(([\w, ]+)\)", expression) for label in labels.split(", ")}
    return {metric: (by | set(re.findall(r"(\w+)!?=", selected))) - LABELS[metric] for metric, selected in asked}
