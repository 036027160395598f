"""Formats durations, shares and sizes in few characters, for tables and axes (pure)."""

from __future__ import annotations

import math
from typing import Final

_MS: Final = {"d": 86_400_000, "h": 3_600_000, "m": 60_000, "s": 1_000}
_SECOND, _MINUTE = _MS["s"], _MS["m"]
_PAIRS: Final = ((_MS["h"], ("m", "s")), (2 * _MS["d"], ("h", "m")), (math.inf, ("d", "h")))
"""Upper limits of durations, each with the two units in which a shorter duration is formatted."""

_KILO: Final = 1_000


def brief(span_ms: int | None) -> str:
    """Format a duration as ``850ms``, ``9.5s``, ``42s``, ``14m02s``, ``5h40m``, ``3d04h``; ``-`` if it is unknown."""
    if span_ms is None:
        return "-"
    if span_ms < _SECOND:
        return f"{span_ms}ms"
    if span_ms < _MINUTE:
        return f"{span_ms / _SECOND:.1f}s" if span_ms < 10 * _SECOND and span_ms % _SECOND else f"{span_ms // _SECOND}s"
    large, small = next(units for limit_ms, units in _PAIRS if span_ms < limit_ms)
    whole, rest = span_ms // _MS[large], span_ms % _MS[large] // _MS[small]
    return f"{whole}{large}{rest:02}{small}" if rest else f"{whole}{large}"


def share(ratio: float) -> str:
    """Format a share as ``94.1%``, ``99.64%``, ``99.998%``: with enough digits to show two digits of the difference to 100 %."""
    rest = 100 * (1 - ratio)
    digits = next((digits for digits in (1, 2, 3, 4) if rest >= 10 ** (1 - digits)), 1 if ratio >= 1 else 4)
    whole, _, decimals = f"{100 * ratio:.{digits}f}".partition(".")
    return f"{whole}.{decimals.rstrip('0') or '0'}%"


def size(count: int | None) -> str:
    """Format a size as ``512 B``, ``1.2 MB``; ``-`` if it is unknown."""
    if count is None:
        return "-"
    value, unit = float(count), "B"
    for larger in ("kB", "MB", "GB", "TB"):
        if value < _KILO:
            break
        value, unit = value / _KILO, larger
    return f"{value:.0f} {unit}" if unit == "B" or value >= 100 else f"{value:.1f} {unit}"  # noqa: PLR2004  # three digits
