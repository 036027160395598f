"""The page of a group: why it is open, its events and bounds on a time line, and its last records."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Final, Literal, NamedTuple
from urllib.parse import quote, urlencode

import msgspec
import orjson
from msgspec.structs import replace

from streams_app.codec import canonical_bytes, keys_typed
from streams_app.console.pages.action_links import ActionLink, offered
from streams_app.console.pages.fold import group_path
from streams_app.console.pages.paths import fold_path
from streams_app.console.pages.rendering import render
from streams_app.console.reading.asking import Asked, PageError
from streams_app.console.reading.console_reader import ConsoleReader, Missing
from streams_app.console.reading.hiding import Hidden
from streams_app.fold import Fold
from streams_app.formatting import span
from streams_app.operations.explain_group import explain
from streams_app.operations.folded_events import RecordRange
from streams_app.operations.group_facts import GroupDrop, GroupExplanation, GroupState
from streams_app.operations.group_text import group_sentences
from streams_app.operations.listed_group import ListedGroup
from streams_app.operations.newest_records import GroupEvents, TopicRecord, events_in, member_of_key, newest_records
from streams_app.requirements.declarations import Declarations
from streams_app.settings import Settings

SHOWN_EVENTS: Final = 20
SHOWN_RECORDS: Final = 12
READ_RECORDS: Final = 5_000
"""Number of records of the output that are read to find those of the group."""

SHOWN_NAMES: Final = 12
QUIETS_BACK: Final = 12
"""The time line begins at most this many quiet periods before the open fold."""


class Fact(msgspec.Struct, frozen=True):
    """A labelled line of ``groups explain``."""

    label: str
    text: str


class Bound(msgspec.Struct, frozen=True):
    """A time at which a group closes.

    Attributes:
        is_next: Whether this bound closes the group, if no event arrives.
    """

    name: Literal["quiet_period", "max_hold"]
    what: str
    at_ms: int
    is_next: bool


class OpenWindow(msgspec.Struct, frozen=True):
    """The open fold of a group in one partition."""

    partition: int
    events: int
    names: int
    bytes: int
    first_offset: int
    last_offset: int
    first_event_ms: int
    last_event_ms: int
    bounds: list[Bound]


class EventRow(msgspec.Struct, frozen=True):
    """An event of the open fold; ``changed`` is None if the fold keeps whole events, or if values are hidden."""

    at_ms: int
    offset: int
    changed: list[str] | None


class EventList(msgspec.Struct, frozen=True, tag="found"):
    """The events of the open fold.

    Attributes:
        times: Times of all events that were read.
        rows: The newest ones, the newest first.
        is_whole: Whether these are all events of the open fold.
    """

    times: list[int]
    rows: list[EventRow]
    source: str
    is_whole: bool


class GroupPart(msgspec.Struct, frozen=True):
    """What is known of the group in one partition; without a ``window`` it is not open there."""

    verdict: str
    facts: list[Fact]
    window: OpenWindow | None = None
    events: EventList | Missing | None = None


class RecordRow(msgspec.Struct, frozen=True):
    """A folded record of the group.

    Attributes:
        link: Path of its page; empty if keys are hidden.
    """

    fold_id: str
    link: str
    at_ms: int
    reason: str
    events: int
    first_event_ms: int
    last_event_ms: int
    changed: list[str] | None


class RecordList(msgspec.Struct, frozen=True, tag="found"):
    """The last records of the group.

    Attributes:
        read: Number of records of the output that were read to find them.
        is_whole: Whether the topic has no others.
    """

    rows: list[RecordRow]
    topic: str
    read: int
    is_whole: bool


class GroupPage(msgspec.Struct, frozen=True):
    """The model of the page.

    Attributes:
        explanation: What ``groups explain --json`` prints; None: it cannot be read now.
        parts: The same in sentences, for each partition that has the group.
        from_ms: Begin of the time line.
        actions: What can be done with it.
    """

    fold: str
    fold_link: str
    group: str
    link: str
    explanation: GroupExplanation | None
    missing: list[Missing]
    parts: list[GroupPart]
    records: RecordList | Missing
    now_ms: int
    from_ms: int
    actions: list[ActionLink]


def html(model: GroupPage) -> str:
    """Render the page."""
    return render("group.html", model=model, time_line=time_line)


async def collect(reader: ConsoleReader, _: Declarations, asked: Asked) -> GroupPage:
    """Collect the page from Redis, a journal or the source, and the output topic."""
    settings = reader.settings
    fold = settings.fold(asked.named("fold", [fold.name for fold in settings.folds], "fold"))
    typed = asked.text("key")
    if not typed:
        raise PageError(400, "Which group? Write its key as the list of open groups shows it")
    hidden = Hidden(settings)
    found = await reader.redis_part("the group", ("group", fold.name, typed), lambda: explain(settings, fold, typed, reader.clock))
    states = () if isinstance(found, Missing) else found.states
    member = member_of_key(states[0].key) if states else keys_typed(typed)[0]
    records = await reader.part(
        "its records", ("records", fold.name, typed), lambda: _records(reader, fold, canonical_bytes(member), typed, hidden)
    )
    explanation = None if isinstance(found, Missing) else without_values(found, hidden)
    parts = [] if explanation is None else await _parts(reader, fold, typed, explanation, states, hidden)
    now_ms = reader.clock.now_ms()
    return GroupPage(
        fold.name, fold_path(fold.name), hidden.key(typed), "" if hidden.is_on else group_path(fold.name, typed), explanation,
        [found] if isinstance(found, Missing) else [], parts, records, now_ms, begin_of(fold, parts, now_ms),
        _actions(settings, fold, typed) if explanation is None or any(part.window is not None for part in parts) else [],
    )  # fmt: skip


def _actions(settings: Settings, fold: Fold, typed: str) -> list[ActionLink]:
    group = {"fold": fold.name, "key": typed}
    return offered(settings, ("flush", "Flush…", group), ("drop", "Drop…", group))


def without_values(found: GroupExplanation, hidden: Hidden) -> GroupExplanation:
    """Return an explanation as it may be shown: if values are hidden, without keys, names and what users wrote."""
    if not hidden.is_on:
        return found
    key = hidden.key(found.group)
    states = tuple(
        replace(
            state, key=key, names=(), last_drop=_without_reason(state.last_drop),
            open=None if state.open is None else replace(state.open, group=key, key=key),
        )
        for state in found.states
    )  # fmt: skip
    drops = tuple(filter(None, map(_without_reason, found.drops)))
    return replace(found, group=key, states=states, drops=drops, journal="")


def _without_reason(drop: GroupDrop | None) -> GroupDrop | None:
    return None if drop is None else replace(drop, reason="(hidden)")


def begin_of(fold: Fold, parts: Sequence[GroupPart], now_ms: int) -> int:
    """Return the beginning of the time line: some quiet periods before the open fold, so that its last records are seen, too."""
    opened = min((part.window.first_event_ms for part in parts if part.window is not None), default=now_ms)
    back_ms = max(QUIETS_BACK * fold.quiet_period_ms, 2 * (now_ms - opened))
    return min(opened, now_ms) - min(back_ms, 10 * fold.max_hold_ms)


async def _parts(
    reader: ConsoleReader, fold: Fold, typed: str, explanation: GroupExplanation, states: Sequence[GroupState], hidden: Hidden
) -> list[GroupPart]:
    parts = []
    rows = [state.open for state in states] or [None]
    for (verdict, facts), row in zip(group_sentences(explanation), rows, strict=True):
        lines = [Fact(label, text.removesuffix(" ()") if hidden.is_on else text) for label, text in facts.items() if text]
        if row is None:
            parts.append(GroupPart(verdict, lines))
            continue
        events = await _events(reader, fold, typed, row, hidden)
        parts.append(GroupPart(verdict, lines, window_of(row, explanation.at_ms), events))
    return parts


async def _events(reader: ConsoleReader, fold: Fold, typed: str, row: ListedGroup, hidden: Hidden) -> EventList | Missing:
    key = ("events", fold.name, typed, row.partition)
    where = RecordRange(fold.name, fold.source, row.partition, row.first_offset, row.last_offset)
    members = [member_of_key(row.key)]
    events = await reader.part("its events", key, lambda: events_in(reader.settings, fold, where, typed, members))
    return events if isinstance(events, Missing) else event_list(events, hidden)


def window_of(row: ListedGroup, at_ms: int) -> OpenWindow:
    """Return the open fold of a group that was read at ``at_ms``."""
    quiet_at, hold_at = at_ms + row.quiet_in_ms, at_ms + row.hold_in_ms
    bounds = [
        Bound("quiet_period", "if no event arrives", quiet_at, quiet_at <= hold_at),
        Bound("max_hold", "at the latest", hold_at, hold_at < quiet_at),
    ]
    bounds.sort(key=lambda bound: bound.at_ms)
    return OpenWindow(
        row.partition, row.events, row.names, row.bytes, row.first_offset, row.last_offset, row.first_event_ms, row.last_event_ms,
        bounds,
    )  # fmt: skip


def event_list(found: GroupEvents, hidden: Hidden, most: int = SHOWN_EVENTS) -> EventList:
    """Return events for a page, with the newest ``most`` in rows."""
    rows = [
        EventRow(event.at_ms, event.offset, None if hidden.is_on or event.changed is None else list(event.changed[:SHOWN_NAMES]))
        for event in reversed(found.events[-most:])
    ]
    return EventList([event.at_ms for event in found.events], rows, found.source, found.is_whole)


async def _records(reader: ConsoleReader, fold: Fold, key: bytes, typed: str, hidden: Hidden) -> RecordList:
    found = await newest_records(
        reader.settings, fold.output, lambda record: record.key == key, most=SHOWN_RECORDS, limit=READ_RECORDS, key=key
    )
    rows = [row for record in found.records if (row := record_row(fold, record, typed, hidden)) is not None]
    return RecordList(rows, fold.output, found.read, found.is_whole)


def record_path(fold: str, fold_id: str, key: str) -> str:
    """Return the path of the page of a record."""
    return f"{fold_path(fold)}/record?{urlencode({'id': fold_id, 'key': key}, quote_via=quote)}"


def record_row(fold: Fold, record: TopicRecord, typed: str, hidden: Hidden) -> RecordRow | None:
    """Return a folded record for the page; None if it is not one."""
    try:
        value = orjson.loads(record.value or b"")
        about = value["fold"]
        changed = value.get(fold.changed_as or fold.changed_field)
        names = (
            None if hidden.is_on or not isinstance(changed, list | dict) else [str(name) for name in list(changed)[:SHOWN_NAMES]]
        )
        fold_id = str(about["id"])
        return RecordRow(
            fold_id, "" if hidden.is_on else record_path(fold.name, fold_id, typed), record.at_ms, str(about["reason"]),
            int(about["events"]), int(about["first_event_ms"]), int(about["last_event_ms"]), names,
        )  # fmt: skip
    except (ValueError, TypeError, KeyError):
        return None


WIDTH: Final = 1_000.0
BUCKETS: Final = 160
AHEAD: Final = 0.12
"""Part of the time line behind the time at which the group closes."""

_ROUND_MS: Final = (
    (1_000, (1, 2, 5, 10, 15, 30)), (60_000, (1, 2, 5, 10, 15, 30)), (3_600_000, (1, 2, 3, 6, 12)), (86_400_000, (1, 2, 7)),
)  # fmt: skip
_STEPS_MS: Final = tuple(
    unit * count
    for unit, counts in (
        (1_000, (1, 2, 5, 10, 15, 30)),
        (60_000, (1, 2, 5, 10, 15, 30)),
        (3_600_000, (1, 2, 3, 6, 12)),
        (86_400_000, (1, 2, 7)),
    )
    for count in counts
)
_MOST_TICKS: Final = 7


class Bar(NamedTuple):
    """A span of time with a title."""

    x: float
    width: float
    title: str


class Tick(NamedTuple):
    """A moment with a text."""

    x: float
    text: str


class TimeLine(NamedTuple):
    """What is drawn, in a width of 1 000.

    Attributes:
        records: Records of the group, from their first to their last event.
        events: Events of the open fold: position and height from 0 to 1.
        open: The open fold, from its first event to now.
        wait: From now to the time at which it closes.
        now: Position of now.
        closes: Position of that time; None if the group is not open.
        axis: Marks relative to now.
    """

    records: list[Bar]
    events: list[tuple[float, float]]
    open: Bar | None
    wait: Bar | None
    now: float
    closes: float | None
    axis: list[Tick]


def time_line(page: GroupPage, part: GroupPart) -> TimeLine:
    """Return the time line of a group in one partition."""
    closes_ms = None if part.window is None else max(page.now_ms, next(one.at_ms for one in part.window.bounds if one.is_next))
    begin_ms = page.from_ms
    end_ms = closes_ms or page.now_ms
    end_ms += max(1_000, int((end_ms - begin_ms) * AHEAD))

    def x(at_ms: int) -> float:
        return round(WIDTH * min(1.0, max(0.0, (at_ms - begin_ms) / (end_ms - begin_ms))), 1)

    def bar(first_ms: int, last_ms: int, title: str) -> Bar:
        return Bar(x(first_ms), max(3.0, round(x(last_ms) - x(first_ms), 1)), title)

    records = [
        bar(row.first_event_ms, row.last_event_ms, f"{row.events:,} events, {row.reason}")
        for row in (page.records.rows if isinstance(page.records, RecordList) else [])
        if row.last_event_ms >= begin_ms
    ]
    times = part.events.times if isinstance(part.events, EventList) else []
    opened = None if part.window is None else bar(part.window.first_event_ms, page.now_ms, "open")
    wait = None if closes_ms is None else bar(page.now_ms, closes_ms, "closes if no event arrives")
    return TimeLine(
        records, heights([x(at_ms) for at_ms in times if at_ms >= begin_ms]), opened, wait, x(page.now_ms),
        None if closes_ms is None else x(closes_ms), axis(begin_ms, end_ms, page.now_ms),
    )  # fmt: skip


def heights(positions: Sequence[float]) -> list[tuple[float, float]]:
    """Return events as bars: those at about the same position are one bar, the higher the more there are."""
    counts = Counter(int(position * BUCKETS / WIDTH) for position in positions)
    most = max(counts.values(), default=1)
    return [((bucket + 0.5) * WIDTH / BUCKETS, 0.35 + 0.65 * count / most) for bucket, count in sorted(counts.items())]


def axis(begin_ms: int, end_ms: int, now_ms: int) -> list[Tick]:
    """Return marks at round distances from now."""
    step_ms = next((step for step in _STEPS_MS if (end_ms - begin_ms) / step <= _MOST_TICKS), _STEPS_MS[-1])
    first, last = -((now_ms - begin_ms) // step_ms), (end_ms - now_ms) // step_ms
    if last - first > 3 * _MOST_TICKS:
        return []
    found = []
    for number in range(first, last + 1):
        at_ms = now_ms + number * step_ms
        text = "now" if not number else f"{span(abs(number) * step_ms)} ago" if number < 0 else f"in {span(number * step_ms)}"
        found.append(Tick(round(WIDTH * (at_ms - begin_ms) / (end_ms - begin_ms), 1), text.replace(".0 s", " s")))
    return found
