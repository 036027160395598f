"""The member of a consumer group through which a partition is read and committed."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from streams_app.delivery.batch import TP
from streams_app.delivery.clocks import ReaderView
from streams_app.delivery.fingerprints import Incarnation
from streams_app.errors import TryAgainError


class GroupConsumer(Protocol):
    """One member of one consumer group: Faust's consumer, a bare aiokafka consumer, or the simulation.

    Each host has an :class:`streams_app.delivery.ownership.Ownership` of its own, so that a rebalance of one group never holds up
    another. Whoever writes a host owes the ownership three things:

    * **Membership.** After each assignment the host pauses what is assigned and calls ``ownership.assigned(generation)``, also
      where nothing changed. From the callback that takes partitions away it awaits ``ownership.revoked(tps)`` before it lets the
      group go on: the last commit happens there. At the end, while it still is a member, it awaits ``ownership.stop()``. It sends
      its heartbeats, polls often enough to stay a member while everything is paused, and never commits or seeks by itself: no
      auto commit, ``read_committed``, ``auto_offset_reset="earliest"``.
    * **Ranges.** Each fetch becomes one :class:`streams_app.delivery.batch.Batch` for each partition, given to
      ``ownership.deliver``. ``begin`` is the reader's position before the records were taken, ``end`` its position afterwards,
      ``seek_number`` the number of the last seek; nothing may be awaited between the three, or a seek comes between. A fetch that
      moved the position and brought no record is a batch, too. ``fetched_at_ms`` is when the fetch was *asked for*. A batch may
      be dropped at any time: the chain rule notices. It may not be delivered twice or changed.
    * **Timers.** ``ownership.tick_once()`` every tick and ``ownership.commit_once()`` every ``worker.commit_every``, from the
      loop on which all methods of the ownership are called.

    What a host asks of the broker is in :mod:`streams_app.kafka.members`, for any aiokafka consumer: the committed offsets, the
    commit under a claim, the edges of the log.

    Methods are called from that loop; ``generation``, ``assignment`` and ``reader_view`` also from the watchdog's thread.
    """

    @property
    def generation(self) -> int:
        """Generation of the consumer group, as far as this member has heard from the coordinator."""

    @property
    def member_id(self) -> str:
        """Id that the coordinator gave this member; read together with :attr:`generation` when a claim begins."""

    def assignment(self) -> Collection[TP]:
        """Partitions this member believes to be its own."""

    def partition_count(self, topic: str) -> int:
        """How many partitions a topic has by the metadata of the cluster; 1 while that is unknown."""

    async def topic_id(self, topic: str) -> str:
        """The id the broker gave the topic when it was made; "" where it gives none.

        Raises:
            KafkaError: The broker does not answer, or the topic does not exist.
        """

    async def committed(self, tp: TP) -> Committed | None:
        """The commit that the broker holds now, not what this process meant to commit; None where there never was one."""

    async def commits(self, topic: str) -> Mapping[int, Committed]:
        """The commits that the broker holds for a topic, by partition number; partitions without a commit are left out."""

    async def commit(self, marks: Mapping[TP, Committed], claim: Member) -> None:
        """Commits under the generation *and the member id* of a claim, whatever this member is by now.

        A client commits under what is current when the request is sent, and may send it again after it has joined anew: a mark from
        before the rejoin would be accepted. So the request is built with the generation and member id of the claim and sent once.

        Raises:
            NotOwnerError: Kafka refused the commit: the group has no such generation or member any more.
            KafkaError, TimeoutError: The outcome is unknown; a low watermark may be committed again at any time.
        """

    async def log_range(self, tp: TP) -> tuple[int, int]:
        """First offset of the log and its end, as ``read_committed`` sees it."""

    async def offset_at(self, tp: TP, time_ms: int) -> int:
        """Offset of the first record that is not older than a time, or a lower one; the end of the log where there is none."""

    async def checksum_at(self, tp: TP, offset: int) -> int:
        """The checksum of the record at an offset, see :func:`streams_app.delivery.fingerprints.checksum_of`.

        Returns:
            :data:`.GONE` where the record was removed, :data:`.OTHER` where the log ends below it or has no record there.

        Raises:
            KafkaError: The broker does not answer, or cannot tell now.
        """

    async def incarnations(self, topic: str) -> Mapping[int, Incarnation]:
        """What changes whenever the log of a partition may have become another one, by partition number.

        Raises:
            KafkaError: The broker does not answer, or the topic does not exist.
        """

    async def seek(self, tp: TP, offset: int) -> int:
        """Moves the reader of a partition to an offset.

        Returns:
            The seek number: batches fetched before the seek carry another one.

        Raises:
            NotOwnerError: The partition is not assigned to this member.
        """

    def pause(self, tps: Collection[TP]) -> None:
        """Stops fetching these partitions; what was fetched before may still be delivered."""

    def resume(self, tps: Collection[TP]) -> None:
        """Fetches these partitions again, at once."""

    def reader_view(self, tp: TP) -> tuple[ReaderView, int | None]:
        """What the last fetch of a partition said, and the reader's position; safe to call from any thread."""


class NotOwnerError(Exception):
    """Kafka refused a commit under our generation: another member may own the partition."""


class InDoubtError(TryAgainError):
    """A commit has had no answer: the broker may take it after a newer one, as long as our member is in the group."""


@dataclass(frozen=True, slots=True)
class Committed:
    """The committed offset that the broker holds for a partition, and the metadata that was committed with it."""

    offset: int
    metadata: str


class Member(NamedTuple):
    """The member of a consumer group in whose name something is committed.

    Attributes:
        generation: Generation of the consumer group in which it owns its partitions.
        member_id: Id that the group's coordinator gave it in that generation.
    """

    generation: int
    member_id: str
