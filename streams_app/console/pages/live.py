"""The page of a live view: its pages with most items, the servers that show it, and one page as a browser gets it."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from typing import Final
from urllib.parse import quote, urlencode

import msgspec

from streams_app.console.pages.model import Chart, Problem, Rule, State, line_chart, window_of
from streams_app.console.pages.overview import total, view_state
from streams_app.console.pages.paths import view_path
from streams_app.console.pages.problems import problems_of
from streams_app.console.pages.rendering import render
from streams_app.console.pages.topic import MOST_CHARACTERS, topic_path, value_text
from streams_app.console.reading.asking import Asked
from streams_app.console.reading.console_reader import ConsoleReader, Missing, ServerState
from streams_app.console.reading.hiding import Hidden
from streams_app.console.reading.history import History
from streams_app.console.reading.samples import Samples
from streams_app.formatting import duration_text, escaped, shown
from streams_app.operations.live import PageOfView, contents_of_view, page_of_views
from streams_app.operations.live_history import history_of_page, history_text
from streams_app.requirements.declarations import Declarations
from streams_app.settings import LiveView

SHOWN_PAGES: Final = 50
SHOWN_ITEMS: Final = 50
SEARCHED: Final = 5_000
"""Number of newest records of the source that are searched for a page without items."""

STATES: Final[dict[str, State]] = {"ok": "ok", "incomplete": "attention", "behind": "trouble", "reading": "attention"}


class LargestPage(msgspec.Struct, frozen=True):
    """A page with many items; ``link`` is empty if keys are hidden."""

    name: str
    items: int
    link: str


class ViewPages(msgspec.Struct, frozen=True, tag="found"):
    """What a view holds.

    Attributes:
        word: State that its pages have, as browsers receive it.
        why: Why it is not ``ok``.
        pages: Number of pages with items.
        read: Number of pages whose items were counted.
        is_whole: Whether these are all pages.
    """

    state: State
    word: str
    why: str
    pages: int
    largest: list[LargestPage]
    read: int
    is_whole: bool


class ShownItem(msgspec.Struct, frozen=True):
    """An item of a page.

    Attributes:
        at_ms: Time of the item; None for an open tab, which has only the time at which it leaves.
    """

    name: str
    at_ms: int | None
    leaves_ms: int
    payload: str


class ShownPage(msgspec.Struct, frozen=True, tag="found"):
    """A page, as a browser gets it.

    Attributes:
        message: The message that a server sends, as JSON.
        is_cut: Whether the message is longer.
        more_items: Number of items that are not shown.
        history: Whether a page without items ever had some; empty for others.
    """

    state: State
    word: str
    why: str
    count: int | None
    more: bool
    items: list[ShownItem]
    more_items: int
    message: str
    is_cut: bool
    history: str


class HubRow(msgspec.Struct, frozen=True):
    """A live view server; numbers are None if it does not answer.

    Attributes:
        says: Why it does not answer, or is not ready.
        messages: States of this view that it has written to browsers since its start.
        rejected: Requests that it has rejected since its start.
    """

    url: str
    state: State
    word: str
    says: str
    connections: float | None
    pages: float | None
    messages: float | None
    rejected: float | None


class ViewConsolePage(msgspec.Struct, frozen=True):
    """The model of the page.

    Attributes:
        asked: The page that was asked for; empty if none was, or if values are hidden.
        command: The command that shows the same.
        are_hubs_named: Whether the settings name live view servers.
    """

    name: str
    path: str
    state: State
    word: str
    problems: list[Problem]
    definition: list[Rule]
    charts: list[Chart]
    contents: ViewPages | Missing
    may_ask: bool
    asked: str
    shown: ShownPage | Missing | None
    command: str
    hubs: list[HubRow] | Missing
    are_hubs_named: bool
    missing: list[Missing]
    now_ms: int


def page_link(view: LiveView, page: str) -> str:
    """Return the path on which a page of a view is shown."""
    return f"{view_path(view.name)}?{urlencode({'page': page}, quote_via=quote)}"


def html(model: ViewConsolePage) -> str:
    """Render the page."""
    return render("live.html", model=model)


async def collect(reader: ConsoleReader, declarations: Declarations, asked: Asked) -> ViewConsolePage:
    """Collect the page from the workers, the live view servers, the history and Redis."""
    known = {one.name: one for one in reader.settings.live}
    view = known[asked.named("view", known, "live view")]
    hidden, now_ms = Hidden(reader.settings), reader.clock.now_ms()
    page = "" if hidden.is_on else asked.text("page")
    states, missing = await reader.workers_part()
    samples = [worker.samples for worker in states if not worker.fault]
    rate = reader.history.rate_now("live_events_total", now_ms, {"view": view.name})
    path = view_path(view.name)
    problems = [one for one in problems_of(declarations, states, reader.history, now_ms) if one.link in (path, "/workers")]
    contents = await reader.redis_part("its pages", ("live", view.name), lambda: _contents(reader, view, hidden))
    shown_page = None
    if page:
        shown_page = await reader.redis_part("the page", ("live page", view.name, page), lambda: _shown(reader, view, page))
    hubs = await reader.part("the live view servers", "hubs-part", reader.hubs)
    state, word = heading_of(view, contents, samples, rate)
    return ViewConsolePage(
        view.name, path, state, word, problems, list(definition_of(view)),
        list(charts_of_view(view, reader.history, samples, now_ms)), contents, not hidden.is_on, page, shown_page,
        f"streams-app live show {shlex.quote(escaped(page or 'PAGE'))} --view {view.name}",
        hubs if isinstance(hubs, Missing) else [hub_row(hub, view.name) for hub in hubs], bool(reader.settings.console.hubs),
        missing, now_ms,
    )  # fmt: skip


def heading_of(
    view: LiveView, contents: ViewPages | Missing, workers: Sequence[Samples], rate: float | None
) -> tuple[State, str]:  # fmt: skip
    """Return the state in the heading: that of the contents, as browsers receive it; without them, that by the lag of workers."""
    if isinstance(contents, Missing):
        return view_state(view.name, workers, rate) if view.is_of_topic else ("unknown", "not seen")
    return contents.state, "current" if contents.word == "ok" else contents.word


def definition_of(view: LiveView) -> Iterator[Rule]:
    """Yield the declaration in plain words."""
    yield Rule("shows", {"count": "how many items a page has", "list": f"the {view.show} newest items of a page",
                         "presence": "how many browsers have a page open"}[view.kind])  # fmt: skip
    if view.is_of_topic:
        yield Rule("reads", view.source, topic_path(view.source))
        yield Rule("page", view.page)
        yield Rule("item", view.item or "each record")
    yield Rule("expires", f"{duration_text(view.expiry_ms)} after {'its record' if view.is_of_topic else 'the last sign of life'}")
    yield Rule("is seen by", "everybody" if view.public else "who has a token")


def charts_of_view(view: LiveView, history: History, workers: Sequence[Samples], now_ms: int) -> Iterator[Chart]:
    """Yield the charts of the last time; none for a view that no worker reads."""
    if not view.is_of_topic:
        return
    of, window = {"view": view.name}, window_of(history, now_ms)
    slots, step = window.slots, window.step
    put = {**of, "result": "put"}
    points = history.rate("live_events_total", now_ms, put, slots=slots, step=step)
    now = history.rate_now("live_events_total", now_ms, put)
    yield line_chart("put", "Put", "events/s", "Items that were shown or prolonged.", points, window, now)
    expired = history.rate("live_expired_total", now_ms, of, slots=slots, step=step)
    now = history.rate_now("live_expired_total", now_ms, of)
    yield line_chart("expired", "Expired", "events/s", "Constant while put rises: its clock stands still.", expired, window, now)
    lag = history.gauge("live_lag_records", now_ms, of, how="max", slots=slots, step=step)
    yield line_chart("lag", "Lag", "events", "Rising: browsers will see it as behind.", lag, window)
    pages = history.gauge("live_pages", now_ms, of, slots=slots, step=step)
    yield line_chart("pages", "Pages with items", "groups", "Without end: `page` names an id instead of a page.", pages, window)


async def _contents(reader: ConsoleReader, view: LiveView, hidden: Hidden) -> ViewPages:
    found = await contents_of_view(reader.settings, view, SHOWN_PAGES)
    largest = [
        LargestPage(hidden.key(shown(name)), count, "" if hidden.is_on else page_link(view, name)) for name, count in found.largest
    ]
    return ViewPages(STATES[found.state], found.state, found.why, found.pages, largest, found.read, found.is_whole)


async def _shown(reader: ConsoleReader, view: LiveView, page: str) -> ShownPage:
    (found,) = await page_of_views(reader.settings, page, [view.name])
    history = ""
    if view.is_of_topic and found.state.count == 0:
        searched = await history_of_page(reader.settings, view, page, reader.clock, SEARCHED)
        history = history_text(searched, view)
    return shown_page_of(found, history)


def shown_page_of(found: PageOfView, history: str = "") -> ShownPage:
    """Return a page as it is shown (pure)."""
    state, view = found.state, found.view
    items = [
        ShownItem(
            shown(item.item), item.time_ms if view.is_of_topic else None,
            item.time_ms + view.expiry_ms if view.is_of_topic else item.time_ms,
            escaped(item.payload.decode(errors="backslashreplace"))[:MOST_CHARACTERS],
        )
        for item in found.items[:SHOWN_ITEMS]
    ]  # fmt: skip
    _, message, is_cut = value_text(state.to_json())
    more_items = max(0, (state.count or 0) - len(items))
    return ShownPage(
        STATES[state.state], state.state, found.why, state.count, state.more, items, more_items, message, is_cut,
        history,
    )  # fmt: skip


def hub_row(hub: ServerState, view: str) -> HubRow:
    """Return the row of a live view server."""
    if hub.fault:
        return HubRow(hub.url, "trouble", "away", f"it {hub.fault}", None, None, None, None)
    states: list[ServerState] = [hub]
    says = "; ".join((*hub.health.reasons, *hub.health.remarks))
    is_ready = hub.health.is_ready
    return HubRow(
        hub.url, "ok" if is_ready else "trouble", "ready" if is_ready else "not ready", says, total(states, "live_connections"),
        total(states, "live_open_pages"), total(states, "live_messages_total", view=view), total(states, "live_refused_total"),
    )  # fmt: skip
