"""Reads the events of an open group, from a journal with the same key, otherwise from the source topic; bounded."""

from __future__ import annotations

import asyncio
from contextlib import aclosing, suppress
from dataclasses import dataclass
from typing import Any, Final

from streams_app.codec import member_of
from streams_app.delivery.batch import TP
from streams_app.fold import Fold
from streams_app.folding.reading.reader import RangeFaults
from streams_app.folding.reading.readers import reader_of
from streams_app.folding.reading.replay_routing import RoutedRange
from streams_app.journal.reading.entries import Gap, keys_meant
from streams_app.kafka.log_reader import log_reader, read_ranges
from streams_app.operations.folded_events import RecordRange, has_key_of, raw_events
from streams_app.operations.listed_group import ListedGroup
from streams_app.schemas.registry import registry_of
from streams_app.settings import JournalSettings, Settings

MOST: Final = 2_000
"""Maximum number of events that are returned; of more, the newest ones."""

MOST_OFFSETS: Final = 20_000
"""Maximum number of offsets of a source that are read for them."""

READ_SECONDS: Final = 4.0


@dataclass(frozen=True, slots=True)
class GroupEvent:
    """An event of an open group.

    Attributes:
        changed: Names that it changed; None if the fold keeps whole events.
        value: As received; None for a tombstone.
    """

    offset: int
    at_ms: int
    changed: tuple[str, ...] | None
    value: bytes | None


@dataclass(frozen=True, slots=True)
class GroupEvents:
    """The events of an open group.

    Attributes:
        events: In the order of their offsets.
        source: Where they were read, such as "journal accounts".
        is_whole: Whether these are all; if not, earlier ones are missing, or some could not be read.
    """

    events: tuple[GroupEvent, ...]
    source: str
    is_whole: bool


async def events_of_group(settings: Settings, fold: Fold, found: ListedGroup, group: str) -> GroupEvents:
    """Read the events of a group that is open.

    Args:
        group: Group key as typed, see :func:`.keys_typed`.

    Raises:
        TryAgainError: Redis or Kafka does not answer.
        ConfigurationError: They reject the connection.
    """
    first, last = found.first_offset, found.last_offset
    for journal in settings.journals:
        if journal.source == fold.source and has_key_of(journal, fold):
            return await _in_journal(settings, journal, fold, found.partition, group, first, last)
    return await _in_source(
        settings, fold, found.partition, member_of_key(found.key), max(first, last - MOST_OFFSETS + 1), last, first
    )


def member_of_key(key: Any) -> bytes:
    """Return the member of a group from its key with its JSON type (pure)."""
    return member_of(tuple(key) if isinstance(key, list) else (key,))


async def _in_journal(
    settings: Settings, journal: JournalSettings, fold: Fold, partition: int, group: str, first: int, last: int
) -> GroupEvents:
    where = RecordRange(fold.name, fold.source, partition, first, last)
    events: list[GroupEvent] = []
    is_whole = False
    with suppress(TimeoutError):
        async with (
            asyncio.timeout(READ_SECONDS),
            aclosing(raw_events(settings, journal, keys_meant(journal, group), where)) as items,
        ):
            is_whole = True
            async for item in items:
                if isinstance(item, Gap):
                    is_whole = False
                elif not item.rejected:
                    events.append(GroupEvent(item.entry.offset, item.entry.at_ms, item.changed, item.entry.value))
    return GroupEvents(tuple(events[-MOST:]), f"journal {journal.name}", is_whole and len(events) <= MOST)


async def _in_source(
    settings: Settings, fold: Fold, partition: int, member: bytes, first: int, last: int, opened: int
) -> GroupEvents:
    registry = registry_of(settings, [fold.format])
    folds = [one.name for one in settings.folds if one.source == fold.source]
    reader = reader_of(fold, settings.limits, registry)
    events: list[GroupEvent] = []
    is_read = False
    with suppress(TimeoutError):
        async with asyncio.timeout(READ_SECONDS), log_reader(settings.kafka, fold.source, [partition]) as consumer:
            async for batch in read_ranges(consumer, {TP(fold.source, partition): (first, last + 1)}):
                records: list[Any] = list(batch.records)
                if registry is not None:
                    await registry.prepare([part for record in records for part in (record.key, record.value)])
                mine, _ = RoutedRange(settings.app_id, folds, records, None).records_for(fold.name, RangeFaults())
                by_offset = {record.offset: record for record in mine}
                events += [
                    GroupEvent(
                        event.offset, by_offset[event.offset].timestamp, None if fold.keeps_events else tuple(event.changed),
                        by_offset[event.offset].value,
                    )
                    for event in reader.read(mine).events
                    if event.group == member
                ]  # fmt: skip
            is_read = True
    is_whole = is_read and first == opened and len(events) <= MOST
    return GroupEvents(tuple(events[-MOST:]), f"topic {fold.source}", is_whole)
