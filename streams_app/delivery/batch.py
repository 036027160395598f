"""A fetched batch: a range of offsets of one partition, and the records in it (pure)."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from operator import attrgetter
from typing import Any, NamedTuple, Protocol


class TP(NamedTuple):
    """A partition of a topic; compares equal to ``TP`` of Faust and ``TopicPartition`` of aiokafka."""

    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"


class SourceRecord(Protocol):
    """A consumer record, with the attributes that readers use."""

    @property
    def offset(self) -> int: ...

    @property
    def timestamp(self) -> int | None:
        """In ms; negative or None if the record has none."""

    @property
    def key(self) -> bytes | None: ...

    @property
    def value(self) -> bytes | None:
        """None for a tombstone."""


class SourceRecordWithHeaders(SourceRecord, Protocol):
    """A consumer record, for readers that also use its headers."""

    @property
    def headers(self) -> Sequence[tuple[str, bytes | None]]:
        """A value may be None."""


class Batch:
    """Records of one partition from one fetch, with their range of offsets.

    The range is ``[begin, end)``: it begins where the previous fetch (or a seek) ended, and ends at the reader's position after
    the fetch. Offsets that the log skips (compacted records, transaction markers, aborted records) lie inside a range, so a gap
    between two ranges always means that a fetched batch was not delivered.

    Attributes:
        records: Records of the range in offset order; each has an ``offset``. The processors of a partition share them, and must
            not change them.
        stable_offset: Last stable offset of the partition in the fetch reply; None if the reply has none.
        fetched_at_ms: Wall-clock time at which the fetch request was sent.
        seek_number: Number of the last seek before the fetch, see :meth:`streams_app.delivery.group_consumer.GroupConsumer.seek`.
        connection: Connection to the broker at the time when the batch was taken from the client. It may be newer than the
            connection of the fetch; None if there was none. Connections are compared by identity.
    """

    __slots__ = ("__weakref__", "begin", "connection", "end", "fetched_at_ms", "records", "seek_number", "stable_offset", "tp")

    def __init__(
        self,
        tp: TP,
        records: Sequence[Any],
        begin: int,
        end: int,
        *,
        stable_offset: int | None,
        fetched_at_ms: int | None,
        seek_number: int,
        connection: object = None,
    ) -> None:
        self.tp = tp
        self.records = records
        self.begin = begin
        self.end = end
        self.stable_offset = stable_offset
        self.fetched_at_ms = fetched_at_ms
        self.seek_number = seek_number
        self.connection = connection

    def since(self, offset: int) -> Batch:
        """Return the part of this batch that begins at ``offset``; the whole batch if ``offset`` is at or below :attr:`begin`."""
        if offset <= self.begin:
            return self
        at = bisect_left(self.records, offset, key=attrgetter("offset"))
        return Batch(
            self.tp, self.records[at:], offset, self.end,
            stable_offset=self.stable_offset, fetched_at_ms=self.fetched_at_ms, seek_number=self.seek_number,
            connection=self.connection,
        )  # fmt: skip

    def last_up_to(self, offset: int) -> Any:
        """Return the last record whose offset is at most ``offset``; None if there is none."""
        at = bisect_right(self.records, offset, key=attrgetter("offset"))
        return self.records[at - 1] if at else None

    def followed_by(self, later: Batch) -> Batch:
        """Return one batch that covers this range and ``later``, which must begin where this range ends."""
        return Batch(
            self.tp, [*self.records, *later.records], self.begin, later.end,
            stable_offset=later.stable_offset, fetched_at_ms=later.fetched_at_ms, seek_number=later.seek_number,
            connection=later.connection,
        )  # fmt: skip

    def __repr__(self) -> str:
        return f"<Batch {self.tp} [{self.begin}, {self.end}) records={len(self.records)}>"
