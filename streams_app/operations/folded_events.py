"""Reads the events of a folded record, as received, from a journal that has the same source and key as the fold."""

from __future__ import annotations

import re
import shlex
from collections.abc import AsyncGenerator
from dataclasses import dataclass
from typing import Any, Final

from streams_app.codec import TEXT_TAG
from streams_app.errors import ConfigurationError
from streams_app.fold import RECORD_KEY, Fold
from streams_app.folding.reading.reader import EventReader, RangeFaults
from streams_app.folding.reading.readers import reader_of
from streams_app.folding.reading.replay_routing import RoutedRange
from streams_app.journal.reading.entries import Entry, Gap
from streams_app.journal.reading.reader import JournalReader
from streams_app.schemas.registry import registry_of
from streams_app.settings import JournalSettings, Settings

_FOLD_ID: Final = re.compile(
    r"(?P<fold>[a-z0-9][a-z0-9_-]{0,62}):(?P<source>[a-zA-Z0-9._-]{1,249}):(?P<partition>\d{1,5})"
    r":(?P<first>\d{1,16})-(?P<last>\d{1,16})(\+\d{1,16})?(#\d{1,6})?",
    re.ASCII,
)
EXAMPLE: Final = "account-metrics:post-metric-updated:3:1041-1077"


@dataclass(frozen=True, slots=True)
class RecordRange:
    """The range of source offsets from which a record was folded; both its first and its last event are in the record."""

    fold: str
    source: str
    partition: int
    first: int
    last: int


@dataclass(frozen=True, slots=True)
class RawEvent:
    """A journal entry in the offset range of a folded record, with the names that its event changed.

    Attributes:
        changed: Names that the event changed; empty if the event was not folded. None if the event was folded and the fold keeps
            whole events.
        rejected: Why the event was not folded; empty if the event was folded.
    """

    entry: Entry
    changed: tuple[str, ...] | None
    rejected: str = ""


@dataclass(slots=True)
class _JournalRecord:
    """Journal entry in the form of a consumer record, so that the fold can read it as an event."""

    offset: int
    timestamp: int | None
    key: bytes | None
    value: bytes | None
    headers: Any


def parse_fold_id(text: str) -> RecordRange:
    """Parse the header ``fold-id`` of a folded record into fold, source partition and offsets."""
    found = _FOLD_ID.fullmatch(text)
    if found is None or int(found["first"]) > int(found["last"]):
        raise ConfigurationError([f"--fold: {text[:120]!r} is not a fold id: the header fold-id of a record, as in {EXAMPLE}"])
    return RecordRange(found["fold"], found["source"], int(found["partition"]), int(found["first"]), int(found["last"]))


def check_fold(settings: Settings, journal: JournalSettings, where: RecordRange) -> Fold:
    """Return the fold of a record, after a check that the journal stores the events of the fold under the same key.

    Raises:
        ConfigurationError: The fold does not exist, or the journal has another source or key than the fold.
    """
    fold = settings.fold(where.fold)
    faults = []
    if where.source != journal.source:
        faults.append(f"the record is of {where.source}, {journal.section} of {journal.source}")
    if not has_key_of(journal, fold):
        keys = "a function" if callable(fold.group_key) else _fields(fold)
        keys += "" if fold.format == journal.format else f" within {fold.format} events"
        faults.append(f"fold {fold.name} is by {keys}, {journal.section} by {', '.join(journal.key_fields)}")
    if faults:
        advice = f'declare a journal with source = "{fold.source}" and the key of the fold'
        raise ConfigurationError([f"--fold: {'; '.join(faults)}: {advice}"])
    return fold


def has_key_of(journal: JournalSettings, fold: Fold) -> bool:
    """Return whether a journal and a fold have the same key, so that all events of a group are under one journal key (pure)."""
    has_format = fold.format == journal.format or fold.group_key == RECORD_KEY
    return has_format and not callable(fold.group_key) and journal.key_fields == _key_fields(fold)


def pointer_to_journal(settings: Settings, fold: Fold, group: str) -> str:
    """Return the command that prints the events of a group; "" if no journal has them (pure)."""
    for journal in settings.journals:
        if journal.source == fold.source and has_key_of(journal, fold):
            return f"streams-app journal read {shlex.quote(group)} --journal {journal.name} shows its events"
    return ""


async def raw_events(
    settings: Settings, journal: JournalSettings, keys: tuple[bytes, ...], where: RecordRange
) -> AsyncGenerator[RawEvent | Gap, None]:
    """Yield the raw events of a record, with the names that each event changed, and gaps where the journal lacks events.

    Args:
        keys: Journal keys of the group; there are several if a key that was typed may be a number or text.
    """
    fold = check_fold(settings, journal, where)
    registry = registry_of(settings, [fold.format])
    reader = reader_of(fold, settings.limits, registry)
    folds = [one.name for one in settings.folds if one.source == fold.source]
    async with JournalReader(settings, journal.name) as journal_reader:
        async for found in journal_reader.between(where.partition, keys, where.first, where.last):
            if registry is not None and isinstance(found, Entry):
                await registry.prepare((found.value,))
            yield _taken(settings.app_id, folds, fold, reader, found, keys[0]) if isinstance(found, Entry) else found


def _taken(app_id: str, folds: list[str], fold: Fold, reader: EventReader, entry: Entry, key: bytes) -> RawEvent:
    """Return a journal entry with the names that it changes in a fold, or the reason why it was not folded."""
    if entry.too_large is not None:
        return RawEvent(entry, (), f"too large to be kept: {entry.too_large:,} bytes")
    known = key if fold.group_key == RECORD_KEY else key[len(TEXT_TAG) :]
    record_key = known if entry.key is None else entry.key
    record = _JournalRecord(entry.offset, entry.at_ms, record_key, entry.value, entry.headers)
    faults = RangeFaults()
    mine, _ = RoutedRange(app_id, folds, [record], None).records_for(fold.name, faults)
    if not mine:
        return RawEvent(entry, (), "replayed for another fold")
    taken = reader.read(mine)
    if taken.rejected:
        return RawEvent(entry, (), f"a dead letter: {taken.rejected[0].reason}")
    if not taken.events:
        return RawEvent(entry, (), "not folded: skipped by only, source_filter or tombstones")
    return RawEvent(entry, None if fold.keeps_events else tuple(taken.events[0].changed))


def _key_fields(fold: Fold) -> tuple[str, ...]:
    return (RECORD_KEY,) if fold.group_key == RECORD_KEY else fold.group_fields


def _fields(fold: Fold) -> str:
    return ", ".join(_key_fields(fold))
