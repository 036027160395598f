"""Renders page models as HTML, and draws charts as paths of SVG, which need no JavaScript.

A template gets the model, the shell around it, and the filters of this module.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from functools import cache
from importlib.resources import files
from typing import Any, Final, NamedTuple

import jinja2
import msgspec
from markupsafe import Markup

from streams_app.console.reading.console_reader import Missing
from streams_app.formatting import compact_size, counted, duration_text, escaped, percentage, shown, span, time_text

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


STATIC: Final = files("streams_app.console") / "static"
SIGNS: Final = {"ok": "●", "idle": "○", "attention": "▲", "trouble": "■", "unknown": "?"}
"""Sign of each state, so that its meaning does not depend on a color."""

DASH: Final = "\N{EN DASH}"
"""What is shown in the place of an unknown value."""

_TEN: Final = 10
_SHORT_SECONDS: Final = 0.1
_THOUSAND: Final = 1_000
_MANY: Final = 100_000


class NavigationLink(msgspec.Struct, frozen=True):
    """A link in the navigation, with the state of what it leads to."""

    name: str
    link: str
    state: str = ""
    word: str = ""


class NavigationSection(msgspec.Struct, frozen=True):
    """A heading of the navigation with its links."""

    title: str
    entries: list[NavigationLink]


class Shell(msgspec.Struct, frozen=True):
    """What surrounds each page.

    Attributes:
        path: Path of the page.
        live_path: The same with its query.
        json_path: Path and query of its JSON.
        is_live: Whether the page is sent anew when it changes.
        has_session: Whether there is a session to end.
    """

    app_id: str
    title: str
    path: str
    live_path: str
    json_path: str
    sections: list[NavigationSection]
    is_live: bool
    has_session: bool
    now_ms: int


def number(value: float | None) -> str:
    """Format a number for glancing at it: ``3.2``, ``1,512``, ``123k``; a dash if it is unknown."""
    if value is None:
        return DASH
    if value >= _MANY:
        return f"{value / 1_000_000:,.1f}M" if value >= _MANY * _TEN else f"{value / _THOUSAND:,.0f}k"
    if value >= _TEN or value == int(value):
        return f"{value:,.0f}"
    return f"{value:.1f}" if value >= 1 else f"{value:.2f}"


def seconds_text(seconds: float) -> str:
    """Format a duration: below 0.1 s in milliseconds."""
    if not seconds:
        return "0 s"
    return f"{seconds * _THOUSAND:.1f} ms" if seconds < _SHORT_SECONDS else span(round(seconds * _THOUSAND))


def figure(value: float | None, unit: str) -> Markup:
    """Format a value with its unit, such as ``1,512 /s``, ``97.3 %``, ``1.4 s``."""
    if value is None:
        return Markup('<span class="value none">{}</span>').format(DASH)
    if unit == "share":
        text, after = percentage(value).removesuffix("%"), "%"
    elif unit == "seconds":
        text, _, after = seconds_text(value).partition(" ")
    elif unit == "bytes":
        text, _, after = compact_size(int(value)).partition(" ")
    else:
        text, after = number(value), "/s" if unit.endswith("/s") else ""
    return Markup('<span class="value">{}</span><span class="unit">{}</span>').format(text, after)


def axis_text(top: float, unit: str) -> str:
    """Format the upper end of an axis with its unit."""
    if unit == "share":
        return "100%"
    if unit == "seconds":
        return seconds_text(top)
    if unit == "bytes":
        return compact_size(int(top))
    return number(top) + ("/s" if unit.endswith("/s") else "")


def points_text(points: Sequence[float | None]) -> str:
    """Return the points of a chart for JavaScript: numbers with at most four digits, and nothing where one is unknown."""
    return ",".join("" if point is None else f"{point:.4g}" for point in points)


def moment(at_ms: int | None) -> Markup:
    """Return a time as an element that JavaScript shows in the viewer's zone; without, in UTC."""
    if at_ms is None or at_ms < 0:
        return Markup(DASH)
    try:
        exact = datetime.fromtimestamp(at_ms / _THOUSAND, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    except (ValueError, OverflowError, OSError):
        return Markup.escape(time_text(at_ms))
    return Markup('<time datetime="{}" title="{}">{}</time>').format(exact, exact, time_text(at_ms))


def exact_moment(at_ms: int) -> Markup:
    """Return a time like :func:`moment`, with milliseconds, for events that follow each other quickly."""
    text = moment(at_ms)
    return Markup(str(text).replace("<time ", "<time data-exact ", 1))


def countdown(until_ms: int, now_ms: int) -> Markup:
    """Return the time until a moment as an element that JavaScript counts down."""
    left = until_ms - now_ms
    return Markup('<span class="countdown" data-until="{}">{}</span>').format(until_ms, span(left) if left > 0 else "now")


def part_of(at_ms: int, from_ms: int, to_ms: int) -> str:
    """Return the position of a moment in a range, as a number from 1.5 to 98.5 of 100, so that a mark at an end is whole."""
    return f"{1.5 + 97 * (at_ms - from_ms) / max(1, to_ms - from_ms):.2f}"


@cache
def static_file(name: str) -> bytes:
    """Return a file that is served to browsers."""
    found = STATIC
    for part in name.split("/"):
        found = found / part
    return found.read_bytes()


@cache
def asset(name: str) -> str:
    """Return the path of a file with a digest of its content, so that browsers may keep it for ever."""
    return f"/static/{name}?{hashlib.sha256(static_file(name)).hexdigest()[:12]}"


def plain(text: str) -> str:
    """Return text of several lines without the characters that hide or reorder it; those are escaped."""
    return "\n".join(map(escaped, text.split("\n")))


def coded(text: str) -> Markup:
    """Return text in which what is between backticks is code."""
    parts = text.split("`")
    return Markup("").join(Markup("<code>{}</code>").format(part) if number % 2 else part for number, part in enumerate(parts))


def bars_path(counts: Sequence[int], top: float, width: float, height: float) -> str:
    """Return the path of bars at equal distances; a count above 0 has at least a visible bar."""
    step = width / max(1, len(counts))
    highs = [max(1.5, height * count / top) if count else 0.0 for count in counts]
    return "".join(
        f"M{number * step:.1f} {height:.1f}v{-high:.1f}h{step * 0.8:.1f}v{high:.1f}Z" for number, high in enumerate(highs) if high
    )


def environment() -> jinja2.Environment:
    """Return the environment of the templates."""
    found = jinja2.Environment(
        loader=jinja2.PackageLoader("streams_app.console"), autoescape=True, undefined=jinja2.StrictUndefined,
        trim_blocks=True, lstrip_blocks=True, auto_reload=False,
    )  # fmt: skip
    found.filters.update(
        number=number, figure=figure, plain=plain, moment=moment, exact=exact_moment, span=span, shown=shown, size=compact_size,
        percentage=percentage, coded=coded,
        top_of=top_of, axis=axis_text, points=points_text, duration=duration_text,
    )  # fmt: skip
    found.tests["missing"] = lambda value: isinstance(value, Missing)
    found.globals.update(
        SIGNS=SIGNS,
        asset=asset,
        counted=counted,
        countdown=countdown,
        line_path=line_path,
        area_path=area_path,
        bars_path=bars_path,
        part_of=part_of,
        curve=curve,
    )
    return found


_ENVIRONMENT: Final = environment()


def render(template: str, **names: Any) -> str:
    """Render a template of the package."""
    return _ENVIRONMENT.get_template(template).render(**names)
