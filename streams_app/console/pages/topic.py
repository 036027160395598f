"""The page of a topic: its newest records, by key or partition."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final, Literal
from urllib.parse import quote

import msgspec
import orjson

from streams_app.console.pages.action_links import ActionLink, replay_links
from streams_app.console.pages.paths import fold_path, store_path, subscriber_path, view_path
from streams_app.console.pages.rendering import render
from streams_app.console.reading.asking import Asked, PageError
from streams_app.console.reading.console_reader import ConsoleReader, Missing
from streams_app.console.reading.hiding import Hidden
from streams_app.formatting import escaped, shown
from streams_app.operations.dead_letter import ListedDeadLetter, split_headers
from streams_app.operations.newest_records import TopicRecord, newest_records
from streams_app.requirements.components import DEAD_LETTERS, topics_of
from streams_app.requirements.declarations import Declarations
from streams_app.settings import Settings

SHOWN: Final = 50
READ: Final = 400
"""Number of newest offsets that are read, of all partitions together."""

READ_FOR_KEY: Final = 5_000
"""The same of the partition of a key, if only its records are shown."""

READ_DEAD_LETTERS: Final = 5_000
"""The same of a topic of dead letters, which are counted by reason and origin."""

SLICES: Final = 40
"""Parts of the time of the summary, each a bar of its chart."""

MOST_ROWS: Final = 100
LONGEST_NAME: Final = 120
KINDS: Final = {"fold": fold_path, "store": store_path, "subscriber": subscriber_path, "view": view_path}
"""Header that names the component that rejected an event, and the function for the path of its page."""

MOST_CHARACTERS: Final = 4_000
"""Maximum number of characters of a value on the page and in JSON."""

MOST_BYTES: Final = 1_000
"""Maximum number of bytes of a value that is not text; each takes two characters."""

READ_BYTES: Final = 4 * MOST_CHARACTERS
LONGEST_CHARACTER: Final = 4
MOST_HEADERS: Final = 40
SUMMARY: Final = 110
_LONGEST_PARTITION: Final = 6

Kind = Literal["json", "text", "bytes", "empty", "hidden"]
JSON: Final[Kind] = "json"
TEXT: Final[Kind] = "text"
HIDDEN: Final[tuple[Kind, str, bool]] = ("hidden", "", False)


class HeaderText(msgspec.Struct, frozen=True):
    """A header of a record, as text."""

    name: str
    value: str


class RecordText(msgspec.Struct, frozen=True):
    """A record of a topic, as it is shown.

    Attributes:
        key: None if it has none.
        kind: How ``value`` is to be read; "bytes" are shown in hexadecimal.
        value: The value, or its beginning.
        summary: Its begin, in one line.
        value_bytes: Size of the whole value.
        is_cut: Whether a part of the value is missing.
        reason: Of a dead letter: why the event was rejected; empty for other records.
        detail: Of a dead letter: what was wrong with it.
        source: Of a dead letter: where the event was read, as ``topic/partition/offset``.
    """

    partition: int
    offset: int
    at_ms: int
    key: str | None
    reason: str
    detail: str
    source: str
    kind: Kind
    value: str
    summary: str
    value_bytes: int
    is_cut: bool
    headers: list[HeaderText]


class DeadLetterGroup(msgspec.Struct, frozen=True):
    """Dead letters of one reason and origin.

    Attributes:
        component: Kind and name of what rejected them, such as "fold account-metrics".
        link: Page of the component; empty if it is no longer declared.
        slices: Their number in each part of the time.
    """

    reason: str
    component: str
    link: str
    source: str
    count: int
    first_ms: int
    last_ms: int
    slices: list[int]


class DeadLetterSummary(msgspec.Struct, frozen=True):
    """The newest dead letters of a topic by reason and origin, the most frequent first.

    Attributes:
        slices: Number of all of them in each part of the time.
        left_out: Number of rows that are not shown.
    """

    rows: list[DeadLetterGroup]
    total: int
    from_ms: int
    to_ms: int
    slices: list[int]
    left_out: int


class TopicRecords(msgspec.Struct, frozen=True, tag="found"):
    """The newest records of a topic.

    Attributes:
        read: Number of records that were read to find them.
        is_whole: Whether the topic has no others.
        dead_letters: What the records that were read are, if they are dead letters of all keys and partitions.
    """

    rows: list[RecordText]
    partitions: int
    read: int
    is_whole: bool
    dead_letters: DeadLetterSummary | None = None


class TopicPage(msgspec.Struct, frozen=True):
    """The model of the page.

    Attributes:
        role: What the topic is for.
        users: Names of what uses it.
        key: Only records with this key are shown; empty: all.
        partition: Only records of this partition are shown; None: of all.
        replays: Replays of its dead letters, by kind and name of the component; none if the console has no actions.
    """

    name: str
    role: str
    users: list[str]
    path: str
    key: str
    partition: int | None
    records: TopicRecords | Missing
    now_ms: int
    replays: dict[str, ActionLink] = {}


def topic_path(name: str) -> str:
    """Return the path of the page of a topic."""
    return f"/topics/{quote(name, safe='')}"


def html(model: TopicPage) -> str:
    """Render the page."""
    return render("topic.html", model=model)


async def collect(reader: ConsoleReader, declarations: Declarations, asked: Asked) -> TopicPage:
    """Collect the page from Kafka."""
    topics = {topic.name: topic for topic in topics_of(declarations.workload)}
    topic = topics[asked.named("topic", topics, "topic")]
    key, partition = asked.text("key"), partition_of(asked)
    hidden = Hidden(reader.settings)
    is_counted = topic.role == DEAD_LETTERS and not key and partition is None
    records = await reader.part(
        "its records", ("topic", topic.name, key, partition),
        lambda: _records(reader, topic.name, key, partition, is_counted=is_counted),
    )  # fmt: skip
    return TopicPage(
        topic.name, topic.role, list(topic.users), topic_path(topic.name), hidden.key(key) if key else "", partition, records,
        reader.clock.now_ms(), replay_links(reader.settings, declarations, topic.name),
    )  # fmt: skip


def partition_of(asked: Asked) -> int | None:
    """Return the partition that a request is about; None: all.

    Raises:
        PageError: It is no number (400).
    """
    text = asked.text("partition")
    if text and not (text.isascii() and text.isdigit() and len(text) <= _LONGEST_PARTITION):
        raise PageError(400, "partition must be a number, or empty for all")
    return int(text) if text else None


async def _records(reader: ConsoleReader, topic: str, key: str, partition: int | None, *, is_counted: bool) -> TopicRecords:
    wanted, hidden = key.encode("utf-8", "surrogateescape") if key else None, Hidden(reader.settings)
    counts = DeadLetterCounts(reader.settings)

    def keep(record: TopicRecord) -> bool:
        if is_counted:
            counts.count(record)
        return wanted is None or record.key == wanted

    limit = READ_DEAD_LETTERS if is_counted else READ if wanted is None else READ_FOR_KEY
    found = await newest_records(reader.settings, topic, keep, most=SHOWN, limit=limit, key=wanted, partition=partition)
    rows = [record_text(record, hidden) for record in found.records]
    return TopicRecords(rows, found.partitions, found.read, found.is_whole, counts.summary())


def record_text(record: TopicRecord, hidden: Hidden) -> RecordText:
    """Return a record as it is shown: JSON laid out, other text as it is, and bytes in hexadecimal."""
    key = None if record.key is None else hidden.key(shown(record.key.decode("utf-8", "backslashreplace")))
    kind, text, is_cut = HIDDEN if hidden.is_on else value_text(record.value)
    headers = [] if hidden.is_on else list(header_texts(record.headers))
    reason, detail, source = dead_letter_texts(record)
    return RecordText(
        record.partition, record.offset, record.at_ms, key, reason, "" if hidden.is_on else detail, source, kind, text,
        summary_of(text), len(record.value or b""), is_cut, headers,
    )  # fmt: skip


def listed(record: TopicRecord) -> ListedDeadLetter | None:
    """Return a record of a topic as a dead letter; None if it is none, such as a receipt of a replay."""
    given, received = split_headers([(name, value or b"") for name, value in record.headers])
    found = ListedDeadLetter(record.partition, record.offset, record.key, record.value, record.at_ms, given, received)
    return found if found.reason and "source-topic" in given else None


def component_of(headers: dict[str, str], settings: Settings) -> tuple[str, str]:
    """Return kind and name of the component that rejected an event, and the path of its page; empty texts if it is not named."""
    kind = next((kind for kind in KINDS if headers.get(kind)), "")
    name = headers.get(kind, "")[:LONGEST_NAME] if kind else ""
    declared = {
        "fold": [fold.name for fold in settings.folds], "store": [store.name for store in settings.read_stores],
        "view": [view.name for view in settings.live], "subscriber": [name],
    }  # fmt: skip
    return f"{kind} {shown(name)}".strip(), KINDS[kind](name) if kind and name in declared[kind] else ""


@dataclass(slots=True)
class DeadLetterCounts:
    """Counts dead letters while they are read."""

    settings: Settings
    _times: dict[tuple[str, str, str, str], list[int]] = field(default_factory=dict)

    def count(self, record: TopicRecord) -> None:
        found = listed(record)
        if found is not None:
            component, link = component_of(found.headers, self.settings)
            source = found.headers["source-topic"][:LONGEST_NAME]
            self._times.setdefault((found.reason[:LONGEST_NAME], component, link, source), []).append(record.at_ms)

    def summary(self) -> DeadLetterSummary | None:
        """Return what was counted; None if nothing was."""
        everything = [at_ms for times in self._times.values() for at_ms in times]
        if not everything:
            return None
        from_ms, to_ms = min(everything), max(everything)
        rows = [
            DeadLetterGroup(
                shown(reason), component, link, shown(source), len(times), min(times), max(times), sliced(times, from_ms, to_ms)
            )
            for (reason, component, link, source), times in self._times.items()
        ]
        rows.sort(key=lambda row: (-row.count, row.reason, row.component, row.source))
        left_out = max(0, len(rows) - MOST_ROWS)
        return DeadLetterSummary(
            rows[:MOST_ROWS], len(everything), from_ms, to_ms, sliced(everything, from_ms, to_ms), left_out
        )  # fmt: skip


def sliced(times: Sequence[int], from_ms: int, to_ms: int) -> list[int]:
    """Count times in equal parts of a range."""
    counts = [0] * SLICES
    for at_ms in times:
        counts[min(SLICES - 1, (at_ms - from_ms) * SLICES // max(1, to_ms - from_ms))] += 1
    return counts


def dead_letter_texts(record: TopicRecord) -> tuple[str, str, str]:
    """Return reason, detail and source of a dead letter; empty texts for another record."""
    one = listed(record)
    if one is None:
        return "", "", ""
    detail = escaped(one.headers.get("detail", "")[:MOST_CHARACTERS])
    return shown(one.reason[:SUMMARY]), detail, shown(one.source[:MOST_CHARACTERS])


def value_text(value: bytes | None) -> tuple[Kind, str, bool]:
    """Return how a value is to be read, its text, and whether a part is missing."""
    if value is None:
        return "empty", "", False
    text = _text(value)
    if text is None:
        return "bytes", value[:MOST_BYTES].hex(" ", -2), len(value) > MOST_BYTES
    if len(value) > READ_BYTES:
        return "text", text[:MOST_CHARACTERS], True
    try:
        text, kind = orjson.dumps(orjson.loads(value), option=orjson.OPT_INDENT_2).decode(), JSON
    except (orjson.JSONDecodeError, TypeError):
        kind = TEXT
    return kind, text[:MOST_CHARACTERS], len(text) > MOST_CHARACTERS


def summary_of(text: str) -> str:
    """Return the beginning of a text in one line."""
    line = " ".join(text[: 4 * SUMMARY].split())
    return line[:SUMMARY] + ("…" if len(line) > SUMMARY else "")


def _text(value: bytes) -> str | None:
    """Return the beginning of a value as text; None if it is not text."""
    begin = value[:READ_BYTES]
    try:
        text = begin.decode()
    except UnicodeDecodeError as error:
        is_cut = len(value) > READ_BYTES and error.start > READ_BYTES - LONGEST_CHARACTER
        text = begin[: error.start].decode() if is_cut else "\0"
    return None if "\0" in text else text


def header_texts(headers: Sequence[tuple[str, bytes | None]]) -> list[HeaderText]:
    """Return headers as text; bytes that are not text are escaped."""
    return [
        HeaderText(shown(name), shown((value or b"").decode("utf-8", "backslashreplace")[:MOST_CHARACTERS]))
        for name, value in headers[:MOST_HEADERS]
    ]
