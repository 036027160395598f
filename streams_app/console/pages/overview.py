"""The overview: one sentence, the numbers, and the application as a picture."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Final

import msgspec

from streams_app.console.pages.model import Figure, Problem, State, ratio, ratio_points, window_of
from streams_app.console.pages.paths import fold_path, journal_path, store_path, subscriber_path, view_path
from streams_app.console.pages.problems import problems_of, sentence_of
from streams_app.console.pages.rendering import render
from streams_app.console.pages.topic import topic_path
from streams_app.console.pages.workers import WorkerRow, row_of
from streams_app.console.reading.console_reader import ConsoleReader, Missing, ServerState
from streams_app.console.reading.history import History
from streams_app.console.reading.samples import Samples
from streams_app.fold import Fold
from streams_app.formatting import compact_size, counted, span
from streams_app.requirements.components import components_of
from streams_app.requirements.declarations import Declarations

MOST_PROBLEMS: Final = 50


class Node(msgspec.Struct, frozen=True):
    """A box of the picture.

    Attributes:
        kind: What it is, as a word.
        word: Its state, as a word; empty for a topic.
        link: Path of its page; empty if it has none.
    """

    kind: str
    name: str
    state: State = "unknown"
    word: str = ""
    facts: list[str] = []
    link: str = ""


class Branch(msgspec.Struct, frozen=True):
    """A box with the boxes that read from it.

    Attributes:
        rate: What flows into the box a second; None: unknown.
        unit: What flows.
    """

    node: Node
    branches: list[Branch] = []
    rate: float | None = None
    unit: str = ""


class Overview(msgspec.Struct, frozen=True):
    """The model of the page.

    Attributes:
        sentence: The sentence at the top.
        summary: What the application does now.
        since_ms: Time of the oldest sample of the history.
    """

    app_id: str
    state: State
    sentence: str
    summary: str
    problems: list[Problem]
    more_problems: int
    numbers: list[Figure]
    picture: list[Branch]
    workers: list[WorkerRow]
    missing: list[Missing]
    since_ms: int
    now_ms: int
    left_out: int = 0


def html(model: Overview) -> str:
    """Render the page."""
    return render("overview.html", model=model)


async def collect(reader: ConsoleReader, declarations: Declarations) -> Overview:
    """Collect the page from the workers and the history."""
    states, missing = await reader.workers_part()
    if declarations.fault is not None:
        missing.append(Missing("the subscribers", str(declarations.fault), reader.started_ms))
    return overview_of(declarations, states, reader.history, reader.clock.now_ms(), missing)


def overview_of(
    declarations: Declarations, workers: Sequence[ServerState], history: History, now_ms: int, missing: Sequence[Missing] = ()
) -> Overview:
    """Return the page from what the workers answer and the history."""
    problems = list(problems_of(declarations, workers, history, now_ms))
    problems.sort(key=lambda problem: problem.severity != "critical")
    state: State = "ok" if not problems else "trouble" if problems[0].severity == "critical" else "attention"
    numbers = list(numbers_of(workers, history, now_ms))
    summary = summary_of(workers, numbers, len(declarations.settings.folds))
    picture = Picture(declarations, [one.samples for one in workers if not one.fault], history, now_ms)
    return Overview(
        declarations.settings.app_id, state, sentence_of(problems, workers), summary,
        problems[:MOST_PROBLEMS], max(0, len(problems) - MOST_PROBLEMS), numbers, picture.roots(),
        [row_of(worker, now_ms) for worker in workers], list(missing), history.since_ms(now_ms), now_ms, history.left_out,
    )  # fmt: skip


# Figures


def total(workers: Iterable[ServerState], name: str, /, **labels: str) -> float | None:
    """Return the sum of a gauge over all workers; None if none reports it."""
    found = [value for worker in workers if (value := worker.samples.total(name, **labels)) is not None]
    return sum(found) if found else None


def most(workers: Iterable[Samples], name: str, /, **labels: str) -> float | None:
    """Return the maximum of a gauge over all workers, for a gauge that counts the same in each; None if none reports it."""
    return max((value for samples in workers if (value := samples.total(name, **labels)) is not None), default=None)


def lag_of_folds(workers: Sequence[ServerState]) -> float | None:
    """Return the events that wait to be folded, of all folds; each worker counts all partitions of a fold."""
    folds: dict[str, float] = {}
    for worker in workers:
        for fold, lag in worker.samples.by("lag_events", "fold").items():
            folds[fold] = max(lag, folds.get(fold, 0.0))
    return sum(folds.values()) if folds else None


def numbers_of(workers: Sequence[ServerState], history: History, now_ms: int) -> Iterator[Figure]:
    """Yield the numbers at which people glance."""
    window = window_of(history, now_ms)
    slots, step = window.slots, window.step

    def rates(name: str) -> list[float | None]:
        return list(history.rate(name, now_ms, slots=slots, step=step))

    events, records = history.rate_now("events_folded_total", now_ms), history.rate_now("records_emitted_total", now_ms)
    yield Figure("events", "Events in", events, "events/s", "folded, of all folds", rates("events_folded_total"))
    yield Figure("records", "Records out", records, "records/s", "acknowledged by the broker", rates("records_emitted_total"))
    yield Figure(
        "ratio", "Folded away", ratio(total(workers, "records_emitted_total"), total(workers, "events_emitted_total")), "share",
        "1 - records / events, since the workers started", ratio_points(history, now_ms, window, {}),
    )  # fmt: skip
    groups = list(history.gauge("open_groups", now_ms, slots=slots, step=step))
    yield Figure("groups", "Open groups", total(workers, "open_groups"), "groups", "not emitted yet", groups)
    lag = list(history.gauge("lag_events", now_ms, how="max", slots=slots, step=step))
    yield Figure("lag", "Lag", lag_of_folds(workers), "events", "events not folded yet", lag)


def summary_of(workers: Sequence[ServerState], numbers: Sequence[Figure], folds: int) -> str:
    """Return a sentence about what the application does now."""
    events, records, share = (figure.value for figure in numbers[:3])
    answering = sum(not worker.fault for worker in workers)
    of_all = counted(len(workers), "worker")
    what = f"{of_all if answering == len(workers) else f'{answering} of {of_all} answer'}, {counted(folds, 'fold')}"
    if not events:
        return f"{what}; {'rates are not known yet' if events is None else 'no event arrives at present'}."
    if records is None:
        return f"{what}; {per_second(events)} events a second are folded."
    saved = "" if share is None else f", {share:.1%} folded away so far"
    return f"{what}; {per_second(events)} events a second become {per_second(records)} records a second{saved}."


def per_second(value: float) -> str:
    """Format a rate within a sentence."""
    return f"{value:,.0f}" if value >= 10 or value == 0 else f"{value:.1f}"  # noqa: PLR2004  # one digit after the point below


# The picture


class Picture:
    """Builds the picture of an application: topics, what reads them, and what reads the output of that."""

    def __init__(self, declarations: Declarations, workers: Sequence[Samples], history: History, now_ms: int) -> None:
        self._declared = declarations
        self._settings = declarations.settings
        self._workers = workers
        self._history = history
        self._now_ms = now_ms

    def roots(self) -> list[Branch]:
        """Return the topics that no fold of the application writes, each with what reads it."""
        outputs = {fold.output for fold in self._settings.folds}
        sources = [topic for one in components_of(self._declared.workload) for topic in one.inputs]
        return [self._topic(topic) for topic in dict.fromkeys(sources) if topic not in outputs]

    def _topic(self, topic: str) -> Branch:
        branches = [self._fold(fold) for fold in self._settings.folds if fold.source == topic]
        return Branch(Node("topic", topic, link=topic_path(topic)), [*branches, *self._consumers(topic)])

    def _fold(self, fold: Fold) -> Branch:
        rate = self._rate("events_folded_total", fold=fold.name)
        out = self._rate("records_emitted_total", fold=fold.name)
        output = Branch(
            Node("output topic", fold.output, link=topic_path(fold.output)),
            list(self._consumers(fold.output, fold.name)),
            out,
            "records/s",
        )
        state, word = fold_state(fold, self._workers, rate)
        folded = ratio(self._sum("records_emitted_total", fold=fold.name), self._sum("events_emitted_total", fold=fold.name))
        facts = [_counted(self._sum("open_groups", fold=fold.name), "open group")]
        facts += [f"{folded:.1%} folded away"] if folded is not None else []
        node = Node("fold", fold.name, state, word, [fact for fact in facts if fact], fold_path(fold.name))
        return Branch(node, [output], rate, "events/s")

    def _consumers(self, topic: str, fold: str | None = None) -> Iterator[Branch]:
        for store in self._settings.read_stores:
            if fold in store.folds:
                yield self._store(store.name)
        for one in self._declared.workload.subscriptions:
            if one.topic == topic:
                yield self._subscriber(one.subscriber.name, is_enabled=one.subscriber.is_enabled)
        for view in self._settings.live_of_topics:
            if view.source == topic:
                yield self._view(view.name)
        for journal in self._settings.journals:
            if journal.source == topic:
                yield self._journal(journal.name)

    def _store(self, name: str) -> Branch:
        rate = self._rate("read_store_writes_total", store=name)
        state, word = store_state(name, self._workers, rate)
        facts = _lag(most(self._workers, "read_store_lag_records", store=name))
        return Branch(Node("read store", name, state, word, facts, store_path(name)), [], rate, "values/s")

    def _subscriber(self, name: str, *, is_enabled: bool) -> Branch:
        rate = self._rate("subscriber_finished_total", subscriber=name)
        waiting = self._sum("subscriber_waiting_events", subscriber=name)
        running = self._sum("subscriber_running_events", subscriber=name)
        retrying = self._sum("subscriber_retrying_events", subscriber=name)
        facts = [] if waiting is None else [f"{running or 0:,.0f} running, {retrying or 0:,.0f} to retry", f"lag {waiting:,.0f}"]
        state, word = subscriber_state(name, self._workers, rate) if is_enabled else DISABLED
        return Branch(Node("subscriber", name, state, word, facts, subscriber_path(name)), [], rate, "events/s")

    def _view(self, name: str) -> Branch:
        rate = self._rate("live_events_total", view=name)
        state, word = view_state(name, self._workers, rate)
        facts = [_counted(self._sum("live_pages", view=name), "page"), *_lag(most(self._workers, "live_lag_records", view=name))]
        node = Node("live view", name, state, word, [fact for fact in facts if fact], view_path(name))
        return Branch(node, [], rate, "events/s")

    def _journal(self, name: str) -> Branch:
        lag = most(self._workers, "journal_lag_records", journal=name)
        rate = self._rate("journal_entries_total", journal=name)
        state, word = by_lag(lag, rate, "current")
        size = self._sum("journal_bytes", journal=name)
        facts = ([compact_size(int(size))] if size is not None else []) + _lag(lag)
        return Branch(Node("journal", name, state, word, facts, journal_path(name)), [], rate, "events/s")

    def _rate(self, name: str, /, **labels: str) -> float | None:
        return self._history.rate_now(name, self._now_ms, labels)

    def _sum(self, name: str, /, **labels: str) -> float | None:
        found = [value for samples in self._workers if (value := samples.total(name, **labels)) is not None]
        return sum(found) if found else None


AWAY: Final[tuple[State, str]] = ("trouble", "away")
DISABLED: Final[tuple[State, str]] = ("idle", "disabled")
LAGGING: Final = 1_000
LAGGING_SECONDS: Final = 10.0
"""A lag of more records than the first, and of more than are read in so many seconds, is shown as lagging."""

OVERDUE_SECONDS: Final = 5.0


def fold_state(fold: Fold, workers: Sequence[Samples], rate: float | None) -> tuple[State, str]:
    """Return how a fold is, and the word for it."""
    lag = most(workers, "lag_events", fold=fold.name)
    if lag is None:
        return "unknown", "not seen"
    overdue = most(workers, "oldest_overdue_seconds", fold=fold.name) or 0.0
    if overdue > OVERDUE_SECONDS:
        return "trouble", f"overdue by {span(int(overdue * 1_000))}"
    if most(workers, "merging_backlog", fold=fold.name):
        return "attention", "merging a backlog"
    if lag > max(LAGGING, LAGGING_SECONDS * (rate or 0)):
        return "attention", "lagging"
    return ("ok", "folding") if rate else ("ok", "idle")


def subscriber_state(name: str, workers: Sequence[Samples], rate: float | None) -> tuple[State, str]:
    """Return how a subscriber is, and the word for it."""
    waiting = most(workers, "subscriber_waiting_events", subscriber=name)
    if waiting is None:
        return "unknown", "not seen"
    if most(workers, "subscriber_suspended", subscriber=name):
        return "trouble", "suspended"
    waiting_for = (samples.by("waiting_for", "what", subscriber=name).items() for samples in workers)
    waits = sorted({what for each in waiting_for for what, value in each if value})
    if waits:
        return "attention", f"waits for {', '.join(waits)}"
    return ("ok", "running") if rate or waiting else ("ok", "idle")


def store_state(name: str, workers: Sequence[Samples], rate: float | None) -> tuple[State, str]:
    """Return how a read store is, and the word for it."""
    if most(workers, "up", component=f"read_store.{name}") == 0:
        return AWAY
    return by_lag(most(workers, "read_store_lag_records", store=name), rate, "in sync")


def view_state(name: str, workers: Sequence[Samples], rate: float | None) -> tuple[State, str]:
    """Return how a live view of a topic is, and the word for it."""
    if most(workers, "live_reading", view=name):
        return "attention", "reading"
    return by_lag(most(workers, "live_lag_records", view=name), rate, "current")


def by_lag(lag: float | None, rate: float | None, word: str) -> tuple[State, str]:
    """Return whether a reader lags, as a state and a word; the word is given for one that does not."""
    if lag is None:
        return "unknown", "not seen"
    return ("attention", "lagging") if lag > max(LAGGING, LAGGING_SECONDS * (rate or 0)) else ("ok", word)


def _lag(lag: float | None) -> list[str]:
    return [] if lag is None else [f"lag {lag:,.0f}"]


def _counted(value: float | None, noun: str) -> str:
    return "" if value is None else counted(int(value), noun)
