"""Reads the events of a fold's source from a journal into columns; a journal may reach further back than the topic."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from operator import attrgetter
from typing import Any

from redis.asyncio import Redis

from streams_app.errors import ConfigurationError
from streams_app.fold import RECORD_KEY, Fold
from streams_app.folding.core.event import FoldInput
from streams_app.folding.reading.reader import EventReader, RangeFaults, decode_all
from streams_app.folding.reading.readers import reader_of
from streams_app.folding.reading.replay_routing import RoutedRange
from streams_app.journal.core.block import DamagedBlockError, decode
from streams_app.journal.core.entry import Row, record_key_of, too_large
from streams_app.journal.store.journal_store import JournalScripts, JournalShardReader, ShardStatus
from streams_app.journal.store.keys import JournalKeys, journal_keys
from streams_app.journal.store.segment import Segment
from streams_app.redis_access.client import REDIS_ERRORS, connect_briefly, why_unreachable
from streams_app.schemas.registry import registry_of
from streams_app.settings import JournalSettings, Settings
from streams_app.tuning.columns import Columns
from streams_app.tuning.read_counts import ReadCounts, ignore_progress
from streams_app.tuning.timestamps import timestamp_remarks


@dataclass(slots=True)
class _FiledRecord:
    """A journal entry in the shape of a consumer record."""

    offset: int
    timestamp: int | None
    key: bytes | None
    value: bytes | None
    headers: Any


def check_journal(journal: JournalSettings, fold: Fold) -> None:
    """Check that a journal has the source topic of a fold, and stores record keys if the fold groups by them."""
    if journal.source != fold.source:
        raise ConfigurationError([f"--journal: {journal.section} has source {journal.source}, fold {fold.name} has {fold.source}"])
    if fold.group_key == RECORD_KEY and not journal.is_by_record_key:
        raise ConfigurationError([f"--journal: fold {fold.name} groups by the record key, which {journal.section} does not store"])


async def read_journal(
    settings: Settings,
    fold: Fold,
    journal: JournalSettings,
    columns: Columns,
    tally: ReadCounts,
    *,
    from_ms: int | None = None,
    to_ms: int | None = None,
    on_progress: Callable[[ReadCounts], None] = ignore_progress,
) -> None:
    """Read the events of a fold from a journal (see :func:`check_journal`) into columns; one segment is in memory at a time.

    Events before ``from_ms``, and from ``to_ms`` on, are skipped. ``on_progress`` is called after each segment, and at the end.

    Raises:
        ConfigurationError: No worker has written the journal yet.
        TryAgainError: Redis or the schema registry does not respond.
    """
    redis = connect_briefly(settings.redis)
    try:
        await _JournalColumns(settings, fold, journal, redis, columns, tally, (from_ms, to_ms)).read(on_progress)
    except REDIS_ERRORS as error:
        raise await why_unreachable(settings.redis, error) from error
    finally:
        await redis.aclose()
    tally.remarks += timestamp_remarks(columns, tally, "events")
    on_progress(tally)


class _JournalColumns:
    """Reads a journal into columns."""

    def __init__(
        self,
        settings: Settings,
        fold: Fold,
        journal: JournalSettings,
        redis: Redis,
        columns: Columns,
        tally: ReadCounts,
        range_ms: tuple[int | None, int | None],
    ) -> None:
        self._settings = settings
        self._folds = [one.name for one in settings.folds if one.source == fold.source]
        self._fold = fold
        self._journal = journal
        self._shards = JournalShardReader(JournalScripts(redis))
        self._columns = columns
        self._tally = tally
        self._from_ms, self._to_ms = range_ms
        self._registry = registry_of(settings, [fold.format])

    async def read(self, on_progress: Callable[[ReadCounts], None]) -> None:
        first = await self._shards.status(self._keys(0))
        if first is None:
            raise ConfigurationError(
                [f"{self._journal.section} has nothing in Redis: no worker has written it yet, or Redis was wiped"]
            )
        shards = {0: first}
        for number in range(1, first.partitions):
            status = await self._shards.status(self._keys(number))
            if status is not None:
                shards[number] = status
        self._tally.total = sum(one.entries for status in shards.values() for one in status.segments)
        for number, status in shards.items():
            reader = reader_of(self._fold, self._settings.limits, self._registry)
            for segment in status.segments:
                if segment.form != "gap" and (self._from_ms is None or segment.newest_ms >= self._from_ms):
                    rows = await self._rows(number, segment, status)
                    if self._registry is not None:
                        await self._registry.prepare(reader.framed_parts(rows))
                    self._add(number, reader, rows)
                self._tally.done += segment.entries
                on_progress(self._tally)

    def _keys(self, partition: int) -> JournalKeys:
        return journal_keys(self._settings.app_id, self._journal.name, self._journal.source, partition)

    async def _rows(self, partition: int, segment: Segment, status: ShardStatus) -> list[Row]:
        """Return the rows of a segment in offset order; an empty list if the segment was removed meanwhile."""
        last = status.fence if segment.last is None else segment.last
        now: Segment | None = segment
        while now is not None:
            rows = await self._scanned(partition, now, last)
            if rows is not None:
                return rows
            later = await self._shards.status(self._keys(partition))
            now = next((one for one in later.segments if one.first == segment.first), None) if later is not None else None
        return []

    async def _scanned(self, partition: int, segment: Segment, last: int) -> list[Row] | None:
        rows: dict[int, Row] = {}
        after, damaged = b"", 0
        while True:
            members = await self._shards.scan(self._keys(partition), segment, after)
            if members is None:
                return None
            if not members:
                break
            for member in members:
                try:
                    rows |= {row.offset: row for row in decode(member) if segment.first <= row.offset <= last}
                except DamagedBlockError:
                    damaged += 1
            after = members[-1]
        if damaged:
            self._tally.remarks.append(f"damaged blocks of {segment.day}, whose events are not counted: {damaged:,}")
        return sorted(rows.values(), key=attrgetter("offset"))

    def _add(self, partition: int, reader: EventReader, rows: list[Row]) -> None:
        wanted = [row for row in rows if self._is_within(row.time_ms)]
        kept = [self._record_of(row) for row in wanted if too_large(row) is None]
        faults = RangeFaults()
        decoded = decode_all(kept, self._settings.limits) if reader.needs_decoded and not reader.reads_frames else None
        mine, values = RoutedRange(self._settings.app_id, self._folds, kept, decoded).records_for(self._fold.name, faults)
        events: list[FoldInput] = list(reader.events(mine, values, faults))
        self._columns.add(partition, events)
        self._tally.read += len(wanted)
        position = f"{self._journal.source}:{partition}:"
        if faults.rejected:
            self._tally.reject_all(faults.rejected, lambda offset: f"{position}{offset}")
        for _ in range(len(wanted) - len(kept)):
            self._tally.reject("too-large", position, "too large for the journal")

    def _record_of(self, row: Row) -> _FiledRecord:
        key, headers = record_key_of(row, is_by_record_key=self._journal.is_by_record_key)
        return _FiledRecord(row.offset, row.time_ms, row.key or None if key is None else key, row.value, headers)

    def _is_within(self, time_ms: int) -> bool:
        return (self._from_ms is None or time_ms >= self._from_ms) and (self._to_ms is None or time_ms < self._to_ms)
