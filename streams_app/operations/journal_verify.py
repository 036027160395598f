"""Compares a journal with its topic: decodes every block, and compares every event that Kafka still has.

Workers may run meanwhile. The comparison holds one segment at a time in memory, as one hash for each entry.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from aiokafka import AIOKafkaConsumer, TopicPartition

from streams_app.delivery.batch import TP
from streams_app.journal.core.block import DamagedBlockError, decode
from streams_app.journal.core.entry import UNKEYED, Row, headers_with_key, row_of
from streams_app.journal.store.journal_store import JournalScripts, JournalShardReader, ShardStatus
from streams_app.journal.store.keys import journal_keys
from streams_app.journal.store.segment import Segment
from streams_app.kafka.log_ends import stable_ends
from streams_app.kafka.log_reader import log_reader, read_ranges
from streams_app.operations.groups import redis_of
from streams_app.operations.journal import statuses_of
from streams_app.schemas.registry import registry_of
from streams_app.schemas.values import ValueReader
from streams_app.settings import JournalSettings, Limits, Settings

MAX_NAMED: Final = 20
"""Maximum number of faults that are described; all are counted."""

Progress = Callable[[str, int, int | None], None]


@dataclass(slots=True)
class JournalComparison:
    """Result of the comparison of a journal with its topic.

    Attributes:
        compared: Number of events that Kafka still has and that were compared.
        faults: Number of faults: damaged blocks, and events that are missing or differ.
        named: Descriptions of the first faults.
    """

    segments: int = 0
    entries: int = 0
    compared: int = 0
    faults: int = 0
    named: list[str] = field(default_factory=list)

    def fault(self, text: str) -> None:
        """Count a fault; store its description if it is among the first :data:`MAX_NAMED`."""
        self.faults += 1
        if len(self.named) < MAX_NAMED:
            self.named.append(text)


async def verify_journal(settings: Settings, journal: JournalSettings, on_progress: Progress) -> JournalComparison:
    """Decode all blocks of a journal, and compare their events with those that Kafka still has.

    Args:
        on_progress: Called with a message, the number of segments that were compared, and their total.
    """
    found = JournalComparison()
    async with redis_of(settings) as redis:
        statuses = await statuses_of(redis, settings.app_id, journal)
        shards = {number: status for number, status in statuses.items() if status is not None}
        if not shards:
            return found
        total, done = sum(len(status.segments) for status in shards.values()), 0
        reader = JournalShardReader(JournalScripts(redis))
        async with log_reader(settings.kafka, journal.source, shards) as consumer:
            tps = {number: TopicPartition(journal.source, number) for number in shards}
            begins, ends = await consumer.beginning_offsets(list(tps.values())), await stable_ends(consumer, list(tps.values()))
            for number, status in shards.items():
                log = consumer, TP(*tps[number]), (begins[tps[number]], ends[tps[number]])
                shard = _ShardComparison(reader, settings, journal, number, found, log)
                for segment in status.segments:
                    await shard.compare(segment, status)
                    done += 1
                    on_progress("comparing", done, total)
    return found


class _ShardComparison:
    """Compares one partition of a journal with its topic."""

    def __init__(
        self,
        reader: JournalShardReader,
        settings: Settings,
        journal: JournalSettings,
        partition: int,
        found: JournalComparison,
        log: tuple[AIOKafkaConsumer, TP, tuple[int, int]],
    ) -> None:
        self._reader = reader
        self._keys = journal_keys(settings.app_id, journal.name, journal.source, partition)
        self._journal = journal
        self._limits: Limits = settings.limits
        self._partition = partition
        self._found = found
        self._log = log
        self._schemas = None if journal.format == "json" else registry_of(settings, [journal.format])
        self._values = ValueReader(journal.format, self._schemas, journal.unavailable_value)

    async def compare(self, segment: Segment, status: ShardStatus) -> None:
        """Compare one segment. If it was compressed meanwhile, compare its new blocks; if it was removed meanwhile, skip it."""
        last = status.fence if segment.last is None else segment.last
        now: Segment | None = segment
        while now is not None:
            if now.form == "gap":
                return
            hashes = await self._hashes(now, last)
            if hashes is not None:
                break
            later = await self._reader.status(self._keys)
            now = next((one for one in later.segments if one.first == segment.first), None) if later is not None else None
        else:
            return
        self._found.segments += 1
        self._found.entries += len(hashes)
        if len(hashes) != segment.entries:
            self._fault(segment, f"it has {len(hashes):,} events, and counts {segment.entries:,}")
        await self._compare_with_log(segment, hashes, last)

    async def _hashes(self, segment: Segment, last: int) -> dict[int, int] | None:
        """Return the hash of each event of a segment, by offset, and count damaged blocks as faults.

        Return None if the segment was removed or compressed meanwhile.
        """
        hashes: dict[int, int] = {}
        damaged: list[str] = []
        after = b""
        while True:
            members = await self._reader.scan(self._keys, segment, after)
            if members is None:
                return None
            if not members:
                break
            for member in members:
                try:
                    rows = decode(member)
                except DamagedBlockError as error:
                    damaged.append(str(error))
                    continue
                # A script that died half-way leaves duplicates, or rows after the end.
                hashes |= {row.offset: _hash_of(row) for row in rows if segment.first <= row.offset <= last}
            after = members[-1]
        for text in damaged:
            self._fault(segment, text)
        return hashes

    async def _compare_with_log(self, segment: Segment, hashes: dict[int, int], last: int) -> None:
        consumer, tp, (begin, end) = self._log
        begin, end = max(begin, segment.first), min(end, last + 1)
        if begin >= end:
            return
        consumer.resume(TopicPartition(*tp))
        async for batch in read_ranges(consumer, {tp: (begin, end)}):
            if self._schemas is not None:
                await self._schemas.prepare(self._values.framed_parts(batch.records))
            for record in batch.records:
                row, _ = row_of(record, self._journal, self._limits, self._values)
                kept = hashes.get(row.offset)
                if kept is None:
                    self._fault(segment, f"offset {row.offset} of the topic is missing")
                elif kept not in self._expected(row, record.key):
                    self._fault(segment, f"offset {row.offset} is another event in the topic")
                self._found.compared += 1

    def _expected(self, row: Row, record_key: bytes | None) -> set[int]:
        """Return the hash of each form in which the journal may have stored an event."""
        # The journal stores an event without a key if the registry did not have its schema yet.
        rows = [row, row._replace(key=UNKEYED)] if self._schemas else [row]
        with_key = [
            one._replace(
                headers=headers_with_key(one.key, one.headers, record_key, is_by_record_key=self._journal.is_by_record_key)
            )
            for one in rows
        ]
        return {_hash_of(one) for one in (*rows, *with_key)}  # former versions did not store the record key

    def _fault(self, segment: Segment, text: str) -> None:
        self._found.fault(f"partition {self._partition}, {segment.day} (offsets from {segment.first} on): {text}")


def _hash_of(row: Row) -> int:
    # Only the row is hashed: it is the same in a block of several keys and in a block of one key.
    return hash((row.key, row.time_ms, row.value, tuple(map(tuple, row.headers))))
