"""Parses and formats durations, times, counts, sizes, shares and text for people (pure).

Text from outside is printed on one line. Keys and names in events may contain line breaks, escape sequences of terminals and
characters that change the direction of writing, because their producer chooses them. Every command formats such text by a function
of this module, and passes it to rich as ``Text``, never as markup.
"""

from __future__ import annotations

import difflib
import re
import reprlib
from datetime import UTC, datetime, timedelta
from math import floor, inf
from typing import Annotated, Any, Final

import orjson
from pydantic import BeforeValidator

from streams_app.codec import TEXT_TAG, canonical_bytes
from streams_app.exact_json import encode

_UNITS_MS: Final = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_DURATION: Final = re.compile(r"^(\d+(?:\.\d+)?)\s*(ms|s|m|h|d)$", re.ASCII)


def parse_duration(value: Any) -> Any:
    """Parse a duration such as ``15m``, ``90s``, ``500ms``, ``6h`` or ``2d``; a timedelta is returned unchanged.

    Raises:
        ValueError: The value is not a duration; for example, it is a number without a unit.
    """
    if isinstance(value, timedelta):
        return value
    match = _DURATION.match(value.strip()) if isinstance(value, str) else None
    if match is None:
        raise ValueError(f"{reprlib.repr(value)} is not a duration: write a number and a unit, as in 500ms, 90s, 15m, 6h, 2d")
    try:
        return timedelta(milliseconds=float(match[1]) * _UNITS_MS[match[2]])
    except OverflowError as error:
        raise ValueError(f"{value[:40]!r} is too long a duration") from error


Duration = Annotated[timedelta, BeforeValidator(parse_duration)]


def milliseconds(duration: timedelta) -> int:
    """Return a duration in milliseconds, rounded down."""
    return duration // timedelta(milliseconds=1)


