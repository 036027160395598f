"""The page of a fold: what it does, the last hour, which window would do what, and its open groups."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final, Literal
from urllib.parse import quote, urlencode

import msgspec

from streams_app.console.pages.action_links import ActionLink, offered
from streams_app.console.pages.model import Chart, Problem, Rule, Series, State, Unit, ratio, ratio_points, window_of
from streams_app.console.pages.overview import fold_state
from streams_app.console.pages.paths import fold_path
from streams_app.console.pages.problems import problems_of
from streams_app.console.pages.rendering import render
from streams_app.console.pages.topic import topic_path
from streams_app.console.reading.asking import Asked
from streams_app.console.reading.console_reader import ConsoleReader, Missing, ServerState
from streams_app.console.reading.hiding import Hidden
from streams_app.console.reading.tuning import TuningProgress, TuningResult
from streams_app.fold import RECORD_KEY, Fold
from streams_app.formatting import duration_text, json_line, milliseconds, shown_key, span
from streams_app.operations.group_facts import BoundState
from streams_app.operations.group_text import closing_event_text
from streams_app.operations.groups import groups_in_redis, open_in_redis
from streams_app.operations.listed_group import ListedGroup
from streams_app.operations.newest_records import FoldPartition, fold_partitions
from streams_app.operations.worker_pages import counted_windows
from streams_app.quiet_period import QuietPeriod
from streams_app.requirements.declarations import Declarations
from streams_app.tuning.points import Curve, Point

ROWS: Final = 50
MOST_PAGES: Final = 200
"""Pages of groups that can be turned: 10 000 groups, as ``groups list`` shows at most."""

PARTITIONS: Final = ("no", "yes")
SORTS: Final = {
    "quiet": "due first",
    "oldest": "open for longest",
    "events": "most events",
    "largest": "most changed names",
}
"""Sort orders of the open groups, with their names."""


class GroupRow(msgspec.Struct, frozen=True):
    """An open group in the list.

    Attributes:
        group: Its key as ``groups list`` shows it, or a hash of it.
        link: Path of its page; empty if keys are hidden.
        due_ms: Time at which it closes if no event arrives.
        by: The bound that closes it then.
    """

    group: str
    link: str
    partition: int
    events: int
    names: int
    bytes: int
    first_event_ms: int
    last_event_ms: int
    quiet_in_ms: int
    hold_in_ms: int
    due_ms: int
    by: Literal["quiet_period", "max_hold"]


class GroupList(msgspec.Struct, frozen=True, tag="found"):
    """A page of the open groups.

    Attributes:
        total: Number of open groups of the fold.
        page: Number of this page, from 1.
        pages: Number of pages that can be turned.
    """

    rows: list[GroupRow]
    total: int
    sort: str
    page: int
    pages: int
    first: int


class CurvePoint(msgspec.Struct, frozen=True):
    """What a quiet period would have folded.

    Attributes:
        latency_p99_ms: Time that 99 of 100 events wait at most; None: unknown.
        redis_bytes: Memory of Redis at the peak; None: unknown.
    """

    quiet_ms: int
    ratio: float
    records: int
    is_present: bool
    is_recommended: bool
    latency_p99_ms: int | None
    peak_open_groups: int | None
    redis_bytes: int | None


class WindowCurve(msgspec.Struct, frozen=True, tag="found"):
    """The folding ratio that each quiet period would have given in a time.

    Attributes:
        why: Why one is recommended, or why none is, as ``tune`` says it.
        at_ms: Time at which the curve was computed.
        took_ms: How long it took; None: it was counted by the workers.
        rejected: Number of records that were rejected, and are not in the curve.
        sample_error: Standard error of the ratios, if a sample of the groups was used; None: all groups were.
        command: The command that computes the same.
        auto: What a quiet period that sets itself would have folded; None if it does not, or this is unknown.
    """

    points: list[CurvePoint]
    events: int
    since_ms: int
    until_ms: int
    why: str
    at_ms: int
    took_ms: int | None
    rejected: int
    sample_error: float | None
    command: str
    auto: CurvePoint | None = None


class WindowPart(msgspec.Struct, frozen=True):
    """What is known of the window of a fold.

    Attributes:
        counted: By the gaps that the workers have counted since they started.
        computed: By the events of the last day; None: not computed yet.
        progress: The computation that runs now, maybe of another fold; None: none does.
        now_ratio: What the workers have really folded away since they started; None: they have emitted nothing.
        now_quiet_ms: The quiet period; None if it sets itself.
    """

    counted: WindowCurve | Missing
    computed: WindowCurve | Missing | None
    progress: TuningProgress | None
    now_ratio: float | None
    now_quiet_ms: int | None

    @property
    def curve(self) -> WindowCurve | Missing:
        """The computed curve; without one, the counted one."""
        return self.computed if isinstance(self.computed, WindowCurve) else self.counted


class PartitionPart(msgspec.Struct, frozen=True, tag="found"):
    """How each partition is now, with the highest number of each column."""

    rows: list[FoldPartition]
    most_groups: int
    most_outbox: int
    most_lag: int


class FoldPage(msgspec.Struct, frozen=True):
    """The model of the page.

    Attributes:
        partitions: None if it was not asked for.
    """

    name: str
    path: str
    state: State
    word: str
    problems: list[Problem]
    definition: list[Rule]
    charts: list[Chart]
    window: WindowPart
    partitions: PartitionPart | Missing | None
    groups: GroupList | Missing
    sorts: dict[str, str]
    sort_links: dict[str, str]
    group_link: str
    missing: list[Missing]
    since_ms: int
    now_ms: int
    actions: list[ActionLink] = []


def html(model: FoldPage) -> str:
    """Render the page."""
    return render("fold.html", model=model)


async def collect(reader: ConsoleReader, declarations: Declarations, asked: Asked) -> FoldPage:
    """Collect the page from the workers, the history and Redis."""
    settings = reader.settings
    fold = settings.fold(asked.named("fold", [fold.name for fold in settings.folds], "fold"))
    sort, page = asked.choice("sort", SORTS, "quiet"), asked.number("page", 1, 1, MOST_PAGES)
    states, missing = await reader.workers_part()
    now_ms = reader.clock.now_ms()
    answering = [worker for worker in states if not worker.fault]
    rate = reader.history.rate_now("events_folded_total", now_ms, {"fold": fold.name})
    state, word = fold_state(fold, [worker.samples for worker in answering], rate)
    link = fold_path(fold.name)
    links = (link, "/workers", topic_path(fold.dead_letters))
    problems = [one for one in problems_of(declarations, states, reader.history, now_ms) if one.link in links]
    key = ("groups", fold.name, sort, page)
    groups = await reader.redis_part("the open groups", key, lambda: _groups(reader, fold, sort, page))
    window = await window_of_fold(reader, fold, answering)
    partitions = None
    if asked.choice("partitions", PARTITIONS, "no") == "yes":
        partitions = await reader.redis_part("its partitions", ("partitions", fold.name), lambda: _partitions(reader, fold))
    charts = list(charts_of(reader, fold, answering, now_ms))
    return FoldPage(
        fold.name, link, state, word, problems, list(definition_of(fold)), charts, window, partitions, groups,
        SORTS, {one: f"{link}?{urlencode({'sort': one})}#groups" for one in SORTS}, f"{link}/group",
        missing, reader.history.since_ms(now_ms), now_ms,
        offered(settings, ("flush-all", "Flush all groups…", {"fold": fold.name})),
    )  # fmt: skip


# Definition


def definition_of(fold: Fold) -> Iterator[Rule]:
    """Yield what a fold does, in plain words."""
    yield Rule("reads", fold.source + ("" if fold.format == "json" else f", as {fold.format}"), topic_path(fold.source))
    if fold.only or fold.source_filter is not None or fold.dedupe_by is not None:
        yield Rule("skips", "; ".join(_skipped_texts(fold)))
    yield Rule("groups by", _key_text(fold))
    yield Rule("keeps", _kept_text(fold))
    yield Rule("closes a group", "; ".join(_closing_texts(fold)))
    yield Rule("writes", fold.output, topic_path(fold.output))
    yield Rule("rejects to", fold.dead_letters, topic_path(fold.dead_letters))


def _skipped_texts(fold: Fold) -> Iterator[str]:
    for field, values in fold.only.items():
        yield f"events whose {field} is not {' or '.join(map(json_line, values))}"
    if fold.source_filter is not None:
        yield "events for which a function returns false"
    if fold.dedupe_by is not None:
        id_text = "a function" if callable(fold.dedupe_by) else fold.dedupe_by
        yield f"events whose id ({id_text}) is in their open group already"


def _key_text(fold: Fold) -> str:
    if callable(fold.group_key):
        return "a function"
    return "the record key" if fold.group_key == RECORD_KEY else " and ".join(fold.group_fields)


def _kept_text(fold: Fold) -> str:
    changed = "the names that a function returns" if callable(fold.changed) else f"the names in {fold.changed}"
    if fold.kept == "aggregates":
        pairs = ", ".join(f"{how} of {name}" for name, how in (fold.aggregates or {}).items())
        return f"{pairs}, for {changed}"
    return {"names": changed, "last": f"{changed}, with the last value of each", "events": "whole events"}[fold.kept]


def _closing_texts(fold: Fold) -> Iterator[str]:
    yield f"once it was quiet for {_quiet_text(fold)}"
    yield f"once it was open for {span(fold.max_hold_ms)}"
    if fold.max_events:
        yield f"with its {fold.max_events:,} events"
    if fold.keeps_events:
        yield f"before it exceeds {fold.max_bytes:,} bytes"
    else:
        yield f"before it exceeds {fold.max_changed:,} names"
    if fold.close_when is not None:
        values = None if callable(fold.close_when) else {path: list(values) for path, values in fold.close_when.items()}
        yield f"at an event {closing_event_text(BoundState('close_when', 'event', values=values))}"


def _quiet_text(fold: Fold) -> str:
    if fold.auto_quiet is not None:
        at_least_ms, at_most_ms = milliseconds(fold.auto_quiet.at_least), fold.quiet_period_ms
        return f"a time that sets itself, from {duration_text(at_least_ms)} to {duration_text(at_most_ms)}"
    return "as long as its last event says" if isinstance(fold.quiet_period, QuietPeriod) else span(fold.quiet_period_ms)


# Charts


def charts_of(reader: ConsoleReader, fold: Fold, workers: Sequence[ServerState], now_ms: int) -> Iterator[Chart]:
    """Yield the charts of the last time."""
    history, of = reader.history, {"fold": fold.name}
    window = window_of(history, now_ms)
    slots, step = window.slots, window.step

    def chart(key: str, title: str, unit: Unit, hint: str, now: float | None, *lines: Series) -> Chart:
        return Chart(key, title, unit, list(lines), window.from_ms, window.step_ms, now, hint)

    def rate(name: str) -> list[float | None]:
        return list(history.rate(name, now_ms, of, slots=slots, step=step))

    def gauge(name: str, how: Literal["sum", "max"] = "sum") -> list[float | None]:
        return list(history.gauge(name, now_ms, of, how=how, slots=slots, step=step))

    def last(name: str, how: Literal["sum", "max"] = "sum") -> float | None:
        found = [value for worker in workers if (value := worker.samples.total(name, **of)) is not None]
        return (sum(found) if how == "sum" else max(found)) if found else None

    events, records = rate("events_folded_total"), rate("records_emitted_total")
    yield chart("in", "Events in", "events/s", "Zero while lag rises: see the reasons at the top.",
                history.rate_now("events_folded_total", now_ms, of), Series("events", events))  # fmt: skip
    yield chart("out", "Records out", "records/s", "Acknowledged by the broker.",
                history.rate_now("records_emitted_total", now_ms, of), Series("records", records))  # fmt: skip
    ratios = ratio_points(history, now_ms, window, of)
    yield chart("ratio", "Folded away", "share", "1 - records / events that they contain.",
                next((point for point in reversed(ratios) if point is not None), None), Series("folded away", ratios))  # fmt: skip
    delays = _delays(rate("emit_delay_seconds_sum"), rate("emit_delay_seconds_count"))
    yield chart("delay", "Delay after due", "seconds", "From the time at which a group is due to its emission, on average.",
                next((point for point in reversed(delays) if point is not None), None), Series("delay", delays))  # fmt: skip
    yield chart("groups", "Open groups", "groups", "Each costs about 250 bytes of Redis.", last("open_groups"),
                Series("open groups", gauge("open_groups")))  # fmt: skip
    yield chart("overdue", "Oldest overdue", "seconds", "Above a few ticks: emission is behind.",
                last("oldest_overdue_seconds", "max"), Series("overdue", gauge("oldest_overdue_seconds", "max")))  # fmt: skip
    yield chart("lag", "Lag", "events", "Rising: add workers up to the number of partitions.", last("lag_events", "max"),
                Series("lag", gauge("lag_events", "max")))  # fmt: skip
    yield chart("outbox", "Not acknowledged", "records", "Stays above 0: the broker does not acknowledge.", last("outbox_records"),
                Series("records", gauge("outbox_records")))  # fmt: skip


def _delays(seconds: Sequence[float | None], counts: Sequence[float | None]) -> list[float | None]:
    return [None if total is None or not count else total / count for total, count in zip(seconds, counts, strict=True)]


# Window


async def window_of_fold(reader: ConsoleReader, fold: Fold, workers: Sequence[ServerState]) -> WindowPart:
    """Collect the part from the metrics of workers, and from the last computation."""
    counted = await reader.part("the window", ("window", fold.name), lambda: _counted(reader, fold, workers))
    result, runs = reader.tuning.results.get(fold.name), reader.tuning
    records, events = (_total(workers, name, fold) for name in ("records_emitted_total", "events_emitted_total"))
    computed = None if result is None else _computed(fold, result)
    return WindowPart(counted, computed, runs.progress, ratio(records, events), _fixed_ms(fold))


def _total(workers: Sequence[ServerState], name: str, fold: Fold) -> float | None:
    found = [total for worker in workers if (total := worker.samples.total(name, fold=fold.name)) is not None]
    return sum(found) if found else None


async def _counted(reader: ConsoleReader, fold: Fold, workers: Sequence[ServerState]) -> WindowCurve:
    now_ms = reader.clock.now_ms()
    curve, advice = counted_windows([worker.page for worker in workers], fold, now_ms)
    why = advice.why
    if isinstance(fold.quiet_period, QuietPeriod):
        why += " Events set their own quiet period: the candidates are values for the default."
    if fold.auto_quiet is not None:
        why += " The quiet period of this fold sets itself: the candidates are fixed ones."
    points = points_of(curve, fold, advice.quiet_ms)
    error = curve.sample.ratio_error if curve.sample else None
    return WindowCurve(
        points, curve.events, curve.from_ms, curve.to_ms, why, now_ms, None, 0, error, f"streams-app tune --fold {fold.name} --live"
    )


def _computed(fold: Fold, result: TuningResult) -> WindowCurve | Missing:
    if result.found is None:
        return Missing("the curve of the last day", result.fault, result.at_ms)
    curve, advice, _, counts = result.found
    return WindowCurve(
        points_of(curve, fold, advice.quiet_ms), curve.events, curve.from_ms, curve.to_ms, advice.why, result.at_ms, result.took_ms,
        counts.rejected.total(), curve.sample.ratio_error if curve.sample else None, f"streams-app tune --fold {fold.name}",
        None if curve.auto is None else _curve_point(curve.auto.point),
    )  # fmt: skip


def points_of(curve: Curve, fold: Fold, recommended_ms: int | None) -> list[CurvePoint]:
    """Return the points of a curve for the page."""
    present_ms = _fixed_ms(fold)
    return [
        _curve_point(one, is_present=one.quiet_ms == present_ms, is_recommended=one.quiet_ms == recommended_ms)
        for one in curve.points
    ]


def _curve_point(one: Point, *, is_present: bool = False, is_recommended: bool = False) -> CurvePoint:
    return CurvePoint(
        one.quiet_ms, one.ratio, one.records, is_present, is_recommended, one.latency_p99_ms, one.peak_open_groups, one.redis_bytes
    )


def _fixed_ms(fold: Fold) -> int | None:
    """Return the quiet period of a fold, or its default if events set it, in ms; None if it sets itself."""
    return fold.default_quiet_period_ms if fold.auto_quiet is None else None


# Partitions and groups


async def _partitions(reader: ConsoleReader, fold: Fold) -> PartitionPart:
    rows = await fold_partitions(reader.settings, fold)
    most = [max(numbers, default=0) for numbers in zip(*((one.open_groups, one.outbox, one.lag) for one in rows), strict=True)]
    return PartitionPart(rows, *most)


async def _groups(reader: ConsoleReader, fold: Fold, sort: str, page: int) -> GroupList:
    settings = reader.settings
    rows = await groups_in_redis(settings, fold.name, page * ROWS, sort)
    total = await open_in_redis(settings, fold.name) if len(rows) == page * ROWS else len(rows)
    now_ms, hidden = reader.clock.now_ms(), Hidden(settings)
    found = [group_row(row, fold, hidden, now_ms) for row in rows[(page - 1) * ROWS :]]
    return GroupList(found, total, sort, page, min(MOST_PAGES, max(1, -(-total // ROWS))), (page - 1) * ROWS + 1)


def group_row(row: ListedGroup, fold: Fold, hidden: Hidden, now_ms: int) -> GroupRow:
    """Return a row of the list, which was read at ``now_ms``."""
    key = shown_key(row.key)
    return GroupRow(
        hidden.key(key), "" if hidden.is_on else group_path(fold.name, key), row.partition, row.events, row.names, row.bytes,
        row.first_event_ms, row.last_event_ms, row.quiet_in_ms, row.hold_in_ms, now_ms + min(row.quiet_in_ms, row.hold_in_ms),
        "quiet_period" if row.quiet_in_ms <= row.hold_in_ms else "max_hold",
    )  # fmt: skip


def group_path(fold: str, key: str) -> str:
    """Return the path of the page of a group."""
    return f"{fold_path(fold)}/group?{urlencode({'key': key}, quote_via=quote)}"
