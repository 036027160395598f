"""The page of one dead letter: its reason in words, the failing field marked, and what to do."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any, Final, cast
from urllib.parse import urlencode

import msgspec
import orjson
from msgspec.structs import replace

from streams_app.console.pages.action_links import REPLAYABLE, ActionLink, replay_links
from streams_app.console.pages.rendering import render
from streams_app.console.pages.topic import (
    LONGEST_NAME,
    MOST_CHARACTERS,
    READ_BYTES,
    HeaderText,
    component_of,
    header_texts,
    listed,
    topic_path,
    value_text,
)
from streams_app.console.reading.asking import Asked, PageError
from streams_app.console.reading.console_reader import ConsoleReader, Missing
from streams_app.console.reading.hiding import Hidden
from streams_app.fold import Fold
from streams_app.formatting import escaped, shown
from streams_app.operations.dead_letter import ListedDeadLetter
from streams_app.operations.newest_records import record_at
from streams_app.reasons import ADVICE, REASONS, Reason
from streams_app.requirements.components import DEAD_LETTERS, topics_of
from streams_app.requirements.declarations import Declarations
from streams_app.settings import Settings

MOST_LINES: Final = 300
MOST_DEPTH: Final = 40
"""Levels of a value that are laid out; an ellipsis stands for what is nested more deeply."""

MOST_PARTITION: Final = 999_999
MOST_OFFSET: Final = 10**18 - 1
TRACE: Final = 4_000


class ValueLine(msgspec.Struct, frozen=True):
    """A line of a JSON value.

    Attributes:
        is_failing: Whether it has the field that was wrong, or would have it if it were there.
    """

    text: str
    is_failing: bool


class DeadLetterText(msgspec.Struct, frozen=True, tag="found"):
    """A dead letter in words.

    Attributes:
        meaning: What the reason says, as a sentence.
        advice: What to do; empty for a reason of another version.
        path: Field that was wrong, as in ``metrics.likes``; empty if it is not known.
        is_absent: Whether the event does not have this field.
        lines: Value of the event; None: it is no JSON, or too long to be laid out, and ``value`` has it.
        commands: What shows and replays it.
    """

    reason: str
    meaning: str
    advice: str
    detail: str
    component: str
    component_link: str
    source: str
    source_link: str
    failed_at_ms: int
    attempts: str
    exception: str
    trace: str
    key: str | None
    kind: str
    value: str
    lines: list[ValueLine] | None
    path: str
    is_absent: bool
    value_bytes: int
    is_cut: bool
    dropped: str
    headers: list[HeaderText]
    received: list[HeaderText]
    commands: list[str]
    actions: list[ActionLink] = []


class DeadLetterPage(msgspec.Struct, frozen=True):
    """The model of the page of one dead letter; ``dead_letter`` is None if there is none at the offset, or no longer."""

    topic: str
    topic_link: str
    partition: int
    offset: int
    dead_letter: DeadLetterText | Missing | None
    now_ms: int


def dead_letter_path(topic: str, partition: int, offset: int) -> str:
    """Return the path of the page of a dead letter."""
    return f"{topic_path(topic)}/dead-letter?{urlencode({'partition': partition, 'offset': offset})}"


def html(model: DeadLetterPage) -> str:
    """Render the page."""
    return render("dead_letter.html", model=model)


async def collect(reader: ConsoleReader, declarations: Declarations, asked: Asked) -> DeadLetterPage:
    """Collect the page from Kafka."""
    topics = [topic.name for topic in topics_of(declarations.workload) if topic.role == DEAD_LETTERS]
    topic = asked.named("topic", topics, "topic of dead letters")
    if not asked.text("partition") or not asked.text("offset"):
        raise PageError(400, "partition and offset name a dead letter")
    partition, offset = asked.number("partition", 0, 0, MOST_PARTITION), asked.number("offset", 0, 0, MOST_OFFSET)

    used = {one.name for one in topics_of(declarations.workload)}

    async def found() -> DeadLetterText | None:
        record = await record_at(reader.settings, topic, partition, offset)
        rejected = None if record is None else listed(record)
        if rejected is None:
            return None
        actions = actions_for(rejected, reader.settings, declarations, topic)
        return replace(text_of(rejected, reader.settings, used), actions=actions)

    text = await reader.part("the dead letter", ("dead letter", topic, partition, offset), found)
    return DeadLetterPage(topic, topic_path(topic), partition, offset, text, reader.clock.now_ms())


def actions_for(rejected: ListedDeadLetter, settings: Settings, declarations: Declarations, topic: str) -> list[ActionLink]:
    """Return the replay of a dead letter, if its component is still declared and the event can be replayed."""
    if rejected.position is None or not rejected.is_event or rejected.dropped_part:
        return []
    links = replay_links(settings, declarations, topic, position=":".join(map(str, rejected.position)))
    return [links[of] for kind in REPLAYABLE if (of := f"{kind}:{rejected.headers.get(kind, '')}") in links]


def text_of(rejected: ListedDeadLetter, settings: Settings, topics: set[str]) -> DeadLetterText:
    """Return a dead letter as it is shown."""
    hidden, headers = Hidden(settings), rejected.headers
    component, link = component_of(headers, settings)
    words = REASONS.get(cast(Reason, rejected.reason))  # None: the reason is of another version
    kind, value, is_cut = ("hidden", "", False) if hidden.is_on else value_text(rejected.value)
    fold = next((fold for fold in settings.folds if headers.get("fold") == fold.name), None)
    path = failing_path(rejected.reason, headers.get("detail", ""), fold)
    lines, is_absent = (None, False) if hidden.is_on else marked_lines(rejected.value, path)
    failed_at = headers.get("failed-at-ms", "")
    source_topic = headers.get("source-topic", "")
    own = [(name, text.encode()) for name, text in headers.items()]
    return DeadLetterText(
        shown(rejected.reason[:LONGEST_NAME]), f"The event {words.removeprefix('of a read store: ')}." if words else "",
        ADVICE[cast(Reason, rejected.reason)] if words else "",
        "" if hidden.is_on else headers.get("detail", "")[:MOST_CHARACTERS], component, link,
        shown(rejected.source[:MOST_CHARACTERS]),
        topic_path(source_topic) if source_topic in topics else "",
        int(failed_at) if failed_at.isdecimal() and len(failed_at) < len(str(1 << 53)) else rejected.timestamp_ms,
        escaped(headers.get("attempts", "")), escaped(headers.get("exception", "")),
        "" if hidden.is_on else headers.get("trace", "")[:TRACE],
        None if rejected.key is None else hidden.key(shown(rejected.key.decode("utf-8", "backslashreplace"))),
        kind, value, lines, ".".join(map(str, path)), is_absent, len(rejected.value or b""), is_cut,
        rejected.dropped_part,
        [] if hidden.is_on else [one for one in header_texts(own) if one.name != "trace"],
        [] if hidden.is_on else header_texts(rejected.received), list(commands_for(rejected, component)),
    )  # fmt: skip


def commands_for(rejected: ListedDeadLetter, component: str) -> Iterator[str]:
    """Yield the commands that show and replay a dead letter."""
    kind, _, name = component.partition(" ")
    if rejected.position and kind and re.fullmatch(r"[\w.-]+", name):
        where = f"--{kind} {name} --offset {rejected.position[0]}:{rejected.position[1]}"
        yield f"streams-app dead-letters list {where}"
        if rejected.is_event and not rejected.is_late and not rejected.dropped_part:
            yield f"streams-app dead-letters replay {where} --dry-run"


_OF_MSGSPEC: Final = re.compile(r"at `\$([^`]*)`")
_STEP: Final = re.compile(r"\.([^.\[\]]+)|\[(\d+)\]")
_QUOTED: Final = re.compile(r"'([^']+)'")
_OF_GROUPS: Final[tuple[Reason, ...]] = ("no-group",)
_OF_NAMES: Final[tuple[Reason, ...]] = ("no-changed", "no-value", "too-many-names")


def failing_path(reason: str, detail: str, fold: Fold | None) -> tuple[str | int, ...]:
    """Return the path of the field that a detail is about; empty if it names none.

    Args:
        fold: The fold that rejected the event; None: another component has.
    """
    if found := _OF_MSGSPEC.search(detail):
        return tuple(name or int(number) for name, number in _STEP.findall(found[1]))
    if fold is None:
        return ()
    if reason in _OF_GROUPS and not callable(fold.group_key):
        named = [name for name in fold.group_fields if detail.startswith((f"{name!r} ", f"{name} "))]
        return tuple(max(named, key=len).split(".")) if named else ()
    if reason in _OF_NAMES and not callable(fold.changed):
        name = next(iter(_QUOTED.findall(detail)), None)
        changed = tuple(str(fold.changed).split("."))
        return changed if name in (None, fold.changed) else (*changed, name)
    return ()


def marked_lines(value: bytes | None, path: Sequence[str | int]) -> tuple[list[ValueLine] | None, bool]:
    """Lay out a JSON value in lines; mark the field of a path, or the nearest field around it if it is absent.

    Returns:
        The lines, and whether the field is absent. None if the value is no JSON, or too long.
    """
    if not value or len(value) > READ_BYTES:
        return None, False
    try:
        decoded = orjson.loads(value)
    except orjson.JSONDecodeError:
        return None, False
    present = _present(decoded, path)
    lines = [
        ValueLine(text, bool(path) and at == present and is_first)
        for text, at, is_first in _lines(decoded, (), "", 0, is_last=True)
    ]
    return (lines if len(lines) <= MOST_LINES else None), len(present) < len(path)


def _present(value: Any, path: Sequence[str | int]) -> tuple[str | int, ...]:
    """Return the part of a path that a value has."""
    for number, step in enumerate(path):
        try:
            value = value[step]
        except (KeyError, IndexError, TypeError):
            return tuple(path[:number])
    return tuple(path)


_Line = tuple[str, tuple[str | int, ...], bool]


def _lines(value: Any, at: tuple[str | int, ...], label: str, depth: int, *, is_last: bool) -> Iterator[_Line]:
    """Yield the lines of a value, each with the path of what it shows, and whether it is the first line of that."""
    begin, after = "  " * depth + label, "" if is_last else ","
    items: list[tuple[str | int, str, Any]] = []
    if isinstance(value, dict):
        items = [(name, f"{orjson.dumps(name).decode()}: ", item) for name, item in value.items()]
    elif isinstance(value, list):
        items = [(number, "", item) for number, item in enumerate(value)]
    if not items or depth >= MOST_DEPTH:
        yield f"{begin}{'…' if items else orjson.dumps(value).decode()}{after}", at, True
        return
    opens, closes = "{}" if isinstance(value, dict) else "[]"
    yield begin + opens, at, True
    for number, (step, text, item) in enumerate(items, 1):
        yield from _lines(item, (*at, step), text, depth + 1, is_last=number == len(items))
    yield "  " * depth + closes + after, at, False
