"""The page of a journal: its days and largest keys, and the events of one key, day by day or of one folded record."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final
from urllib.parse import quote, urlencode

import msgspec

from streams_app.console.pages.model import Chart, Problem, Rule, State, line_chart, window_of
from streams_app.console.pages.overview import by_lag, most
from streams_app.console.pages.paths import journal_path
from streams_app.console.pages.problems import problems_of
from streams_app.console.pages.rendering import render
from streams_app.console.pages.topic import Kind, summary_of, topic_path, value_text
from streams_app.console.reading.asking import Asked, PageError
from streams_app.console.reading.console_reader import ConsoleReader, Missing
from streams_app.console.reading.hiding import Hidden
from streams_app.console.reading.history import History
from streams_app.console.reading.samples import Samples
from streams_app.errors import ConfigurationError, CursorError
from streams_app.formatting import compact_size, duration_text, escaped, milliseconds, shown
from streams_app.operations.folded_events import parse_fold_id
from streams_app.operations.journal import (
    KeyEvent,
    check_begin,
    days_of,
    events_of_key,
    events_of_record,
    journal_status,
    largest_keys,
    typed_key,
)
from streams_app.operations.journal import (
    summary_of as summary_of_journal,
)
from streams_app.requirements.declarations import Declarations
from streams_app.settings import JournalSettings, Settings

SHOWN_DAYS: Final = 60
SHOWN_KEYS: Final = 20
SHOWN: Final = 100
"""Maximum number of entries and gaps on one page."""

READ_BYTES: Final = 2_000_000
SHOWN_NAMES: Final = 40


class JournalDay(msgspec.Struct, frozen=True):
    """What a journal has of a UTC day, as ``journal list`` shows it.

    Attributes:
        packed: Number of compressed segments.
        lost: Number of offsets that retention removed from the topic before they were read.
    """

    day: str
    segments: int
    packed: int
    events: int
    received_bytes: int
    stored_bytes: int
    lost: int


class LargestKey(msgspec.Struct, frozen=True):
    """A key with many bytes.

    Attributes:
        key: The key as it is typed, or a hash of it; empty for events without a key.
        received_bytes: Lower bound.
        link: Path on which it is read; empty if it cannot be.
    """

    key: str
    received_bytes: int
    link: str


class JournalContents(msgspec.Struct, frozen=True, tag="found"):
    """What a journal holds.

    Attributes:
        says: The sentence of ``journal list``.
        more_days: Number of older days that are not shown.
        largest_day: Received bytes of the day that has most.
    """

    says: str
    days: list[JournalDay]
    more_days: int
    largest_day: int
    keys: list[LargestKey]


class JournalRow(msgspec.Struct, frozen=True):
    """An event of a key, or offsets that the journal does not have.

    Attributes:
        day: UTC day of an event; empty for a gap.
        remark: Of a gap: why; of an event of a folded record that is not in the record: why not.
        changed: Of an event of a folded record: names that it changed; None: unknown, or values are hidden.
        value_bytes: Size of the value as it was produced.
        key: Record key, of events without a usable key; otherwise empty.
    """

    is_gap: bool
    day: str
    at_ms: int
    partition: int
    first: int
    last: int
    remark: str
    kind: Kind
    value: str
    summary: str
    value_bytes: int
    is_cut: bool
    changed: list[str] | None
    key: str


class JournalEntries(msgspec.Struct, frozen=True, tag="found"):
    """Events of a key.

    Attributes:
        next: Cursor after them; empty for events of a folded record, and if there is nothing to continue from.
        next_link: Path of the page that begins there; empty if there is none.
        is_caught_up: Whether there are no others at present.
        remarks: What is not shown and why.
    """

    rows: list[JournalRow]
    next: str
    next_link: str
    is_caught_up: bool
    remarks: list[str]


class JournalConsolePage(msgspec.Struct, frozen=True):
    """The model of the page.

    Attributes:
        asked: Key that was asked for, as it was typed; empty if none was, or if values are hidden.
        is_unkeyed: Whether events without a key were asked for.
        begin: Where reading begins, as ``--from`` of ``journal read`` takes it.
        fold_id: The folded record of which events were asked for; empty: all events of the key.
        link: Path on which all events of this key are read; empty if nothing was asked.
        command: The command that prints the same; empty if nothing was asked.
    """

    name: str
    path: str
    state: State
    word: str
    problems: list[Problem]
    definition: list[Rule]
    charts: list[Chart]
    contents: JournalContents | Missing
    may_ask: bool
    asked: str
    is_unkeyed: bool
    begin: str
    fold_id: str
    entries: JournalEntries | Missing | None
    link: str
    command: str
    missing: list[Missing]
    now_ms: int


@dataclass(frozen=True, slots=True)
class _Question:
    """What was asked for: the events of a key, all from a start on, or those of a folded record."""

    key: str
    is_unkeyed: bool
    begin: str
    fold_id: str

    @property
    def is_asked(self) -> bool:
        return self.is_unkeyed or bool(self.key)

    def link(self, journal: JournalSettings, begin: str = "") -> str:
        """Return the path on which the same key is read from another start on; empty if none was asked for."""
        return key_link(journal, self.key, is_unkeyed=self.is_unkeyed, begin=begin) if self.is_asked else ""

    def command(self, journal: JournalSettings) -> str:
        """Return the command that prints the same."""
        if not self.is_asked:
            return ""
        key = "--unkeyed" if self.is_unkeyed else shlex.quote(escaped(self.key))
        where = f" --fold {shlex.quote(escaped(self.fold_id))}" if self.fold_id else f" --from {shlex.quote(escaped(self.begin))}"
        return f"streams-app journal read {key} --journal {journal.name}{'' if where == ' --from earliest' else where}"


def key_link(journal: JournalSettings, key: str, *, is_unkeyed: bool = False, begin: str = "") -> str:
    """Return the path on which the events of a key are read."""
    query = {"unkeyed": "yes"} if is_unkeyed else {"key": key}
    return f"{journal_path(journal.name)}?{urlencode(query | ({'from': begin} if begin else {}), quote_via=quote)}"


def html(model: JournalConsolePage) -> str:
    """Render the page."""
    return render("journal.html", model=model)


async def collect(reader: ConsoleReader, declarations: Declarations, asked: Asked) -> JournalConsolePage:
    """Collect the page from the workers, the history and Redis."""
    known = {one.name: one for one in reader.settings.journals}
    journal = known[asked.named("journal", known, "journal")]
    hidden, now_ms = Hidden(reader.settings), reader.clock.now_ms()
    question = _question(asked, now_ms, may_ask=not hidden.is_on)
    states, missing = await reader.workers_part()
    samples = [worker.samples for worker in states if not worker.fault]
    rate = reader.history.rate_now("journal_entries_total", now_ms, {"journal": journal.name})
    state, word = by_lag(most(samples, "journal_lag_records", journal=journal.name), rate, "current")
    path = journal_path(journal.name)
    problems = [one for one in problems_of(declarations, states, reader.history, now_ms) if one.link in (path, "/workers")]
    contents = await reader.redis_part("its days", ("journal", journal.name), lambda: _contents(reader.settings, journal, hidden))
    entries = None
    if question.is_asked:
        key = ("journal events", journal.name, question)
        entries = await reader.redis_part("its events", key, lambda: _entries(reader, journal, question))
    return JournalConsolePage(
        journal.name, path, state, word, problems, list(definition_of(journal)),
        list(charts_of_journal(journal.name, reader.history, samples, now_ms)), contents, not hidden.is_on, question.key,
        question.is_unkeyed, question.begin, question.fold_id, entries, question.link(journal), question.command(journal),
        missing, now_ms,
    )  # fmt: skip


def _question(asked: Asked, now_ms: int, *, may_ask: bool) -> _Question:
    """Return what was asked for.

    Raises:
        PageError: The begin or the fold id is invalid (400).
    """
    begin, fold_id = asked.text("from") or "earliest", asked.text("fold")
    try:
        check_begin(begin, now_ms)
        if fold_id:
            parse_fold_id(fold_id)
    except CursorError as error:
        raise PageError(400, f"from: {error}") from error
    except ConfigurationError as error:
        raise PageError(400, "fold is not a fold id: the header fold-id of a record") from error
    is_unkeyed = may_ask and asked.choice("unkeyed", ("", "yes"), "") == "yes"
    key = asked.text("key") if may_ask and not is_unkeyed else ""
    return _Question(key, is_unkeyed, begin, fold_id if key else "")


def definition_of(journal: JournalSettings) -> Iterator[Rule]:
    """Yield the declaration in plain words."""
    yield Rule("keeps", f"every event of {journal.source}", topic_path(journal.source))
    by = "the record key" if journal.is_by_record_key else ", ".join(journal.key_fields)
    yield Rule("by", by if journal.format == "json" else f"{by} ({journal.format})")
    yield Rule("for", f"{duration_text(milliseconds(journal.keep))}, at most {compact_size(journal.max_bytes)} in Redis")


def charts_of_journal(name: str, history: History, workers: Sequence[Samples], now_ms: int) -> Iterator[Chart]:
    """Yield the charts of the last time."""
    of, window = {"journal": name}, window_of(history, now_ms)
    slots, step = window.slots, window.step
    entries = history.rate("journal_entries_total", now_ms, of, slots=slots, step=step)
    now = history.rate_now("journal_entries_total", now_ms, of)
    yield line_chart("entries", "Stored", "events/s", "Zero while the lag rises: see the reasons at the top.", entries, window, now)
    lag = history.gauge("journal_lag_records", now_ms, of, how="max", slots=slots, step=step)
    yield line_chart("lag", "Lag", "events", "Rising: readers wait; add workers, or check Redis.", lag, window)
    size = history.gauge("journal_bytes", now_ms, of, slots=slots, step=step)
    yield line_chart("size", "Size in Redis", "bytes", "Near max_bytes: the oldest days are removed first.", size, window)
    raw = history.gauge("journal_bytes", now_ms, {**of, "form": "raw"}, slots=slots, step=step)
    yield line_chart("raw", "Not compressed yet", "bytes", "Rising: compression does not keep up.", raw, window)


async def _contents(settings: Settings, journal: JournalSettings, hidden: Hidden) -> JournalContents:
    status = await journal_status(settings, journal)
    days = [
        JournalDay(one.day, one.segments, one.packed, one.entries, one.received_bytes, one.stored_bytes, one.lost)
        for one in days_of(status.segments)
    ]
    keys = [_largest_key(journal, key, size, hidden) for key, size in largest_keys(status, SHOWN_KEYS)]
    largest = max((one.received_bytes for one in days), default=0)
    return JournalContents(summary_of_journal(status), days[:SHOWN_DAYS], max(0, len(days) - SHOWN_DAYS), largest, keys)


def _largest_key(journal: JournalSettings, key: bytes, size: int, hidden: Hidden) -> LargestKey:
    typed, is_found = typed_key(journal, key)
    if typed is None:
        return LargestKey("", size, "" if hidden.is_on else key_link(journal, "", is_unkeyed=True))
    return LargestKey(hidden.key(shown(typed)), size, key_link(journal, typed) if is_found and not hidden.is_on else "")


async def _entries(reader: ConsoleReader, journal: JournalSettings, question: _Question) -> JournalEntries:
    key = None if question.is_unkeyed else question.key
    if question.fold_id:
        found = await events_of_record(reader.settings, journal, key, question.fold_id, most=SHOWN)
    else:
        found = await events_of_key(
            reader.settings, journal, key, question.begin, reader.clock.now_ms(), most=SHOWN, max_bytes=READ_BYTES
        )
    rows = [row_of_event(one, with_key=question.is_unkeyed) for one in found.events]
    next_link = question.link(journal, found.next) if found.next else ""
    return JournalEntries(rows, found.next, next_link, found.is_whole, list(found.remarks))


def row_of_event(found: KeyEvent, *, with_key: bool = False) -> JournalRow:
    """Return an event or a gap as it is shown (pure)."""
    kind, text, is_cut = value_text(found.value)
    key = "none" if found.key is None else shown(found.key.decode("utf-8", "backslashreplace"))
    return JournalRow(
        found.is_gap, found.day, found.at_ms, found.partition, found.first, found.last, found.remark, kind, text, summary_of(text),
        found.size, is_cut, None if found.changed is None else list(found.changed[:SHOWN_NAMES]), key if with_key else "",
    )  # fmt: skip
