"""What a bench of live views or journals says: figures beside what they are compared with and their goals, and how large it is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Self


@dataclass(frozen=True, slots=True)
class Sizes:
    """How much is done; what stands in the goals is that of the defaults.

    Attributes:
        events: Applied, of each kind.
        requests: For a page.
        sets: Pages of the article's data set.
        items: Whose bytes are counted, of each kind.
        due: Items due in the same instant.
        pages: Open ones that are polled.
        connections: Browsers at one hub.
        watchers: Browsers of which a fifth stalls.
        seconds: That what goes on is watched.
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
        """A part of each."""
        return cls(*(max(1, round(one.default * scale)) for one in fields(cls) if isinstance(one.default, int)))


@dataclass(frozen=True, slots=True)
class Row:
    """One figure with its goal.

    Attributes:
        name: What was measured.
        value: The figure, of which less is better, unless ``at_least``.
        goal: At most that.
        unit: Of both; ``%`` for parts of a core.
        beside: What it is compared with, in the same run, and what else is known of it.
        fault: Why the figure does not count; "" where it does.
        at_least: The goal is a least value, and more is better.
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
        figure, goal = self._said(self.value), self._said(self.goal)
        verdict = "reached" if self.is_reached else "MISSED"
        beside = f"NOT COUNTED, {self.fault}; {self.beside}" if self.fault else self.beside
        return f"{self.name:66} {figure:>10}  goal {goal:>8}  {verdict:7}  {beside}".rstrip()

    def _said(self, number: float) -> str:
        if self.unit == "%":
            return f"{number:.1%}"
        return f"{number:.3g} {self.unit}" if number < 100 else f"{number:.0f} {self.unit}"


def percentile(values: Sequence[float], share: float) -> float:
    """The value below which that share of the others lies."""
    ascending = sorted(values)
    return ascending[min(len(ascending) - 1, int(len(ascending) * share))]
