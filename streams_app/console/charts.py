"""Draws charts and time lines as paths of SVG, so that they need no JavaScript (pure).

Coordinates have one decimal; colors and widths of lines are those of the stylesheet.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any, Final, NamedTuple

from streams_app.formatting import duration_text, percentage

_NICE: Final = (1, 2, 2.5, 5, 10)


def top_of(points: Iterable[float | None]) -> float:
    """Return the upper end of an axis from 0: the next round number above all points; 1 if none is above 0."""
    most = max((point for point in points if point is not None), default=0.0)
    if most <= 0:
        return 1.0
    size = 10.0 ** math.floor(math.log10(most))
    return next(nice * size for nice in _NICE if nice * size >= most * (1 - 1e-9))


def line_path(points: Sequence[float | None], top: float, width: float, height: float) -> str:
    """Return the path of a line through points at equal distances, from 0 at the bottom to ``top``; gaps where one is unknown."""
    step = width / max(1, len(points) - 1)
    parts, is_open = [], False
    for number, point in enumerate(points):
        if point is None:
            is_open = False
            continue
        y = height - height * min(1.0, max(0.0, point / top))
        parts.append(f"{'L' if is_open else 'M'}{number * step:.1f} {y:.1f}")
        is_open = True
    return "".join(parts)


def area_path(points: Sequence[float | None], top: float, width: float, height: float) -> str:
    """Return the path of the area below each unbroken piece of :func:`line_path`."""
    step = width / max(1, len(points) - 1)
    parts: list[str] = []
    for begin, piece in _pieces(points):
        ys = [height - height * min(1.0, max(0.0, point / top)) for point in piece]
        line = "".join(f"L{(begin + number) * step:.1f} {y:.1f}" for number, y in enumerate(ys))
        end = (begin + len(piece) - 1) * step
        parts.append(f"M{begin * step:.1f} {height:.1f}{line}L{end:.1f} {height:.1f}Z")
    return "".join(parts)


def _pieces(points: Sequence[float | None]) -> Iterable[tuple[int, list[float]]]:
    begin, piece = 0, list[float]()
    for number, point in enumerate(points):
        if point is not None:
            begin, piece = (number, [point]) if not piece else (begin, [*piece, point])
        elif piece:
            yield begin, piece
            piece = []
    if piece:
        yield begin, piece


class DrawnPoint(NamedTuple):
    """A point of a curve, with its position and text."""

    x: float
    y: float
    title: str
    kind: str


class DrawnCurve(NamedTuple):
    """The line of a curve in a box, and its points."""

    line: str
    points: list[DrawnPoint]


def curve(candidates: Sequence[Any], width: float, height: float) -> DrawnCurve:
    """Return the curve of the folding ratio over the quiet period, which is on a logarithmic axis."""
    lowest, highest = math.log(candidates[0].quiet_ms), math.log(candidates[-1].quiet_ms)
    wide = (highest - lowest) or 1.0
    points = [
        DrawnPoint(
            round(width * (math.log(one.quiet_ms) - lowest) / wide, 1), round(height * (1 - one.ratio), 1),
            f"{duration_text(one.quiet_ms)}: {percentage(one.ratio)}",
            " ".join(word for word, is_so in (("present", one.is_present), ("recommended", one.is_recommended)) if is_so),
        )
        for one in candidates
    ]  # fmt: skip
    return DrawnCurve("".join(f"{'L' if number else 'M'}{one.x} {one.y}" for number, one in enumerate(points)), points)