def duration_text(duration_ms: int) -> str:
    """Format a duration as :func:`parse_duration` reads it: ``15m``, ``1.5s``, ``90s``."""
    for unit, size_ms in reversed(_UNITS_MS.items()):
        if duration_ms >= size_ms and duration_ms % size_ms == 0:
            return f"{duration_ms // size_ms}{unit}"
        if unit == "s" and duration_ms >= size_ms and duration_ms % (size_ms // 10) == 0:
            return f"{duration_ms / size_ms:.1f}s"
    return f"{duration_ms}ms"


_SIXTIETHS: Final = (1, 1.5, 2, 2.5, 3, 4, 5, 6, 8, 10, 12, 15, 20, 25, 30, 40, 45, 50)

ROUND_MS: Final = (
    *(1, 2, 3, 4, 5, 6, 8, 10, 15, 20, 25, 30, 40, 50, 60, 80, 100, 150, 200, 250, 300, 400, 500, 600, 800),
    *(int(value * _UNITS_MS["s"]) for value in _SIXTIETHS),
    *(int(value * _UNITS_MS["m"]) for value in _SIXTIETHS),
    *(int(value * _UNITS_MS["h"]) for value in (1, 1.5, 2, 3, 4, 5, 6, 8, 10, 12, 18)),
    *(int(value * _UNITS_MS["d"]) for value in (1, 1.5, 2, 3, 4, 5, 7, 10, 14, 21, 30, 60, 90, 180, 365)),
)
"""Durations that users would write, in rising order."""


MILLISECONDS_FROM: Final = 100_000_000_000
"""This number and larger ones are times in milliseconds since 1970; smaller ones are times in seconds.

As seconds, the number means the year 5138; as milliseconds, the year 1973.
"""

MILLISECONDS_TO: Final = 100_000_000_000_000
"""This number and larger ones are not accepted as times, because they are probably in microseconds or nanoseconds."""

NANOSECONDS_FROM: Final = 100_000_000_000_000_000
"""This number and larger ones are probably times in nanoseconds, because as microseconds they mean the year 5138 or later."""

_DATE: Final = re.compile(r"\d{1,4}([./-])\d{1,2}\1\d{1,4}")
_DAYS: Final = range(32_874, 73_051)
"""The numbers by which spreadsheets store the days of the years 1990 to 2099."""

_BEGIN: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND: Final = timedelta(milliseconds=1)
_NUMBER: Final = re.compile(r"\d{9,}(\.\d+)?")
"""Text that is read as a number of seconds or milliseconds. Text with fewer digits may be a date, as in 20231114."""


def moment_ms(value: Any) -> int | None:
    """Convert a JSON value to milliseconds since 1970, rounded down; None if the value is not a time, or is before 1970.

    Numbers below :data:`MILLISECONDS_FROM` are seconds, others milliseconds. Text of nine digits or more is read like a number.
    Other text is ISO 8601, in UTC if it has no time zone.
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
    # A fraction of a second is rarely exact in binary: 1.001 s times 1 000 is slightly less than 1 001 ms.
    return int(value) if value >= MILLISECONDS_FROM else floor(round(value * 1000, 3))


def guessed_format(value: Any) -> str | None:
    """Guess the format of a value that :func:`moment_ms` does not accept, for an error message; None if it cannot be guessed."""
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
    """Convert a time on the command line to milliseconds since 1970.

    A duration such as ``-24h`` or ``24h`` means this long ago. Digits are a number of seconds or milliseconds since 1970, except
    eight digits, which are a date such as ``20231114``. Other text is converted by :func:`moment_ms`.

    Raises:
        ValueError: The text is not a time, or the time is before 1970.
    """
    try:
        return max(0, now_ms - milliseconds(parse_duration(text.removeprefix("-"))))
    except ValueError:
        found = moment_ms(float(text) if text.isdigit() and len(text) != len("20231114") else text)
    if found is None:
        raise ValueError(
            f"{text!r} is not a time, or is before 1970: write how long ago, as in -24h, an ISO time, as in 2026-11-21T14:00, "
            "or ms since 1970"
        )
    return found


MINUTE: Final = 60
HOUR: Final = 3_600
DAY: Final = 86_400


def counted(number: int, noun: str) -> str:
    """Format a number with a noun, as in ``1 group`` or ``2,000 groups``; ``noun`` is the singular."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def time_text(at_ms: int) -> str:
    """Format a time, in ms since 1970, as ``2026-11-21 14:31:44Z``. A negative time is unknown, and becomes ``-``."""
    try:
        return datetime.fromtimestamp(at_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%SZ") if at_ms >= 0 else "-"
    except (ValueError, OverflowError, OSError):
        return f"{at_ms} ms"  # beyond the year 9999, a fault of the producer


def span(span_ms: int) -> str:
    """Format a remaining time as ``1.5 s``, ``2 min 30 s``, ``5 h 40 min`` or ``3 d 4 h``; ``due`` if the time is not positive."""
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


_COMPACT_UNITS: Final = (
    (_UNITS_MS["h"], ("m", "s")), (2 * _UNITS_MS["d"], ("h", "m")), (inf, ("d", "h")),
)  # fmt: skip
"""Upper limits of durations, each with the two units in which :func:`compact_duration` formats a shorter duration."""

_KILO: Final = 1_000


def compact_duration(span_ms: int | None) -> str:
    """Format a duration as ``850ms``, ``9.5s``, ``42s``, ``14m02s``, ``5h40m``, ``3d04h``; ``-`` if it is unknown."""
    if span_ms is None:
        return "-"
    second_ms = _UNITS_MS["s"]
    if span_ms < second_ms:
        return f"{span_ms}ms"
    if span_ms < _UNITS_MS["m"]:
        return f"{span_ms / second_ms:.1f}s" if span_ms < 10 * second_ms and span_ms % second_ms else f"{span_ms // second_ms}s"
    large, small = next(units for limit_ms, units in _COMPACT_UNITS if span_ms < limit_ms)
    whole, rest = span_ms // _UNITS_MS[large], span_ms % _UNITS_MS[large] // _UNITS_MS[small]
    return f"{whole}{large}{rest:02}{small}" if rest else f"{whole}{large}"


def percentage(ratio: float) -> str:
    """Format a share as ``94.1%``, ``99.64%``, ``99.998%``: with enough digits to show two digits of the difference to 100 %."""
    rest = 100 * (1 - ratio)
    digits = next((digits for digits in (1, 2, 3, 4) if rest >= 10 ** (1 - digits)), 1 if ratio >= 1 else 4)
    whole, _, decimals = f"{100 * ratio:.{digits}f}".partition(".")
    return f"{whole}.{decimals.rstrip('0') or '0'}%"


def compact_size(count: int | None) -> str:
    """Format a size as ``512 B``, ``1.2 MB``; ``-`` if it is unknown."""
    if count is None:
        return "-"
    value, unit = float(count), "B"
    for larger in ("kB", "MB", "GB", "TB"):
        if value < _KILO:
            break
        value, unit = value / _KILO, larger
    return f"{value:.0f} {unit}" if unit == "B" or value >= 100 else f"{value:.1f} {unit}"  # noqa: PLR2004  # three digits


CUT: Final = "…"

_SHORT: Final = {"\n": "\\n", "\r": "\\r", "\t": "\\t"}
_ASTRAL: Final = 0x10000


def escaped(text: str) -> str:
    """Format free text as one line, with unprintable characters as JSON escapes.

    Use it for values of events and texts of errors. JSON stays JSON, but two different texts may look the same.
    """
    return text if text.isprintable() else "".join(char if char.isprintable() else _escape(char) for char in text)


def shown(text: str) -> str:
    """Format a name or a key as one line, so that two different texts never look the same.

    Misleading text becomes a JSON string in quotes: text that is empty, begins with a quote, or has unprintable characters, leading
    or trailing spaces, or several spaces in a row.
    """
    plain = text.isprintable() and text and not text.startswith('"') and "  " not in f" {text} "
    return text if plain else quoted(text)


def quoted(text: str) -> str:
    """Format text as a JSON string of printable characters."""
    return '"' + escaped(text.replace("\\", "\\\\").replace('"', '\\"')) + '"'


def shown_group(member: bytes) -> str:
    """Format the key of a group, given as its member, like :func:`shown_key`."""
    return shown_key(group_value(member))


def shown_key(key: Any) -> str:
    """Format a group key from :func:`group_value` for display, and as an argument of ``groups explain`` and ``groups flush``.

    Text that would be parsed as a number, a boolean or a list is quoted: ``1`` is a number, and ``"1"`` is text.
    """
    if type(key) is not str:
        return escaped(orjson.dumps(key).decode())
    return shown(key) if is_only_text(key) else quoted(key)


def group_value(member: bytes) -> Any:
    """Return the group key of a member as a JSON value of the same type as in events; a list if the group has several fields."""
    text = canonical_bytes(member).decode("utf-8", "backslashreplace")
    return text if member[:1] == TEXT_TAG else orjson.loads(text)


def is_only_text(text: str) -> bool:
    """Return whether a group key on the command line can only stand for this text, not for a number, a boolean or a list."""
    try:
        value = orjson.loads(text)
    except orjson.JSONDecodeError:
        return True
    return value is None or type(value) is dict  # no group has this key


def json_line(row: Any) -> str:
    """Format a value as one line of JSON without characters that disturb a terminal."""
    return escaped(encode(row).decode())


def cut(text: str, width: int) -> str:
    """Shorten a text in its middle to at most ``width`` terminal cells, because keys differ at both ends."""
    from rich.cells import cell_len  # imported late: rich is slow to import, and a module that only declares folds does not need it

    if cell_len(text) <= width:
        return text
    tail_width = max(0, width - 1) // 2
    head = _first_cells(text, max(0, width - 1 - tail_width))
    tail = _first_cells(text[::-1], tail_width)[::-1]
    return f"{head}{CUT}{tail}" if width > 0 else ""


def _first_cells(text: str, width: int) -> str:
    from rich.cells import cell_len

    used = 0
    for position, char in enumerate(text):
        used += cell_len(char)
        if used > width:
            return text[:position]
    return text


def _escape(char: str) -> str:
    code = ord(char)
    if char in _SHORT:
        return _SHORT[char]
    if code < _ASTRAL:
        return f"\\u{code:04x}"
    high, low = divmod(code - _ASTRAL, 0x400)
    return f"\\u{0xD800 + high:04x}\\u{0xDC00 + low:04x}"


def suggestion(name: str, known: list[str]) -> str:
    """Return a suggestion of a similar name for an error message; an empty string if no name is similar."""
    near = difflib.get_close_matches(name, known, n=1, cutoff=0.6)
    return f", did you mean {near[0]!r}?" if near else ""
