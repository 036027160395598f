"""Records to be produced: what processors write, by a producer that waits for the broker."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol, TypeAlias

from aiokafka.errors import MessageSizeTooLargeError, RecordListTooLargeError

TOO_LARGE = (MessageSizeTooLargeError, RecordListTooLargeError)
"""The errors of a record that its topic will never take."""

Outcomes: TypeAlias = list[BaseException | None]
"""One entry a record: None once the broker has acknowledged it, else the error, which leaves open whether it was appended."""


class Outgoing(NamedTuple):
    """One record to be produced: into the partition of its key, or into ``partition``, which must exist."""

    topic: str
    key: bytes | None
    value: bytes | None
    headers: list[tuple[str, bytes]] = []  # noqa: RUF012  # nobody changes the list
    timestamp_ms: int | None = None
    partition: int | None = None


class Producer(Protocol):
    """Produces records and waits for their acknowledgement, not for ever."""

    async def send(self, records: Sequence[Outgoing]) -> Outcomes:
        """Returns what has become of each record."""
