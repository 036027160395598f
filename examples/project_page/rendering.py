"""The first state of the page as HTML: what browsers show before the stream has come, and without JavaScript.

It has the elements that the script of ``page.html`` changes later.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import UTC, datetime
from html import escape
from typing import Any
from urllib.parse import quote

State = Mapping[str, Any]
"""A message of the hub, or nothing if the hub is away."""

ADDRESS = re.compile(r"(https?:/)?/\S*", re.IGNORECASE)
UNITS = (("hour", 3_600_000), ("minute", 60_000), ("second", 1_000))
MINUTE_MS = 60_000
UNKNOWN = "\u2013"


def placeholders(project: str, found: Mapping[str, Any]) -> dict[str, str]:
    """What stands for the names in braces of ``page.html``, as HTML.

    Args:
        project: Name of the project.
        found: Answer of the hub; empty if it is away.
    """
    views: dict[str, State] = {state["view"]: state for state in found.get("views", ())}
    now_ms = found.get("now_ms", 0)
    supporters, names, news = (views.get(name, {}) for name in ("supporters", "names", "news"))
    # This browser is not among them: once its script runs, the stream has the number.
    visitors = number(views.get("visitors", {}))
    what = "contribution" if supporters.get("count") == 1 else "contributions"
    return {
        "STATE": state_of(views, now_ms),
        "STATE_CLASS": "" if views and all(state["state"] == "ok" for state in views.values()) else "marked",
        "SUPPORTERS": number(supporters),
        "SUPPORTERS_WHAT": f"{what}{in_the_last(supporters)}",
        "VISITORS": f"<noscript>{visitors}</noscript>" if visitors != UNKNOWN else UNKNOWN,
        "NAMES_TITLE": f"Contributed{in_the_last(names)}",
        "NAMES": rows(names, project, now_ms),
        "NEWS": rows(news, project, now_ms),
    }


def number(state: State) -> str:
    """42, or 1,000+ if there may be more."""
    return f"{state['count']:,}{'+' if state['more'] else ''}" if "count" in state else UNKNOWN


def in_the_last(state: State) -> str:
    """`` in the last 24 hours``, by the expiry of the view."""
    if "expiry_ms" not in state:
        return ""
    unit, length = next((unit for unit in UNITS if state["expiry_ms"] % unit[1] == 0), UNITS[-1])
    count = round(state["expiry_ms"] / length)
    return f" in the last {unit if count == 1 else f'{count} {unit}s'}"


def state_of(views: Mapping[str, State], now_ms: int) -> str:
    """How current the page is; a page whose script runs replaces this within a second."""
    if not views:
        return "Offline<noscript>: reload this page for its current state.</noscript>"
    marked = next((state for state in views.values() if state["state"] != "ok"), None)
    if marked is None:
        return f"<noscript>As it was at {clock(now_ms)}: without JavaScript, reload this page to follow.</noscript>"
    if marked["state"] == "behind":
        return f"Behind: as it was at {clock(marked['since_ms'])}."
    if marked["state"] == "incomplete":
        return f"What happened before {clock(marked['since_ms'])} may be missing."
    return "What happened lately is being read again."


def clock(ms: int) -> str:
    """The time of day; the zone of the reader is known to the browser only."""
    return datetime.fromtimestamp(ms / 1000, UTC).strftime("%H:%M UTC")


def ago(ms: int) -> str:
    """5 minutes ago."""
    if ms < MINUTE_MS:
        return "just now"
    unit, length = next(unit for unit in UNITS if ms >= unit[1])
    count = ms // length
    return f"{count} {unit}{'' if count == 1 else 's'} ago"


def rows(state: State, project: str, now_ms: int) -> str:
    """The items of a list; whatever a producer wrote is shown as text."""
    return "".join(row(state["view"], item, project, now_ms) for item in state.get("items", ()))


def row(view: str, item: Mapping[str, Any], project: str, now_ms: int) -> str:
    """One item, with the form that takes it back."""
    data: Mapping[str, Any] = item["data"] or {}
    action, label = ("cancel", "Cancel") if view == "names" else ("unpublish", "Unpublish")
    about = data.get("name") if view == "names" else data.get("title")
    return (
        f'<li data-item="{escape(item["item"])}" data-time="{item["time_ms"]}"><span>{content(view, data)}</span>'
        f"<time>{ago(now_ms - item['time_ms'])}</time>"
        f'<form method="post" action="/project/{quote(project, safe="")}/{action}">'
        f'<input type="hidden" name="item" value="{escape(item["item"])}">'
        f'<button aria-label="{label} {escape(str(about))}">{label}</button></form></li>'
    )


def content(view: str, data: Mapping[str, Any]) -> str:
    """A name, or who published which news, with its link."""
    if view == "names":
        return escape(str(data.get("name")))
    url = str(data.get("url"))
    title = escape(str(data.get("title")))
    return f'{escape(str(data.get("author")))} published <a href="{escape(url) if ADDRESS.fullmatch(url) else "#"}">{title}</a>'
