"""The metrics of one worker at one moment, as far as the console shows them (pure)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from prometheus_client.parser import text_string_to_metric_families

from streams_app.health.metric_table import METRICS

PROCESS: Final = ("process_start_time_seconds", "process_resident_memory_bytes", "process_cpu_seconds_total")
_SHOWN: Final = (*(one.name for one in METRICS), *PROCESS)
_BUCKETS: Final = "_bucket"

Labels = tuple[tuple[str, str], ...]
"""Labels of a metric in alphabetical order."""

Key = tuple[str, Labels]
"""Name of a metric without ``streams_app_``, and its labels."""


class Samples:
    """Values of the metrics of a worker by :data:`Key`, without the buckets of histograms."""

    def __init__(self, values: Mapping[Key, float]) -> None:
        self.values = values

    def __iter__(self) -> Iterator[tuple[str, dict[str, str], float]]:
        for (name, labels), value in self.values.items():
            yield name, dict(labels), value

    def total(self, name: str, /, **labels: str) -> float | None:
        """Return the sum of all values of a metric that have these labels, whatever other labels they have; None: there is none."""
        found = [value for one, of, value in self if one == name and labels.items() <= of.items()]
        return sum(found) if found else None

    def by(self, name: str, label: str, /, **labels: str) -> dict[str, float]:
        """Return the sums of the values of a metric by one of its labels."""
        found: dict[str, float] = {}
        for one, of, value in self:
            if one == name and label in of and labels.items() <= of.items():
                found[of[label]] = found.get(of[label], 0.0) + value
        return found

    def label(self, name: str, label: str) -> str:
        """Return the value of a label of a metric; empty if the metric is missing."""
        return next((of.get(label, "") for one, of, _ in self if one == name), "")


def samples_in(page: str) -> Samples:
    """Return the values in the answer of a worker to ``/metrics``; lines that are not valid are left out.

    Only lines that the console shows are parsed, because a parser in Python takes 50 µs for each.
    """
    lines = [line for line in page.split("\n") if line.startswith(_SHOWN) and _BUCKETS not in line.partition("{")[0]]
    values: dict[Key, float] = {}
    try:
        for family in text_string_to_metric_families("\n".join(lines)):
            for sample in family.samples:
                values[sample.name.removeprefix("streams_app_"), tuple(sorted(sample.labels.items()))] = sample.value
    except ValueError:
        return Samples(values)
    return Samples(values)
