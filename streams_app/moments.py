"""Moments as people and programs write them: numbers since 1970, ISO 8601, or how long ago (pure)."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from math import floor
from typing import Any, Final

from streams_app.durations import milliseconds, parse_duration

MILLISECONDS_FROM: Final = 100_000_000_000
"""A number from here on is milliseconds since 1970, a smaller one seconds: in seconds it is the year 5138, in ms it is 1973."""

MILLISECONDS_TO: Final = 100_000_000_000_000
"""A number from here on is neither: microseconds or nanoseconds, it seems."""

NANOSECONDS_FROM: Final = 100_000_000_000_000_000
"""A number from here on is nanoseconds, if it is a time at all: in microseconds it is the year 5138."""

_DATE: Final = re.compile(r"\d{1,4}([./-])\d{1,2}\1\d{1,4}")
_DAYS: Final = range(32_874, 73_051)
"""1990 to 2099, as spreadsheets number days."""

_BEGIN: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND: Final = timedelta(milliseconds=1)
_NUMBER: Final = re.compile(r"\d{9,}(\.\d+)?")
"""Shorter digits may be a date, as in 20231114."""


def moment_ms(value: Any) -> int | None:
    """Milliseconds since 1970 of a JSON value, never later than it says; None where it is no moment, or one before 1970.

    Numbers below :data:`MILLISECONDS_FROM` are seconds, others milliseconds; so are texts of nine digits or more. Other texts are
    ISO 8601, in UTC where they name no zone.
    """
    if isinstance(value, str):
        if _NUMBER.fullmatch(value):
            return moment_ms(float(value))
        try:
            moment = datetime.fromisoformat(value)
            at_ms = ((moment if moment.tzinfo else moment.replace(tzinfo=UTC)) - _BEGIN) // _MILLISECOND
        except (ValueError, OverflowError):
            return None
        return at_ms if at_ms >= 0 else None
    if not isinstance(value, int | float) or isinstance(value, bool) or not 0 <= value < MILLISECONDS_TO:
        return None
    # A fraction of a second is seldom exact in binary: 1.001 s times 1 000 is a little less than 1 001 ms.
    return int(value) if value >= MILLISECONDS_FROM else floor(round(value * 1000, 3))


def looks_like(value: Any) -> str | None:
    """What a value that :func:`moment_ms` does not take looks like; None: like nothing that is known."""
    if isinstance(value, str):
        if _DATE.fullmatch(value):
            return "a date without a time"
        try:
            value = float(value)
        except ValueError:
            return None
    if not isinstance(value, int | float) or isinstance(value, bool):
        return None
    if value >= MILLISECONDS_TO:
        return "nanoseconds since 1970" if value >= NANOSECONDS_FROM else "microseconds since 1970"
    return "the day number of a spreadsheet" if _DAYS[0] <= value < _DAYS.stop else None


def parse_moment(text: str, now_ms: int) -> int:
    """``-24h`` or ``24h``: so long ago; else as :func:`moment_ms` reads it.

    Raises:
        ValueError: It is none of them.
    """
    try:
        return max(0, now_ms - milliseconds(parse_duration(text.removeprefix("-"))))
    except ValueError:
        found = moment_ms(float(text) if text.isdigit() and len(text) != len("20231114") else text)
    if found is None:
        raise ValueError(
            f"{text!r} is no moment, or one before 1970: write how long ago, as in -24h, an ISO time, as in 2026-11-21T14:00, "
            "or ms since 1970"
        )
    return found
