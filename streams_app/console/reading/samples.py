"""The metrics of one worker at one moment, as far as the console shows them (pure)."""

from __future__ import annotations

import re
from collections.abc import Mapping
from contextlib import suppress
from typing import Final

from streams_app.health.metric_table import METRICS

PROCESS: Final = ("process_start_time_seconds", "process_resident_memory_bytes", "process_cpu_seconds_total")
_SHOWN: Final = frozenset(
    name
    for one in METRICS
    for name in ((f"{one.name}_sum", f"{one.name}_count") if one.kind == "histogram" else (one.name,))
) | frozenset(PROCESS)  # fmt: skip
"""Names of lines that are read: buckets of histograms are not, nor the times at which counters were created."""

Labels = tuple[tuple[str, str], ...]
"""Labels of a metric in alphabetical order."""

Key = tuple[str, Labels]
"""Name of a metric without ``streams_app_``, and its labels."""


_LINE: Final = re.compile(r"^(\w+)(?:\{(.*)\})? (\S+)", re.MULTILINE)
_LABEL: Final = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)",?')
_ESCAPED: Final = re.compile(r"\\(.)")
_UNESCAPED: Final = {"n": "\n"}


class Samples:
    """Values of the metrics of a worker by :data:`Key`, without the buckets of histograms."""

    def __init__(self, values: Mapping[Key, float]) -> None:
        self.values = values
        self._by_name: dict[str, list[tuple[dict[str, str], float]]] = {}
        for (name, labels), value in values.items():
            self._by_name.setdefault(name, []).append((dict(labels), value))

    def total(self, name: str, /, **labels: str) -> float | None:
        """Return the sum of all values of a metric that have these labels, whatever other labels they have; None: there is none."""
        found = [value for of, value in self._by_name.get(name, ()) if labels.items() <= of.items()]
        return sum(found) if found else None

    def by(self, name: str, label: str, /, **labels: str) -> dict[str, float]:
        """Return the sums of the values of a metric by one of its labels."""
        found: dict[str, float] = {}
        for of, value in self._by_name.get(name, ()):
            if label in of and labels.items() <= of.items():
                found[of[label]] = found.get(of[label], 0.0) + value
        return found

    def label(self, name: str, label: str) -> str:
        """Return the value of a label of a metric; empty if the metric is missing."""
        return next((of.get(label, "") for of, _ in self._by_name.get(name, ())), "")


def samples_in(page: str) -> Samples:
    """Return the values in the answer of a worker to ``/metrics``; lines that are not valid are left out.

    The parser of prometheus_client takes 60 µs a line, during which no browser is answered: a worker of 20 folds has 2 900 lines.
    """
    values: dict[Key, float] = {}
    for name, labels, text in _LINE.findall(page):
        if name in _SHOWN:
            with suppress(ValueError):
                values[name.removeprefix("streams_app_"), _labels(labels)] = float(text)
    return Samples(values)


def _labels(text: str) -> Labels:
    return tuple(sorted((name, _ESCAPED.sub(_unescaped, value)) for name, value in _LABEL.findall(text)))


def _unescaped(found: re.Match[str]) -> str:
    return _UNESCAPED.get(found[1], found[1])
