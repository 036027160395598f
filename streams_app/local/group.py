"""A consumer group in memory, and the reader of one of its partitions, for local mode, test kits and the simulation."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from aiokafka.errors import IllegalGenerationError, KafkaError, UnknownMemberIdError

from streams_app.delivery.batch import TP, Batch
from streams_app.delivery.clocks import ReaderView
from streams_app.delivery.group_consumer import Member, NotOwnerError, PartitionCommit

NO_GENERATION: Final = -1
NOTHING_FETCHED: Final = ReaderView(None, None)


@dataclass(slots=True)
class ConsumerGroup:
    """A consumer group as its coordinator sees it: one member owns all partitions.

    Attributes:
        generation: Number that increases by one each time the group gets an owner; 0: it has never had one.
        owner: Id of the member that owns the partitions; "" if the group has never had an owner.
        committed: Last commit of each partition; a partition without a commit is missing.
    """

    generation: int = 0
    owner: str = ""
    committed: dict[TP, PartitionCommit] = field(default_factory=dict)

    def give(self, owner: str) -> int:
        """Make a member the owner of all partitions; return the new generation."""
        self.generation, self.owner = self.generation + 1, owner
        return self.generation

    def rejection(self, claim: Member) -> type[KafkaError] | None:
        """Return the type of error with which the coordinator rejects a commit under ``claim``; None if it accepts the commit."""
        if claim.member_id != self.owner:
            return UnknownMemberIdError
        return None if claim.generation == self.generation else IllegalGenerationError

    def commit(self, offsets: Mapping[TP, PartitionCommit], claim: Member) -> None:
        if self.rejection(claim) is not None:
            raise NotOwnerError(f"generation {claim.generation} of {claim.member_id} is not {self.generation} of {self.owner}")
        self.committed.update(offsets)


@dataclass(slots=True)
class PartitionReader:
    """Position and pause state of the reader of one partition.

    Attributes:
        position: Offset of the next record; None if the group has no commit and the reader has not been moved.
        seek_number: Number of the last seek, which is copied to each batch; 0: there was no seek.
        view: End offsets and time of the last fetch reply of this assignment.
    """

    tp: TP
    position: int | None = None
    seek_number: int = 0
    is_paused: bool = True
    view: ReaderView = NOTHING_FETCHED

    def assign(self, committed: PartitionCommit | None) -> None:
        """Begin a new assignment: the reader is paused at the committed offset, and nothing is known of the log's end."""
        self.position = committed.offset if committed else None
        self.is_paused, self.view = True, NOTHING_FETCHED

    def seek(self, offset: int) -> int:
        self.position = offset
        self.seek_number += 1
        return self.seek_number

    def fetch(self, records: list[Any], end: int, stable_offset: int, now_ms: int) -> Batch | None:
        """Move the reader past the records of a fetch reply; return the batch to deliver, or None if the position has not moved.

        Args:
            records: Records in the reply, from :attr:`position` up to ``end``.
            end: Position of the reader after the fetch.
            now_ms: Wall-clock time at which the request was sent, in ms.
        """
        self.view = ReaderView(stable_offset, now_ms)
        begin = self.position
        if begin is None or end <= begin:
            return None
        self.position = end
        return Batch(self.tp, records, begin, end, stable_offset=stable_offset, fetched_at_ms=now_ms, seek_number=self.seek_number)
