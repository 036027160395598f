"""Takes the records of a fetch reply as aiokafka's parser returns them, many at a time.

``PartitionRecords`` of aiokafka (0.14, ``consumer/fetcher.py``) creates a ``ConsumerRecord`` for each record in a generator, which
is half of the cost of reading an event of 100 bytes. :class:`FetchedRecords` replaces that object before its first record is read.
It returns the records of the parser (``offset``, ``timestamp``, ``key``, ``value``, ``headers``), with the same rules for corrupt,
aborted and control batches. With the native core, a batch is parsed into columns: a record becomes an object only when it is read
by itself.
"""

from __future__ import annotations

import sys
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from itertools import chain, islice
from operator import attrgetter
from typing import Any

from aiokafka.consumer.fetcher import READ_COMMITTED, FetchResult, PartitionRecords
from aiokafka.errors import CorruptRecordException
from aiokafka.structs import TopicPartition

from streams_app.native import NativeCore, is_columnar

_OFFSET = attrgetter("offset")


class FetchedRecords:
    """The records of one partition in a fetch reply that were not taken yet."""

    def __init__(self, fetched: PartitionRecords, core: NativeCore | None = None) -> None:
        self.next_fetch_offset: int = fetched.next_fetch_offset
        self._core = core
        self._fetched = fetched
        fetched._records_iterator = None  # a reference cycle, which would retain the reply until garbage is collected
        self._batch: Any = None
        self._is_corrupt = False
        self._records: Iterator[Any] = iter(())
        self._columns: Any = None

    def take(self, most: int) -> Sequence[Any]:
        """Return the next records in offset order; fewer than ``most`` only if no more are left.

        Raises:
            CorruptRecordException: A checksum is wrong. The records that this call had read by then are not returned. Every later
                call raises the error as well, because it must not skip those records.
        """
        self._raise_if_corrupt()
        taken: list[Sequence[Any]] = []
        wanted = most
        while wanted > 0:
            if self._batch is None and not self._open():
                break
            try:
                found = self._next(wanted)
            except UnicodeDecodeError:
                # The name of a header is not UTF-8. The whole batch is read again, and records below the position are dropped.
                self._records = iter(self._fetched._records.reopened())
                continue
            is_exhausted = len(found) < wanted
            if found and found[0].offset < self.next_fetch_offset:
                # The broker sends whole batches, so the position may be within this one.
                found = found[bisect_left(found, self.next_fetch_offset, key=_OFFSET) :]
            if found:
                self.next_fetch_offset = found[-1].offset + 1
                taken.append(found)
                wanted -= len(found)
            if is_exhausted:
                # Also skip offsets after the last record that compaction has removed.
                self.next_fetch_offset = self._batch.next_offset
                self._batch = None
        if self._core is not None and taken and all(map(is_columnar, taken)):
            joined: Sequence[Any] = self._core.Records.joined(taken)
            return joined
        return taken[0] if len(taken) == 1 else list(chain.from_iterable(taken))

    def _next(self, most: int) -> Sequence[Any]:
        """Return the next records of the open batch; fewer than ``most`` only if no more are left."""
        if self._columns is None:
            return list(islice(self._records, most))
        found, self._columns = self._columns[:most], self._columns[most:]
        return found

    @property
    def is_empty(self) -> bool:
        return self._batch is None and not self._fetched._records.has_next()

    def _open(self) -> bool:
        """Advance to the next batch with records for consumers; return False if there is none."""
        fetched = self._fetched
        while fetched._records.has_next():
            batch = fetched._records.open_batch()
            self._is_corrupt = fetched._check_crcs and not fetched._records.is_intact()
            self._raise_if_corrupt()
            if self._is_skipped(batch):
                self.next_fetch_offset = batch.next_offset
                continue
            self._batch, self._columns = batch, self._core and fetched._records.columns(self._core)
            if self._columns is None:
                self._records = chain(batch)  # the parser's own iterator can only be started once
            return True
        return False

    def _raise_if_corrupt(self) -> None:
        if self._is_corrupt:
            raise CorruptRecordException(f"Invalid CRC - {self._fetched._tp}")

    def _is_skipped(self, batch: Any) -> bool:
        fetched = self._fetched
        if fetched._isolation_level == READ_COMMITTED and batch.producer_id is not None:
            fetched._consume_aborted_up_to(batch.base_offset)
            if batch.is_control_batch and fetched._contains_abort_marker(batch):
                fetched._aborted_producers.discard(batch.producer_id)
            if batch.is_transactional and batch.producer_id in fetched._aborted_producers:
                return True
        return bool(batch.is_control_batch)


def take_records(result: FetchResult, tp: TopicPartition, most: int | None, core: NativeCore | None = None) -> Sequence[Any]:
    """Take records of one partition as ``result.getall(most)`` does, but without creating a ``ConsumerRecord`` for each.

    With ``core``, they are columns of the native core, unless a batch is unusual. While the partition is paused, return no records,
    and keep the fetched ones.
    """
    assignment = result._assignment
    if assignment.active and assignment.state_value(tp).paused:
        return []  # aiokafka would discard the reply, and fetch it again after the pause
    if not result.check_assignment(tp) or not result.has_more():
        return []
    if type(result._partition_records) is PartitionRecords:
        result._partition_records = FetchedRecords(result._partition_records, core)
    left = result._partition_records
    records: Sequence[Any] = left.take(most or sys.maxsize)
    result._update_position()
    if left.is_empty:
        result._partition_records = None
    return records
