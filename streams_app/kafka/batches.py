"""A fetched range, carried through Faust as if it were one record.

Faust delivers one message at a time and one event at a time would cost it 80 us each. Its ``ConsumerScheduler`` is the
official place to change what is delivered: here it yields one :class:`BatchMessage` a partition and fetch.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from faust.transport.utils import DefaultSchedulingStrategy
from faust.types import TP as FaustTP

from streams_app.delivery.batch import Batch


class BatchMessage:
    """One batch on its way, with every attribute that Faust reads from a consumer record.

    Whoever receives it takes the batch out: what Faust wraps around a carrier refers to itself, and would keep every record in
    memory until the garbage collector runs.
    """

    __slots__ = ("_batch", "offset", "timestamp", "tp")

    timestamp_type = 0
    headers = ()
    key = None
    checksum = None
    serialized_key_size = 0
    serialized_value_size = 0

    def __init__(self, batch: Batch) -> None:
        self._batch: Batch | None = batch
        self.tp = batch.tp
        self.offset = max(batch.end - 1, 0)
        """Last offset of the range: Faust counts messages by their offsets."""
        self.timestamp = batch.records[-1].timestamp if batch.records else 0

    @property
    def topic(self) -> str:
        """Topic of the partition."""
        return self.tp.topic

    @property
    def partition(self) -> int:
        """Number of the partition."""
        return self.tp.partition

    @property
    def value(self) -> BatchMessage:
        """The carrier itself, as agents receive the value of a message."""
        return self

    def taken(self) -> Batch:
        """The batch; it can be taken once."""
        batch, self._batch = self._batch, None
        assert batch is not None
        return batch


class BatchScheduler(DefaultSchedulingStrategy):
    """Yields each partition's batch whole, as the fetch has made it."""

    def iterate(self, records: Mapping[FaustTP, Any]) -> Iterator[tuple[FaustTP, Any]]:
        """One (partition, batch) pair for each partition of a fetch."""
        for tp, batch in records.items():
            yield tp, BatchMessage(batch)
