"""The page of a subscriber: how it is, its last time, and what became of one event."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final, Literal
from urllib.parse import urlencode

import msgspec

from streams_app.console.pages.action_links import ActionLink, offered
from streams_app.console.pages.model import Chart, Problem, Rule, Series, State, Unit, Window, window_of
from streams_app.console.pages.overview import DISABLED, subscriber_state
from streams_app.console.pages.paths import subscriber_path
from streams_app.console.pages.problems import problems_of
from streams_app.console.pages.rendering import render
from streams_app.console.pages.topic import topic_path
from streams_app.console.reading.asking import Asked
from streams_app.console.reading.console_reader import ConsoleReader, Missing
from streams_app.console.reading.history import History
from streams_app.console.reading.samples import Samples
from streams_app.formatting import counted, shown
from streams_app.operations.event_facts import EventState, FoldedEventState
from streams_app.operations.event_text import event_sentences
from streams_app.operations.explain_event import SearchScope, explain_event
from streams_app.operations.retry_now import waiting_events
from streams_app.requirements.declarations import Declarations

SEARCHED: Final = 50_000
"""Maximum number of offsets that are searched for an event."""

MOST_WAITING: Final = 5_000
"""Maximum number of events that wait for a retry which a page counts."""

SINCE_MS: Final = 3_600_000
"""Time back from which finished events are searched, too."""


class EventFact(msgspec.Struct, frozen=True):
    """A labelled line of ``events explain``."""

    label: str
    text: str


class EventParagraph(msgspec.Struct, frozen=True):
    """What ``events explain`` says of an event."""

    verdict: str
    facts: list[EventFact]


class EventMoment(msgspec.Struct, frozen=True):
    """Something that has happened to an event, or will.

    Attributes:
        is_latest: Whether it happens at this time at the latest.
    """

    at_ms: int
    what: str
    kind: Literal["written", "rejected", "now", "due", "limit"]
    is_latest: bool = False


class EventLine(msgspec.Struct, frozen=True):
    """The moments of an event in their order, for a time line."""

    event: str
    moments: list[EventMoment]
    from_ms: int
    to_ms: int
    now_ms: int


class EventAnswer(msgspec.Struct, frozen=True, tag="found"):
    """What became of the event that was asked for; ``lines`` has a time line of each event that is in the log."""

    paragraphs: list[EventParagraph]
    lines: list[EventLine]


class WaitingRow(msgspec.Struct, frozen=True):
    """An event that waits for a retry: its position, how many attempts have failed, and when the next one is due."""

    position: str
    attempts: int
    due_ms: int
    link: str


class WaitingList(msgspec.Struct, frozen=True, tag="found"):
    """The events that wait for a retry, the first due first.

    Attributes:
        events: Number of all of them; at least so many, unless ``is_whole``.
    """

    rows: list[WaitingRow]
    events: int
    is_whole: bool


class SubscriberPage(msgspec.Struct, frozen=True):
    """The model of the page.

    Attributes:
        waiting: What waits for a retry.
        asked: Id, position or record key that was asked for; empty if none was, or if values are hidden.
        answer: What is known of it; None if nothing was asked.
    """

    name: str
    path: str
    state: State
    word: str
    problems: list[Problem]
    definition: list[Rule]
    charts: list[Chart]
    may_ask: bool
    asked: str
    answer: EventAnswer | Missing | None
    missing: list[Missing]
    now_ms: int
    waiting: WaitingList | Missing
    actions: list[ActionLink] = []


def html(model: SubscriberPage) -> str:
    """Render the page."""
    return render("subscriber.html", model=model)


async def collect(reader: ConsoleReader, declarations: Declarations, asked: Asked) -> SubscriberPage:
    """Collect the page from the workers and the history; for an event, from Kafka and Redis."""
    known = {one.subscriber.name: one for one in declarations.workload.subscriptions}
    one = known[asked.named("subscriber", known, "subscriber")]
    name, may_ask = one.subscriber.name, not reader.settings.console.hide_values
    which = asked.text("event") if may_ask else ""
    states, missing = await reader.workers_part()
    now_ms = reader.clock.now_ms()
    samples = [worker.samples for worker in states if not worker.fault]
    rate = reader.history.rate_now("subscriber_finished_total", now_ms, {"subscriber": name})
    state, word = subscriber_state(name, samples, rate) if one.subscriber.is_enabled else DISABLED
    links = (subscriber_path(name), "/workers", topic_path(one.dead_letters))
    problems = [problem for problem in problems_of(declarations, states, reader.history, now_ms) if problem.link in links]
    definition = [
        Rule("does", one.subscriber.description), Rule("reads", one.topic, topic_path(one.topic)),
        Rule("may run twice", {"yes": "yes", "no": "no", "unknown": "deduplicated"}[one.subscriber.idempotent]),
        Rule("rejects to", one.dead_letters, topic_path(one.dead_letters)),
    ]  # fmt: skip

    answer = await answer_of(reader, declarations, name, which) if which else None
    return SubscriberPage(
        name, subscriber_path(name), state, word, problems, definition,
        list(charts_of_subscriber(name, reader.history, samples, now_ms)), may_ask, which, answer,
        missing, now_ms, await _waiting(reader, declarations, name),
        offered(
            reader.settings, ("retry", "Retry now…", {"subscriber": name}), ("reset", "Reset…", {"subscriber": name}),
            ("replay", "Replay its dead letters…", {"of": f"subscriber:{name}"}),
        ),
    )  # fmt: skip


async def _waiting(reader: ConsoleReader, declarations: Declarations, name: str) -> WaitingList | Missing:
    one = next(one for one in declarations.workload.subscriptions if one.subscriber.name == name)
    may_ask = not reader.settings.console.hide_values

    async def listed() -> WaitingList:
        found = await waiting_events(reader.settings, one, reader.clock, MOST_WAITING)
        rows = [
            WaitingRow(
                event.position, event.attempts, event.due_ms,
                f"{subscriber_path(name)}?{urlencode({'event': event.position})}#event" if may_ask else "",
            )
            for event in found.soonest
        ]  # fmt: skip
        return WaitingList(rows, found.events, found.is_whole)

    return await reader.redis_part("what waits for a retry", ("waiting", name), listed)


async def answer_of(reader: ConsoleReader, declarations: Declarations, name: str, which: str) -> EventAnswer | Missing:
    """Return what ``events explain`` says of an event of a declared subscriber.

    Args:
        which: Id of the event, its position, or a record key.
    """
    one = next(one for one in declarations.workload.subscriptions if one.subscriber.name == name)

    async def explained() -> EventAnswer:
        scope = SearchScope(reader.clock.now_ms() - SINCE_MS, SEARCHED)
        found = await explain_event(reader.settings, one, which, reader.clock, scope)
        return EventAnswer(
            [
                EventParagraph(verdict, [EventFact(label, text) for label, text in facts.items() if text])
                for verdict, facts in event_sentences(found)
            ],
            []
            if isinstance(found, FoldedEventState)
            else [line_of(event, found.at_ms) for event in found.events if event.timestamp_ms],
        )

    return await reader.redis_part("the event", ("event", name, which), explained)


def charts_of_subscriber(name: str, history: History, workers: Sequence[Samples], now_ms: int) -> Iterator[Chart]:
    """Yield the charts of the last time."""
    of, window = {"subscriber": name}, window_of(history, now_ms)
    finished = _rates(history, "subscriber_finished_total", now_ms, of, window)
    yield _chart("finished", "Finished", "events/s", "Zero while events wait: see the reasons at the top.",
                 history.rate_now("subscriber_finished_total", now_ms, of), finished, window)  # fmt: skip
    seconds = _rates(history, "subscriber_handler_seconds_sum", now_ms, of, window)
    calls = _rates(history, "subscriber_handler_seconds_count", now_ms, of, window)
    means = [None if total is None or not count else total / count for total, count in zip(seconds, calls, strict=True)]
    yield _chart("duration", "Duration of a call", "seconds", "Near the timeout: the dependency of the function is slow.",
                 next((mean for mean in reversed(means) if mean is not None), None), means, window)  # fmt: skip
    for key, title, unit, metric, how, hint in _GAUGES:
        points = history.gauge(metric, now_ms, of, how=how, slots=window.slots, step=window.step)
        found = [value for samples in workers if (value := samples.total(metric, **of)) is not None]
        now = (sum(found) if how == "sum" else max(found)) if found else None
        yield _chart(key, title, unit, hint, now, list(points), window)
    dead = _rates(history, "subscriber_dead_letters_total", now_ms, of, window)
    yield _chart("dead", "Dead letters", "events/s", "Above 0: their topic has reason and trace.",
                 history.rate_now("subscriber_dead_letters_total", now_ms, of), dead, window)  # fmt: skip


_GAUGES: Final[tuple[tuple[str, str, Unit, str, Literal["sum", "max"], str], ...]] = (
    ("running", "Running now", "events", "subscriber_running_events", "sum", "At the concurrency: all slots are in use."),
    ("retrying", "To retry", "events", "subscriber_retrying_events", "sum", "Many: attempts fail."),
    ("waiting", "Waiting", "events", "subscriber_waiting_events", "sum", "Rising: more workers, or a faster function."),
    (
        "oldest",
        "Oldest waiting",
        "seconds",
        "subscriber_oldest_waiting_seconds",
        "max",
        "Rises alone: back-pressure or suspension.",
    ),
)


def _chart(
    key: str, title: str, unit: Unit, hint: str, now: float | None, points: list[float | None], window: Window
) -> Chart:  # fmt: skip
    return Chart(key, title, unit, [Series(title, points)], window.from_ms, window.step_ms, now, hint)


def _rates(history: History, name: str, now_ms: int, of: dict[str, str], window: Window) -> list[float | None]:
    return list(history.rate(name, now_ms, of, slots=window.slots, step=window.step))


def line_of(event: EventState, now_ms: int) -> EventLine:
    """Return the time line of an event: when it was written, its dead letters, now, its next attempt, and when it is rejected."""
    moments = [EventMoment(event.timestamp_ms, "written", "written")]
    for one in event.dead_letters:
        attempts = "" if one.attempts is None else f" after {counted(one.attempts, 'attempt')}"
        what = "finished after all" if one.is_late else f"dead letter{attempts}: {shown(one.reason)}"
        moments.append(EventMoment(one.at_ms, what + (", replayed since" if one.is_replayed else ""), "rejected"))
    tried = event.attempts
    begun = f", {counted(tried.attempts, 'attempt')} so far" if tried is not None else ""
    moments.append(EventMoment(now_ms, f"now: {event.verdict}{begun}", "now"))
    if tried is not None and tried.due_ms is not None:
        moments.append(EventMoment(max(now_ms, tried.due_ms), f"attempt {tried.attempts + 1} is due", "due"))
    if tried is not None and tried.rejected_in_ms is not None:
        what = f"dead letter, if all {tried.max_attempts} attempts fail"
        moments.append(EventMoment(now_ms + tried.rejected_in_ms, what, "limit", is_latest=True))
    moments.sort(key=lambda one: one.at_ms)
    first_ms, last_ms = moments[0].at_ms, moments[-1].at_ms
    name = shown(event.id) if event.id else f"{event.topic}:{event.partition}:{event.offset}"
    return EventLine(name, moments, first_ms, max(last_ms, first_ms + 1_000), now_ms)
