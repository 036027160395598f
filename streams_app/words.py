"""Moments, spans of time and counts as people read them, in logs and in the terminal (pure)."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Final

MINUTE: Final = 60
HOUR: Final = 3_600
DAY: Final = 86_400


def counted(number: int, noun: str) -> str:
    """``1 group``, ``2,000 groups``."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def time_text(at_ms: int) -> str:
    """``2026-11-21 14:31:44Z``; ``-`` where it is not known."""
    try:
        return datetime.fromtimestamp(at_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%SZ") if at_ms >= 0 else "-"
    except (ValueError, OverflowError, OSError):
        return f"{at_ms} ms"  # beyond the year 9999: a producer wrote so


def span(span_ms: int) -> str:
    """``1.5 s``, ``2 min 30 s``, ``5 h 40 min``, ``3 d 4 h``; ``due`` where nothing is left."""
    if span_ms <= 0:
        return "due"
    seconds = span_ms // 1_000
    if seconds < MINUTE:
        return f"{span_ms / 1_000:.1f} s"
    if seconds < HOUR:
        return _two(seconds // MINUTE, "min", seconds % MINUTE, "s")
    if seconds < 2 * DAY:
        return _two(seconds // HOUR, "h", seconds % HOUR // MINUTE, "min")
    return _two(seconds // DAY, "d", seconds % DAY // HOUR, "h")


def _two(large: int, large_unit: str, small: int, small_unit: str) -> str:
    return f"{large} {large_unit} {small} {small_unit}" if small else f"{large} {large_unit}"
