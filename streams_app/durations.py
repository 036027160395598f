"""Durations as people write them: a number and a unit (pure)."""

from __future__ import annotations

import re
from datetime import timedelta
from typing import Annotated, Any, Final

from pydantic import BeforeValidator

_UNITS_MS: Final = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_DURATION: Final = re.compile(r"^(\d+(?:\.\d+)?)\s*(ms|s|m|h|d)$")


def parse_duration(value: Any) -> Any:
    """``15m``, ``90s``, ``500ms``, ``6h``, ``2d`` → timedelta; a timedelta stays as it is.

    Raises:
        ValueError: Anything else; a bare number has no unit and is refused.
    """
    if isinstance(value, timedelta):
        return value
    match = _DURATION.match(value.strip()) if isinstance(value, str) else None
    if match is None:
        raise ValueError(f"{value!r} is not a duration: write a number and a unit, as in 500ms, 90s, 15m, 6h, 2d")
    try:
        return timedelta(milliseconds=float(match[1]) * _UNITS_MS[match[2]])
    except OverflowError as error:
        raise ValueError(f"{value[:40]!r} is too long a duration") from error


Duration = Annotated[timedelta, BeforeValidator(parse_duration)]


def milliseconds(duration: timedelta) -> int:
    """Whole milliseconds of a duration."""
    return duration // timedelta(milliseconds=1)


def duration_text(duration_ms: int) -> str:
    """A duration as :func:`parse_duration` reads it: ``15m``, ``1.5s``, ``90s``."""
    for unit, size_ms in reversed(_UNITS_MS.items()):
        if duration_ms >= size_ms and duration_ms % size_ms == 0:
            return f"{duration_ms // size_ms}{unit}"
        if unit == "s" and duration_ms >= size_ms and duration_ms % (size_ms // 10) == 0:
            return f"{duration_ms / size_ms:.1f}s"
    return f"{duration_ms}ms"
