"""The port to a consumer group: how one of its members reads and commits its partitions."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from streams_app.delivery.batch import TP
from streams_app.delivery.clocks import ReaderView
from streams_app.delivery.fingerprints import Incarnation
from streams_app.errors import TryAgainError


class GroupConsumer(Protocol):
    """A member of a consumer group: Faust's consumer, a bare aiokafka consumer, or one in memory.

    Each member has its own :class:`streams_app.delivery.ownership.Ownership`, so that a rebalance of one group never delays another
    group. An implementation must do three things for its ownership:

    * **Membership.** After each assignment it pauses the assigned partitions and calls ``ownership.assigned(generation)``, even
      if nothing changed. In the revocation callback it awaits ``ownership.revoked(tps)`` before the group continues: the last
      commit happens there. At the end, while it is still a member, it awaits ``ownership.stop()``. It sends heartbeats, polls
      often enough to stay a member while everything is paused, and never commits or seeks by itself. An aiokafka consumer needs
      ``enable_auto_commit=False``, ``isolation_level="read_committed"`` and ``auto_offset_reset="earliest"``.
    * **Ranges.** Each fetch becomes one :class:`streams_app.delivery.batch.Batch` for each partition, given to
      ``ownership.deliver``. ``begin`` is the reader's position before the records were taken, ``end`` its position afterwards,
      ``seek_number`` the number of the last seek. No await may separate reading these three, because a seek could intervene. A
      fetch that moved the position without a record also becomes a batch. ``fetched_at_ms`` is when the request was *sent*. A
      batch may be lost: the chain rule detects the gap. It must not be delivered twice, nor changed.
    * **Timers.** It calls ``ownership.tick_once()`` every ``worker.tick`` and ``ownership.commit_once()`` every
      ``worker.commit_every``, on the event loop on which it calls all methods of the ownership.

    :mod:`streams_app.kafka.member_requests` implements requests to the broker for any aiokafka consumer: reading committed offsets,
    and committing as the member and generation of a claim.

    If the broker does not answer, or a topic does not exist, a request raises a ``KafkaError``.

    The ownership calls the methods below on its event loop. The watchdog's thread also calls ``generation``, ``assignment`` and
    ``reader_view``.
    """

    @property
    def generation(self) -> int:
        """Generation that the coordinator last reported to this member."""

    @property
    def member_id(self) -> str:
        """Id that the coordinator gave this member; a claim reads it together with :attr:`generation`."""

    def assignment(self) -> Collection[TP]: ...

    def partition_count(self, topic: str) -> int:
        """Return the number of partitions of a topic according to the client's metadata; 1 if the metadata lacks the topic."""

    async def topic_id(self, topic: str) -> str:
        """Return the id that the broker gave the topic when it was created; "" if the broker has no topic ids."""

    async def committed(self, tp: TP) -> PartitionCommit | None:
        """Read the committed offset and metadata of a partition from the broker; None if the group has not committed any."""

    async def commits(self, topic: str) -> Mapping[int, PartitionCommit]:
        """Read the group's commits for a topic, by partition number; partitions without a commit are left out."""

    async def commit(self, positions: Mapping[TP, PartitionCommit], claim: Member) -> None:
        """Commit under the generation *and the member id* of a claim, even if this member has rejoined since.

        A client commits under its current generation and may repeat the request after a rejoin, so that Kafka would accept an
        offset from before the rejoin. So this request contains the generation and member id of the claim. It is repeated only if it
        had no effect: the broker has rejected it, because the coordinator moves, or it was not sent.

        Raises:
            NotOwnerError: Kafka rejected the commit, because the group no longer has this generation or member.
            KafkaError, TimeoutError: The outcome is unknown; a low watermark may be committed again at any time.
        """

    async def log_range(self, tp: TP) -> tuple[int, int]:
        """Return the first offset and the last stable offset of a partition's log."""

    async def offset_at(self, tp: TP, time_ms: int) -> int:
        """Return an offset from which to read all records with timestamps >= ``time_ms``; the end of the log if there are none."""

    async def checksum_at(self, tp: TP, offset: int) -> int:
        """Return the checksum of the record at an offset, see :func:`streams_app.delivery.fingerprints.checksum_of`.

        :data:`.GONE` if the record was removed; :data:`.OTHER` if the log ends before the offset, or has a transaction marker
        there.
        """

    async def incarnations(self, topic: str) -> Mapping[int, Incarnation]:
        """Return the topic id and leader epoch of each partition, by partition number; empty before Kafka 2.8.

        Both may stay the same although a broker has restarted on an older copy of its disk.
        """

    async def seek(self, tp: TP, offset: int) -> int:
        """Seek a partition to an offset; return the number of this seek. Batches that were fetched before it have another number.

        Raises:
            NotOwnerError: The partition is not assigned to this member.
        """

    def pause(self, tps: Collection[TP]) -> None:
        """Pause fetching of partitions; records that were fetched before may still be delivered."""

    def resume(self, tps: Collection[TP]) -> None: ...

    def reader_view(self, tp: TP) -> tuple[ReaderView, int | None]:
        """Return the end offsets in a partition's last fetch reply, and the position of its reader.

        The position is None while it is unknown. Safe to call from any thread.
        """


class NotOwnerError(Exception):
    """Kafka rejected a commit of the claim, or the claim has ended: another member may own the partition."""


class InDoubtError(TryAgainError):
    """The broker did not answer a commit, which may still take effect after a newer commit while this member stays in the group."""


@dataclass(frozen=True, slots=True)
class PartitionCommit:
    """The committed offset of a partition, and the metadata of the commit."""

    offset: int
    metadata: str


class Member(NamedTuple):
    """Identity under which a member of a consumer group commits: a generation, and the id that the coordinator gave it there."""

    generation: int
    member_id: str
