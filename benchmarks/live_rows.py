"""The report of a benchmark of live views or journals: figures with comparisons and goals, and the sizes of the load."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Self


@dataclass(frozen=True, slots=True)
class Sizes:
    """The sizes of the load; the goals apply to the defaults.

    Attributes:
        events: Number of applied events of each kind.
        requests: Number of requests for a page.
        sets: Number of sets of 25 items.
        items: Number of items of each kind whose bytes are counted.
        due: Number of items that are due at the same instant.
        pages: Number of open pages that are polled.
        connections: Number of browsers at one hub.
        watchers: Number of browsers of which a fifth stalls.
        seconds: Duration of a measurement.
    """

    events: int = 50_000
    requests: int = 4_000
    sets: int = 2_000
    items: int = 100_000
    due: int = 100_000
    pages: int = 1_000
    connections: int = 1_000
    watchers: int = 100
    seconds: int = 10

    @classmethod
    def scaled(cls, scale: float) -> Self:
        """Return a part of each size."""
        return cls(*(max(1, round(one.default * scale)) for one in fields(cls) if isinstance(one.default, int)))


@dataclass(frozen=True, slots=True)
class Row:
    """One figure with its goal.

    Attributes:
        name: Name of the measurement.
        value: The figure; lower is better, unless ``at_least``.
        goal: Maximum of the figure.
        unit: Unit of both; ``%`` for shares of a core.
        beside: Figures for comparison from the same run, and further details.
        fault: Why the figure does not count; "" if it does.
        at_least: Whether the goal is a minimum, and higher is better.
    """

    name: str
    value: float
    goal: float
    unit: str
    beside: str = ""
    fault: str = ""
    at_least: bool = False

    @property
    def is_reached(self) -> bool:
        """Whether the goal is reached."""
        return not self.fault and (self.value >= self.goal if self.at_least else self.value <= self.goal)

    @property
    def text(self) -> str:
        """The row on one line."""
        figure, goal = self._formatted(self.value), self._formatted(self.goal)
        verdict = "reached" if self.is_reached else "MISSED"
        beside = f"NOT COUNTED, {self.fault}; {self.beside}" if self.fault else self.beside
        return f"{self.name:66} {figure:>10}  goal {goal:>8}  {verdict:7}  {beside}".rstrip()

    def _formatted(self, number: float) -> str:
        if self.unit == "%":
            return f"{number:.1%}"
        return f"{number:.3g} {self.unit}" if number < 100 else f"{number:.0f} {self.unit}"


def percentile(values: Sequence[float], share: float) -> float:
    """Return the value below which that share of the values lies."""
    ascending = sorted(values)
    return ascending[min(len(ascending) - 1, int(len(ascending) * share))]
