"""What expressions of PromQL ask for, as far as it takes to compare them with the table of metrics."""

from __future__ import annotations

import re

from streams_app.health.metric_table import METRICS

LABELS = {metric.name: set(metric.labels) for metric in METRICS}
LABELS |= {f"{metric.name}_bucket": {*metric.labels, "le"} for metric in METRICS if metric.kind == "histogram"}
LABELS |= {f"{metric.name}_count": set(metric.labels) for metric in METRICS if metric.kind == "histogram"}


TARGET = {"instance", "job"}
"""Labels that Prometheus adds to every series that it scrapes."""


def unknown_labels(expression: str) -> dict[str, set[str]]:
    """Metric → labels by which an expression selects or sums it and which it does not have; of all metrics that are asked for.

    Raises:
        KeyError: There is no such metric.
    """
    found: dict[str, set[str]] = {}
    summed: list[set[str]] = []  # by what is summed in each parenthesis that is open
    outer = 0  # of a metric that is only matched "on" labels, sums around it ask for nothing
    pattern = r"by \(([\w, ]+)\) \(|(streams_app_\w+)(?:\{([^}]*)\})?|on \(([\w, ]*)\)|\(|\)"
    for part in re.finditer(pattern, expression):
        labels, metric, selected, matched = part.groups()
        if metric:
            asked = set().union(*summed[outer:]) | set(re.findall(r"(\w+)(?:=~|!~|!=|=)", selected or ""))
            found[metric] = found.get(metric, set()) | (asked - LABELS[metric] - TARGET)
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
