"""The page of a folded record: its value, and the events from which it was folded."""

from __future__ import annotations

from typing import Final
from urllib.parse import urlencode

import msgspec

from streams_app.codec import canonical_bytes, keys_typed
from streams_app.console.pages.fold import group_path
from streams_app.console.pages.group import EventList, RecordRow, event_list, record_row
from streams_app.console.pages.paths import fold_path, subscriber_path
from streams_app.console.pages.read_store import GroupInStore, stored_groups
from streams_app.console.pages.rendering import render
from streams_app.console.pages.subscriber import EventAnswer, answer_of
from streams_app.console.pages.topic import RecordText, record_text, topic_path
from streams_app.console.reading.asking import Asked, PageError
from streams_app.console.reading.console_reader import ConsoleReader, Missing
from streams_app.console.reading.hiding import Hidden
from streams_app.errors import ConfigurationError
from streams_app.fold import Fold
from streams_app.operations.folded_events import RecordRange, parse_fold_id
from streams_app.operations.newest_records import events_in, newest_records
from streams_app.requirements.declarations import Declarations

READ: Final = 20_000
"""Number of newest records of the output, in the partition of the key, among which the record is searched."""

SHOWN_EVENTS: Final = 200


class FoundRecord(msgspec.Struct, frozen=True, tag="found"):
    """The record in the output topic; both are None if it was not found.

    Attributes:
        about: Its facts; None also if it is not a folded record.
        version: Version of its values in read stores; None: unknown.
        read: Number of records that were read.
        is_whole: Whether the topic has no others.
    """

    record: RecordText | None
    about: RecordRow | None
    version: int | None
    read: int
    is_whole: bool


class SubscriberCalls(msgspec.Struct, frozen=True):
    """What became of the record in a subscriber that reads the output topic; ``link`` leads to the page of the subscriber."""

    subscriber: str
    link: str
    answer: EventAnswer | Missing


class RecordPage(msgspec.Struct, frozen=True):
    """The model of the page.

    Attributes:
        first: First offset in the source of an event of the record.
        last: Last one.
        calls: For each subscriber of the output topic: what became of the record; empty if it was not found, or if
            values are hidden.
    """

    fold: str
    fold_link: str
    fold_id: str
    group: str
    group_link: str
    source: str
    source_link: str
    output: str
    output_link: str
    partition: int
    first: int
    last: int
    found: FoundRecord | Missing
    events: EventList | Missing
    stores: list[GroupInStore | Missing]
    calls: list[SubscriberCalls]
    command: str
    now_ms: int


def html(model: RecordPage) -> str:
    """Render the page."""
    return render("record.html", model=model)


async def collect(reader: ConsoleReader, declarations: Declarations, asked: Asked) -> RecordPage:
    """Collect the page from the output topic, and from a journal or the source."""
    fold = reader.settings.fold(asked.named("fold", [fold.name for fold in reader.settings.folds], "fold"))
    fold_id, typed = asked.text("id"), asked.text("key")
    where = range_of(fold, fold_id)
    if not typed:
        raise PageError(400, "Of which group? key is missing: the page of the group has links to its records")
    hidden, members = Hidden(reader.settings), keys_typed(typed)
    key = ("record", fold_id, typed)
    found = await reader.part("the record", key, lambda: _record(reader, fold, fold_id, typed, hidden))
    events = await reader.part(
        "its events", ("record events", fold_id, typed), lambda: events_in(reader.settings, fold, where, typed, members)
    )
    listed = events if isinstance(events, Missing) else event_list(events, hidden, SHOWN_EVENTS)
    version = None if isinstance(found, Missing) else found.version
    stores = await stored_groups(reader, fold, typed, members, version)
    record = None if isinstance(found, Missing) or hidden.is_on else found.record
    calls = [] if record is None else await _calls(reader, declarations, fold, record)
    return RecordPage(
        fold.name, fold_path(fold.name), fold_id, hidden.key(typed), "" if hidden.is_on else group_path(fold.name, typed),
        fold.source, topic_path(fold.source), fold.output, topic_path(fold.output), where.partition, where.first, where.last, found,
        listed, stores, calls, f"streams-app journal read KEY --fold {fold_id}", reader.clock.now_ms(),
    )  # fmt: skip


async def _calls(reader: ConsoleReader, declarations: Declarations, fold: Fold, record: RecordText) -> list[SubscriberCalls]:
    names = [one.subscriber.name for one in declarations.workload.subscriptions if one.topic == fold.output]
    position = f"{fold.output}:{record.partition}:{record.offset}"
    answers = [await answer_of(reader, declarations, name, position) for name in names]
    links = [f"{subscriber_path(name)}?{urlencode({'event': position})}#event" for name in names]
    return [SubscriberCalls(*one) for one in zip(names, links, answers, strict=True)]


def range_of(fold: Fold, fold_id: str) -> RecordRange:
    """Return the events that a record of a fold is of.

    Raises:
        PageError: The text is not the id of a record of this fold (400).
    """
    try:
        where = parse_fold_id(fold_id)
    except ConfigurationError as error:
        raise PageError(400, "id is not a fold id: the header fold-id of a record") from error
    if (where.fold, where.source) != (fold.name, fold.source):
        raise PageError(400, "id is of another fold")
    return where


async def _record(reader: ConsoleReader, fold: Fold, fold_id: str, typed: str, hidden: Hidden) -> FoundRecord:
    wanted = ("fold-id", fold_id.encode())
    key = canonical_bytes(keys_typed(typed)[-1])
    found = await newest_records(reader.settings, fold.output, lambda record: wanted in record.headers, most=1, limit=READ, key=key)
    record = found.records[0] if found.records else None
    text = None if record is None else record_text(record, hidden)
    about = None if record is None else record_row(fold, record, typed, hidden)
    return FoundRecord(text, about, None if record is None else version_of(record.value), found.read, found.is_whole)


def version_of(value: bytes | None) -> int | None:
    """Return the version in a folded record; None if there is none."""
    try:
        found = msgspec.json.decode(value or b"", type=_Versioned).fold.version
    except msgspec.MsgspecError:
        return None
    return found


class _Version(msgspec.Struct):
    version: int


class _Versioned(msgspec.Struct):
    fold: _Version
