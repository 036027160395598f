"""The port of a producer that waits for acknowledgement, and the records that processors send."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol, TypeAlias

from aiokafka.errors import MessageSizeTooLargeError, RecordListTooLargeError

TOO_LARGE = (MessageSizeTooLargeError, RecordListTooLargeError)
"""Errors of a record that its topic will never accept."""

Outcomes: TypeAlias = list[BaseException | None]
"""One entry for each record: None if the broker has acknowledged the record, else the error.

After an error, the record may still have been appended.
"""


class OutgoingRecord(NamedTuple):
    """A record to produce.

    Attributes:
        timestamp_ms: None for the current time.
        partition: Number of an existing partition. If it is None, the key determines the partition; without a key, the producer
            chooses one.
    """

    topic: str
    key: bytes | None
    value: bytes | None
    headers: list[tuple[str, bytes]] = []  # noqa: RUF012  # the list is never changed
    timestamp_ms: int | None = None
    partition: int | None = None


class Producer(Protocol):
    """Produces records and waits for their acknowledgement, with a deadline."""

    async def send(self, records: Sequence[OutgoingRecord]) -> Outcomes:
        """Send records; return an outcome for each, in the same order."""
