"""The metrics and labels in PromQL expressions, for a comparison with the table of metrics."""

from __future__ import annotations

import re

from streams_app.health.metric_table import METRICS

LABELS = {metric.name: set(metric.labels) for metric in METRICS}
LABELS |= {f"{metric.name}_bucket": {*metric.labels, "le"} for metric in METRICS if metric.kind == "histogram"}
LABELS |= {f"{metric.name}_count": set(metric.labels) for metric in METRICS if metric.kind == "histogram"}


TARGET_LABELS = {"instance", "job"}
"""Labels that Prometheus adds to every series that it scrapes."""


def unknown_labels(expression: str) -> dict[str, set[str]]:
    """Return metric → labels that an expression uses and the metric does not have, for all metrics in it.

    Raises:
        KeyError: There is no such metric.
    """
    found: dict[str, set[str]] = {}
    summed: list[set[str]] = []  # labels of the sum of each open parenthesis
    outer = 0  # sums around a metric that is only matched "on" labels do not count
    pattern = r"by \(([\w, ]+)\) \(|(streams_app_\w+)(?:\{([^}]*)\})?|on \(([\w, ]*)\)|\(|\)"
    for part in re.finditer(pattern, expression):
        labels, metric, selected, matched = part.groups()
        if metric:
            asked = set().union(*summed[outer:]) | set(re.findall(r"(\w+)(?:=~|!~|!=|=)", selected or ""))
            found[metric] = found.get(metric, set()) | (asked - LABELS[metric] - TARGET_LABELS)
            outer = 0
        elif labels:
            summed.append(set(labels.split(", ")))
        elif matched is not None:
            outer = len(summed)
        elif part[0] == "(":
            summed.append(set())
        elif part[0] == ")":
            summed.pop()
    return found
