"""Draws folding ratio and latencies over the quiet period into a PNG file, with matplotlib: the extra ``png``."""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path
from typing import Any, Final

from streams_app.errors import ConfigurationError
from streams_app.formatting import duration_text, percentage, time_text
from streams_app.tuning.plot import ticks_between
from streams_app.tuning.points import Curve

INCHES: Final = (9.0, 6.4)
DOTS_PER_INCH: Final = 130
GREEN, AMBER, GREY, BLUE = "#1a7f37", "#b35900", "#57606a", "#0969da"
SHADES: Final = {"latency_p50_ms": "#c297d6", "latency_p95_ms": "#8250a8", "latency_p99_ms": "#4c2a6b"}


def require(path: Path) -> None:
    """Raise ConfigurationError, before any event is read, if a picture cannot be written."""
    if not os.access(path.parent, os.W_OK):
        raise ConfigurationError([f"--png: the folder {path.parent} does not exist or is not writable"])
    if importlib.util.find_spec("matplotlib") is None:
        raise ConfigurationError(["--png needs matplotlib: pip install 'streams_app[png]'"])


def write_png(path: Path, curve: Curve, recommended_ms: int | None, configured_ms: int) -> None:
    """Write two diagrams over the same quiet periods: the folding ratio above, the latencies below.

    Raises:
        ConfigurationError: The file cannot be written.
    """
    # Not pyplot, which would look for a display; imported here, because the import takes half a second.
    from matplotlib.figure import Figure

    figure = Figure(figsize=INCHES, dpi=DOTS_PER_INCH, layout="constrained")
    above, below = figure.subplots(2, 1, sharex=True, height_ratios=(3, 2))
    span = f"{time_text(curve.from_ms)} to {time_text(curve.to_ms)}"
    about = f"{curve.events:,} events of {curve.groups:,} groups, {span}"
    figure.suptitle(f"What each quiet period would have done: {curve.fold}", x=0.02, ha="left", fontsize=13, fontweight="bold")
    above.set_title(about, loc="left", fontsize=9, color=GREY)
    _ratios(above, curve, recommended_ms, configured_ms)
    _latencies(below, curve)
    for axes in (above, below):
        axes.set_xscale("log")
        axes.minorticks_off()
        axes.grid(color="#d0d7de", linewidth=0.6)
        axes.spines[["top", "right"]].set_visible(False)
        axes.axvline(configured_ms, color=AMBER, linewidth=1, linestyle=":")
        if recommended_ms is not None:
            axes.axvline(recommended_ms, color=GREEN, linewidth=1, linestyle="--")
    ticks = ticks_between(curve.points[0].quiet_ms, curve.points[-1].quiet_ms)
    below.set_xticks(ticks, [duration_text(tick) for tick in ticks], fontsize=8)
    below.set_xlabel("quiet period X")
    try:
        figure.savefig(path, format="png")
    except OSError as error:
        raise ConfigurationError([f"--png: cannot write {path}: {error.strerror}"]) from error


def _ratios(axes: Any, curve: Curve, recommended_ms: int | None, configured_ms: int) -> None:
    axes.plot([point.quiet_ms for point in curve.points], [100 * point.ratio for point in curve.points], color=BLUE, marker=".")
    axes.set_ylabel("folding ratio, %")
    for quiet_ms, colour, word in ((configured_ms, AMBER, "configured"), (recommended_ms, GREEN, "recommended")):
        for point in curve.points:
            if point.quiet_ms == quiet_ms:
                label = f"{word}: {duration_text(quiet_ms)}, {percentage(point.ratio)}, {point.records:,} records"
                axes.plot([quiet_ms], [100 * point.ratio], color=colour, marker="o", markersize=8, linestyle="none", label=label)
    axes.legend(loc="lower right", fontsize=9, edgecolor="none", framealpha=0.9)


def _latencies(axes: Any, curve: Curve) -> None:
    axes.set_yscale("log")
    axes.set_ylabel("from event to record")
    spans: list[int] = []
    for name, colour in SHADES.items():
        measured = [(point.quiet_ms, max(1, getattr(point, name))) for point in curve.points if getattr(point, name) is not None]
        if measured:
            axes.plot(*zip(*measured, strict=True), color=colour, label=f"{name[9:11]} of 100 events within")
            spans += [span for _, span in measured]
    if spans:
        ticks = ticks_between(min(spans), max(spans))
        some = ticks[:: max(1, len(ticks) // 6)]
        axes.set_yticks(some, [duration_text(tick) for tick in some], fontsize=8)
        axes.legend(loc="upper left", fontsize=8, frameon=False)
