"""Passes a fetched range through Faust as one message.

Faust delivers messages one at a time, which would cost 80 us per event. Its ``ConsumerScheduler`` is the extension point for
delivery: the scheduler of this module yields one :class:`BatchMessage` per partition and fetch.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from faust.transport.utils import DefaultSchedulingStrategy
from faust.types import TP as FaustTP

from streams_app.delivery.batch import Batch


class BatchMessage:
    """Message that holds a fetched batch, with every attribute that Faust reads from a consumer record.

    The receiver removes the batch from the message: Faust's wrappers of a message form a reference cycle, which would retain every
    record in memory until the garbage collector runs.
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
        """Last offset of the range, because Faust counts messages by their offsets."""
        self.timestamp = batch.records[-1].timestamp if batch.records else 0

    @property
    def topic(self) -> str:
        return self.tp.topic

    @property
    def partition(self) -> int:
        return self.tp.partition

    @property
    def value(self) -> BatchMessage:
        """The message itself, because agents receive the value of a message."""
        return self

    def take_batch(self) -> Batch:
        """Return the batch and remove it from the message; call it only once."""
        batch, self._batch = self._batch, None
        assert batch is not None
        return batch


class BatchScheduler(DefaultSchedulingStrategy):
    """Scheduler for Faust that yields the whole batch of each partition as one message."""

    def iterate(self, records: Mapping[FaustTP, Any]) -> Iterator[tuple[FaustTP, Any]]:
        for tp, batch in records.items():
            yield tp, BatchMessage(batch)
