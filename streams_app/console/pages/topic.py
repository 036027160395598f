"""The page of a topic: its newest records, by key or partition."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Literal
from urllib.parse import quote

import msgspec
import orjson

from streams_app.checking.facts import Declarations
from streams_app.console.pages.rendering import render
from streams_app.console.reading.asking import Asked, PageError
from streams_app.console.reading.hiding import Hidden
from streams_app.console.reading.sources import Missing, Sources
from streams_app.formatting import escaped, shown
from streams_app.operations.dead_letter import ListedDeadLetter, split_headers
from streams_app.operations.newest_records import TopicRecord, newest_records
from streams_app.requirements.components import topics_of

SHOWN: Final = 50
READ: Final = 400
"""Number of newest offsets that are read, of all partitions together."""

READ_FOR_KEY: Final = 5_000
"""The same of the partition of a key, if only its records are shown."""

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
        value: The value, or its begin.
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


class TopicRecords(msgspec.Struct, frozen=True, tag="found"):
    """The newest records of a topic.

    Attributes:
        read: Number of records that were read to find them.
        is_whole: Whether the topic has no others.
    """

    rows: list[RecordText]
    partitions: int
    read: int
    is_whole: bool


class TopicPage(msgspec.Struct, frozen=True):
    """The model of the page.

    Attributes:
        role: What the topic is for.
        users: Names of what uses it.
        key: Only records with this key are shown; empty: all.
        partition: Only records of this partition are shown; None: of all.
    """

    name: str
    role: str
    users: list[str]
    path: str
    key: str
    partition: int | None
    records: TopicRecords | Missing
    now_ms: int


def topic_path(name: str) -> str:
    """Return the path of the page of a topic."""
    return f"/topics/{quote(name, safe='')}"


def html(model: TopicPage) -> str:
    """Render the page."""
    return render("topic.html", model=model)


async def collect(sources: Sources, declarations: Declarations, asked: Asked) -> TopicPage:
    """Collect the page from Kafka."""
    topics = {topic.name: topic for topic in topics_of(declarations.workload)}
    topic = topics[asked.named("topic", topics, "topic")]
    key, partition = asked.text("key"), partition_of(asked)
    hidden = Hidden(sources.settings)
    records = await sources.part(
        "its records", ("topic", topic.name, key, partition), lambda: _records(sources, topic.name, key, partition, hidden)
    )
    return TopicPage(
        topic.name, topic.role, list(topic.users), topic_path(topic.name), hidden.key(key) if key else "", partition, records,
        sources.clock.now_ms(),
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


async def _records(sources: Sources, topic: str, key: str, partition: int | None, hidden: Hidden) -> TopicRecords:
    wanted = key.encode("utf-8", "surrogateescape") if key else None
    found = await newest_records(
        sources.settings, topic, lambda record: wanted is None or record.key == wanted, most=SHOWN,
        limit=READ if wanted is None else READ_FOR_KEY, key=wanted, partition=partition,
    )  # fmt: skip
    return TopicRecords([record_text(record, hidden) for record in found.records], found.partitions, found.read, found.is_whole)


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


def dead_letter_texts(record: TopicRecord) -> tuple[str, str, str]:
    """Return reason, detail and source of a dead letter; empty texts for another record."""
    given, received = split_headers([(name, value or b"") for name, value in record.headers])
    one = ListedDeadLetter(record.partition, record.offset, record.key, record.value, record.at_ms, given, received)
    if not one.reason or "source-topic" not in given:
        return "", "", ""
    return shown(one.reason[:SUMMARY]), escaped(given.get("detail", "")[:MOST_CHARACTERS]), shown(one.source[:MOST_CHARACTERS])


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
    """Return the begin of a text in one line."""
    line = " ".join(text[: 4 * SUMMARY].split())
    return line[:SUMMARY] + ("…" if len(line) > SUMMARY else "")


def _text(value: bytes) -> str | None:
    """Return the begin of a value as text; None if it is not text."""
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
