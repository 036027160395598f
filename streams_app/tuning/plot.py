"""Draws folding ratio and latency over the quiet period as a plot in the terminal (pure)."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise
from typing import Final

from rich.text import Text

from streams_app.formatting import compact_duration, duration_text, percentage
from streams_app.tuning.points import Curve, Point

HEIGHT: Final = 11
AXIS: Final = 7
"""Columns to the left of a vertical axis."""

SPACING: Final = 3
LEAST_WIDTH: Final = 64
"""Minimum columns of a terminal for two panels side by side."""

MAX_WIDTH: Final = 130
_NEARLY: Final = 1e-9

TICKS_MS: Final = (
    *(1, 10, 100, 1_000, 2_000, 5_000, 10_000, 30_000, 60_000, 120_000, 300_000, 900_000, 1_800_000),
    *(hours * 3_600_000 for hours in (1, 2, 6, 12, 24, 48, 7 * 24, 30 * 24, 90 * 24, 365 * 24)),
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Signs:
    """The characters of a plot: braille and circles, or ASCII for other terminals."""

    is_fine: bool

    @property
    def recommended(self) -> str:
        return "●" if self.is_fine else "*"

    @property
    def configured(self) -> str:
        return "○" if self.is_fine else "o"


@dataclass(frozen=True, slots=True)
class _Panel:
    """One diagram: the scale and labels of its vertical axis."""

    title: str
    values: Sequence[float]
    low: float
    high: float
    ticks: Sequence[tuple[float, str]]
    style: str

    def y_of(self, value: float) -> float:
        return (value - self.low) / (self.high - self.low) if self.high > self.low else 0.5


def plot(curve: Curve, recommended_ms: int | None, configured_ms: int, width: int, signs: Signs) -> list[Text]:
    """Return the lines of the plot, in which the recommended and the configured quiet period are marked.

    The list is empty if the curve has fewer than two points.
    """
    points = curve.points
    if len(points) < 2:  # noqa: PLR2004  # a line needs two points
        return []
    panels = [_ratios(points)]
    if latency := _latencies(points):
        panels.append(latency)
    is_beside = len(panels) > 1 and width >= LEAST_WIDTH
    each = min(width, MAX_WIDTH)
    each = (each - SPACING) // 2 if is_beside else min(each, MAX_WIDTH // 2 + AXIS)
    signs_at = {configured_ms: signs.configured}
    if recommended_ms is not None:
        signs_at[recommended_ms] = signs.recommended
    drawn = [_drawn(panel, points, signs_at, each, signs) for panel in panels]
    if not is_beside:
        return [line for lines in drawn for line in lines]
    return [Text.assemble(left, " " * SPACING, right) for left, right in zip(*drawn, strict=True)]


def _ratios(points: Sequence[Point]) -> _Panel:
    ratios = [point.ratio for point in points]
    low = 0.99 if min(ratios) >= 0.99 else 0.9 if min(ratios) >= 0.9 else math.floor(min(ratios) * 10) / 10  # noqa: PLR2004  # round
    high = max(math.ceil(max(ratios) * 10) / 10, low + 0.1) if low < 0.9 else 1.0  # noqa: PLR2004  # as above
    step = next(step for most, step in ((0.011, 0.002), (0.11, 0.02), (0.51, 0.1), (1.1, 0.2)) if high - low <= most)
    ticks = [(high - step * number, percentage(high - step * number).replace(".0%", "%")) for number in range(6)]
    return _Panel("folding ratio", ratios, low, high, ticks, "cyan")


def _latencies(points: Sequence[Point]) -> _Panel | None:
    spans = [point.latency_p95_ms for point in points]
    measured = [math.log(max(1, span)) for span in spans if span is not None]
    if len(measured) < len(spans):
        return None
    low_ms, high_ms = (max(1, at(span for span in spans if span is not None)) for at in (min, max))
    ticks = [(math.log(tick), compact_duration(tick)) for tick in ticks_between(low_ms, high_ms)]
    return _Panel("latency, P95", measured, min(measured), max(measured), ticks, "magenta")


def _drawn(panel: _Panel, points: Sequence[Point], signs_at: dict[int, str], width: int, signs: Signs) -> list[Text]:
    canvas = Canvas(width - AXIS - 1, HEIGHT, is_fine=signs.is_fine)
    x_of = _horizontal(points)
    coordinates = [(x_of(point.quiet_ms), panel.y_of(value)) for point, value in zip(points, panel.values, strict=True)]
    canvas.line(coordinates)
    for quiet_ms, sign in signs_at.items():
        for point, (x, y) in zip(points, coordinates, strict=True):
            if point.quiet_ms == quiet_ms:
                canvas.draw_sign(x, y, sign)
    labels = _labels(panel, canvas)
    bar, corner, flat = ("│", "└", "─") if signs.is_fine else ("|", "+", "-")
    lines = [Text(f"{'':{AXIS + 1}}{panel.title}"[:width].ljust(width), style="bold")]
    for row, drawn in enumerate(canvas.rows()):
        line = Text.assemble((f"{labels.get(row, ''):>{AXIS - 1}} {bar}", "dim"))
        for style, chars in groupby(drawn, lambda char: _STYLES.get(char, panel.style)):
            line.append("".join(chars), style=style)
        lines.append(line)
    lines.append(Text(f"{'':{AXIS}}{corner}{flat * canvas.width}", style="dim"))
    lines.append(Text(_foot(points, canvas, x_of, width), style="dim"))
    return lines


_STYLES: Final = dict.fromkeys("●*", "bold green") | dict.fromkeys("○o", "bold yellow")


def _horizontal(points: Sequence[Point]) -> Callable[[int], float]:
    low, high = math.log(points[0].quiet_ms), math.log(points[-1].quiet_ms)
    return lambda quiet_ms: (math.log(quiet_ms) - low) / (high - low)


def _labels(panel: _Panel, canvas: Canvas) -> dict[int, str]:
    """Map line numbers of a plot to labels of the vertical axis, with at least one line between two labels."""
    found: dict[int, str] = {}
    for value, label in panel.ticks:
        row = canvas.row_of(panel.y_of(value))
        if panel.low - _NEARLY <= value <= panel.high + _NEARLY and not {row - 1, row, row + 1} & found.keys():
            found[row] = label
    return found


def _foot(points: Sequence[Point], canvas: Canvas, x_of: Callable[[int], float], width: int) -> str:
    """Return the labels of the horizontal axis, each centred at its position, without overlaps."""
    line = [" "] * width
    free_from = AXIS
    for tick in ticks_between(points[0].quiet_ms, points[-1].quiet_ms):
        label = duration_text(tick)
        begin = AXIS + 1 + canvas.column_of(x_of(tick)) - len(label) // 2
        begin = min(max(begin, AXIS), width - len(label))
        if begin >= free_from:
            line[begin : begin + len(label)] = label
            free_from = begin + len(label) + 2
    return "".join(line)


def ticks_between(low_ms: int, high_ms: int) -> list[int]:
    """Return the durations in ms to label on an axis: the round ones in its range, or both ends if there are fewer than two."""
    found = [tick for tick in TICKS_MS if low_ms <= tick <= high_ms]
    return found if len(found) > 1 else [low_ms, high_ms]


_BRAILLE: Final = 0x2800
_BITS: Final = ((0x01, 0x02, 0x04, 0x40), (0x08, 0x10, 0x20, 0x80))
"""Bit of each dot within a braille character, by its column and its row from the top."""


class Canvas:
    """A rectangle of characters; positions are fractions of its width and height, (0, 0) is the lower left corner."""

    def __init__(self, width: int, height: int, *, is_fine: bool) -> None:
        self.width = width
        self.height = height
        self._columns, self._rows = (2, 4) if is_fine else (1, 1)
        self._is_fine = is_fine
        self._bits = [[0] * width for _ in range(height)]
        self._signs: dict[tuple[int, int], str] = {}

    def line(self, points: Sequence[tuple[float, float]]) -> None:
        for (from_x, from_y), (to_x, to_y) in pairwise(points):
            steps = 1 + int(max(abs(to_x - from_x) * self.width * self._columns, abs(to_y - from_y) * self.height * self._rows))
            for step in range(steps + 1):
                part = step / steps
                self._dot(from_x + (to_x - from_x) * part, from_y + (to_y - from_y) * part)
        if len(points) == 1:
            self._dot(*points[0])

    def draw_sign(self, x: float, y: float, char: str) -> None:
        """Place a character in front of any line; a character that is already there is kept instead."""
        self._signs.setdefault((self.row_of(y), self.column_of(x)), char)

    def column_of(self, x: float) -> int:
        return _scaled(x, self.width * self._columns) // self._columns

    def row_of(self, y: float) -> int:
        """Return the line of characters at ``y``; line 0 is at the top."""
        return self._from_above(y) // self._rows

    def rows(self) -> list[str]:
        """Return the lines from the top."""
        return [
            "".join(self._signs.get((row, column)) or self._char(bits) for column, bits in enumerate(line))
            for row, line in enumerate(self._bits)
        ]

    def _from_above(self, y: float) -> int:
        return self.height * self._rows - 1 - _scaled(y, self.height * self._rows)

    def _dot(self, x: float, y: float) -> None:
        column, row = _scaled(x, self.width * self._columns), self._from_above(y)
        self._bits[row // self._rows][column // self._columns] |= _BITS[column % self._columns][row % self._rows]

    def _char(self, bits: int) -> str:
        if not bits:
            return " "
        return chr(_BRAILLE + bits) if self._is_fine else "."


def _scaled(share: float, count: int) -> int:
    return min(count - 1, max(0, round(share * (count - 1))))
