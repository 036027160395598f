"""A fetched range of offsets, carried through Faust as if it were one record.

Faust delivers one message at a time and one event at a time would cost it 80 us each. Its ``ConsumerScheduler`` is the
official place to change what is delivered: here it yields one :class:`Batch` a partition and fetch.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from faust.transport.utils import DefaultSchedulingStrategy
from faust.types import TP


class Batch:
    """Records of one partition from one fetch, with the range of offsets they stand for.

    The range is ``[begin, end)``: it begins where the fetch before it (or a seek) ended, and ends at the reader's position
    afterwards. What the log skips (compacted records, transaction markers, aborted records) lies inside a range, so that a
    hole between two ranges is always a loss in delivery.

    It carries every attribute that Faust reads from a consumer record.
    """

    __slots__ = ("begin", "end", "fetched_at_ms", "records", "seek_number", "stable_offset", "tp")

    timestamp_type = 0
    headers = ()
    key = None
    checksum = None
    serialized_key_size = 0
    serialized_value_size = 0

    def __init__(  # what a fetch reply says
        self,
        tp: TP,
        records: list[Any],
        begin: int,
        end: int,
        *,
        stable_offset: int | None,
        fetched_at_ms: int | None,
        seek_number: int,
    ) -> None:
        self.tp = tp
        self.records = records
        self.begin = begin
        self.end = end
        self.stable_offset = stable_offset
        self.fetched_at_ms = fetched_at_ms
        self.seek_number = seek_number

    @property
    def topic(self) -> str:
        """Of the partition."""
        return self.tp.topic

    @property
    def partition(self) -> int:
        """Number of the partition."""
        return self.tp.partition

    @property
    def offset(self) -> int:
        """Of the last record the range stands for, as Faust wants to count."""
        return max(self.end - 1, 0)

    @property
    def timestamp(self) -> int:
        """Of the last record, ms."""
        return self.records[-1].timestamp if self.records else 0

    @property
    def value(self) -> Batch:
        """The batch is its own value: the agent receives it as it is."""
        return self

    def __repr__(self) -> str:
        return f"<Batch {self.topic}-{self.partition} [{self.begin}, {self.end}) records={len(self.records)}>"


def is_behind(batches: Iterable[Batch]) -> bool:
    """Whether more is waiting behind one of them."""
    return any(batch.end < (batch.stable_offset or 0) for batch in batches)


class BatchScheduler(DefaultSchedulingStrategy):
    """Yields each partition's batch whole; the fetch has made it already."""

    def iterate(self, records: Mapping[TP, Any]) -> Iterator[tuple[TP, Any]]:
        """One (partition, batch) pair for each partition of a fetch."""
        yield from records.items()
