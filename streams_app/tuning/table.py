"""Shows the records, latency and memory that each candidate quiet period gives, as a table in the terminal (pure)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from rich.table import Table
from rich.text import Text

from streams_app.formatting import compact_duration, compact_size, duration_text
from streams_app.tuning.plot import Signs
from streams_app.tuning.points import Curve, Point

SPACING: Final = 2
FEWEST: Final = 3

_COLUMNS: Final[tuple[tuple[str, str, Callable[[Any], str]], ...]] = (
    ("X", "quiet_ms", duration_text),
    ("RECORDS", "records", "{:,}".format),
    ("RATIO", "ratio", "{:.2%}".format),
    ("P50", "latency_p50_ms", compact_duration),
    ("P95", "latency_p95_ms", compact_duration),
    ("P99", "latency_p99_ms", compact_duration),
    ("PEAK OPEN", "peak_open_groups", "{:,}".format),
    ("REDIS", "redis_bytes", compact_size),
)


def table(curve: Curve, recommended_ms: int | None, configured_ms: int, width: int, signs: Signs) -> Table:
    """Return a table with a row for each candidate, and one for a quiet period that sets itself.

    Columns that are unknown or do not fit are omitted.

    Args:
        recommended_ms: Recommended quiet period, whose row is marked.
        configured_ms: Configured quiet period, whose row is marked.
    """
    shown = [one for one in _COLUMNS if any(getattr(point, one[1]) is not None for point in curve.points)]
    while len(shown) > FEWEST and sum(_width(one, curve) for one in shown) + 1 > width:
        del shown[-1]
    made = Table(box=None, pad_edge=False, padding=(0, SPACING, 0, 0))
    made.add_column("", no_wrap=True)
    for title, _, _ in shown:
        made.add_column(title, justify="right", no_wrap=True)
    for point in _rows(curve):
        sign = Text()
        style = ""
        if _is_auto(point, curve):
            sign, style = Text(signs.configured, style="bold yellow"), "yellow"
        elif point.quiet_ms == configured_ms:
            sign, style = Text(signs.configured, style="bold yellow"), "yellow"
        if point.quiet_ms == recommended_ms and not _is_auto(point, curve):
            sign, style = Text(signs.recommended, style="bold green"), "bold green"
        made.add_row(sign, *(_cell(point, name, spell, curve) for _, name, spell in shown), style=style)
    return made


def _width(column: tuple[str, str, Callable[[Any], str]], curve: Curve) -> int:
    """Return the width of a column with the space before it."""
    title, name, spell = column
    return SPACING + max(len(title), *(len(_cell(point, name, spell, curve)) for point in _rows(curve)))


def _rows(curve: Curve) -> tuple[Point, ...]:
    return curve.points if curve.auto is None else (*curve.points, curve.auto.point)


def _is_auto(point: Point, curve: Curve) -> bool:
    return curve.auto is not None and point is curve.auto.point


def _cell(point: Point, name: str, spell: Callable[[Any], str], curve: Curve) -> Text:
    if name == "quiet_ms" and _is_auto(point, curve):
        return Text("auto")
    value = getattr(point, name)
    return Text("-" if value is None else spell(value))
