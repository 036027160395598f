"""Renders page models as HTML; a template gets the model, the shell around it, and the filters of this module."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from datetime import UTC, datetime
from functools import cache
from importlib.resources import files
from typing import Any, Final

import jinja2
import msgspec
from markupsafe import Markup

from streams_app.console import charts
from streams_app.console.reading.sources import Missing
from streams_app.console.timeline import time_line
from streams_app.formatting import compact_size, counted, duration_text, percentage, shown, span, time_text

STATIC: Final = files("streams_app.console") / "static"
SIGNS: Final = {"ok": "●", "idle": "○", "attention": "▲", "trouble": "■", "unknown": "?"}
"""Sign of each state, so that its meaning does not depend on a color."""

DASH: Final = "\N{EN DASH}"
"""What is shown in the place of an unknown value."""

_TEN: Final = 10
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


def figure(value: float | None, unit: str) -> Markup:
    """Format a value with its unit, such as ``1,512 /s``, ``97.3 %``, ``1.4 s``."""
    if value is None:
        return Markup('<span class="value none">{}</span>').format(DASH)
    if unit == "share":
        text, after = percentage(value).removesuffix("%"), "%"
    elif unit == "seconds":
        text, _, after = span(max(1, round(value * _THOUSAND))).partition(" ") if value else ("0", "", "s")
    else:
        text, after = number(value), "/s" if unit.endswith("/s") else ""
    return Markup('<span class="value">{}</span><span class="unit">{}</span>').format(text, after)


def axis_text(top: float, unit: str) -> str:
    """Format the upper end of an axis with its unit."""
    if unit == "share":
        return "100%"
    if unit == "seconds":
        return span(max(1, round(top * _THOUSAND)))
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


def environment() -> jinja2.Environment:
    """Return the environment of the templates."""
    found = jinja2.Environment(
        loader=jinja2.PackageLoader("streams_app.console"), autoescape=True, undefined=jinja2.StrictUndefined,
        trim_blocks=True, lstrip_blocks=True, auto_reload=False,
    )  # fmt: skip
    found.filters.update(
        number=number, figure=figure, moment=moment, exact=exact_moment, span=span, shown=shown, size=compact_size,
        percentage=percentage,
        top_of=charts.top_of, axis=axis_text, points=points_text, duration=duration_text,
    )  # fmt: skip
    found.tests["missing"] = lambda value: isinstance(value, Missing)
    found.globals.update(
        SIGNS=SIGNS,
        asset=asset,
        counted=counted,
        countdown=countdown,
        line_path=charts.line_path,
        area_path=charts.area_path,
        curve=charts.curve,
        time_line=time_line,
    )
    return found


_ENVIRONMENT: Final = environment()


def render(template: str, **names: Any) -> str:
    """Render a template of the package."""
    return _ENVIRONMENT.get_template(template).render(**names)
