"""The port between the delivery layer and folds, read stores, subscribers, live views and journals.

The delivery layer decides which member owns a partition, in which ranges its log is delivered, and which offsets are committed. A
:class:`Processor` handles the records of one partition for one of those components, and stores its own state. A :class:`.Claim`
connects a processor with its partition.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Final, Protocol

from streams_app.delivery.batch import TP, Batch
from streams_app.delivery.claim import Claim
from streams_app.delivery.offset_metadata import OffsetAndMetadata
from streams_app.health.progress import Progress

NO_OFFSET: Final = 2**63 - 1
"""Result of :meth:`Processor.claim` if the processor needs no records: an offset beyond the end of every log."""


class Processor(Protocol):
    """Processes one partition for one fold, read store, subscriber, live view or journal. Each claim creates a new one.

    Methods with a body are defaults for subclasses.

    All methods run on the event loop of the worker. :meth:`deliver` and :meth:`tick` must not block: work runs in tasks, see
    :func:`streams_app.delivery.tasks.run`.
    """

    @property
    def in_flight(self) -> int:
        """Number of records that are delivered but not applied; the reader of the partition is paused while it is not 0.

        An implementation must lower it while it processes a long range; otherwise the watchdog considers the partition stuck.
        """

    async def claim(self, claim: Claim) -> int:
        """Take over the processor's state under ``claim.token``. After a timeout, the call is cancelled.

        A processor without state starts at ``claim.committed``. If that is None, it chooses where it starts, and commits that
        offset by :meth:`.Claim.commit_now` before it writes anything.

        Returns:
            The first offset that the processor needs: fence + 1, which may be below or above the committed offset.
            :data:`NO_OFFSET` if it needs none.

        Raises:
            FencedError: Another owner took over the state during the call; the claim is retried.
            NewerFormatError: The state has the format of a newer version; nothing was written, and the claim is retried.
            ImpossibleClaimError: An operator must act, for example because the state belongs to another log.
            KafkaError, RedisError, OSError, TimeoutError: A dependency failed; the claim is retried.
        """

    def deliver(self, batch: Batch) -> None:
        """Accept the next range of records.

        The first range begins at the offset that :meth:`claim` returned, each later one at the end of the range before it.
        """

    async def position_to_commit(self) -> OffsetAndMetadata | None:
        """Return the offset and metadata to commit; None if there is no state yet, so that nothing is committed for the partition.

        Also called after :meth:`revoke`, for the last commit.

        Raises:
            KafkaError, RedisError, OSError, TimeoutError: A dependency failed; the method is called again later.
        """

    def tick(self, now_ms: int) -> None:
        """Do the work that is due by the trusted clock, or start a task for it; called every ``worker.tick``, and after a claim."""
        return

    def progress(self, monotonic_ms: int) -> Progress | None:
        """Return the progress of work besides applying ranges, such as emitting records; None if there is none, or it is paused.

        May be called from any thread.
        """
        return None

    async def revoke(self, seconds: float) -> None:
        """End the processor, with a grace period of ``seconds`` for running work; its state remains for the next owner.

        No range is delivered afterwards. The method is called once, also after a failed claim.
        """

    def shorten_deadline(self, seconds: float) -> None:
        """Reduce the grace period of :meth:`revoke` to ``seconds`` from now."""
        return

    async def on_commit_rejected(self) -> None:
        """Handle the rejection of the last commit by Kafka; called after :meth:`revoke`.

        The next owner does not receive the metadata of that commit. So a subscriber, for example, sends dead letters for events
        whose success only that metadata would have shown.
        """
        return


class Processors(Protocol):
    """Creates the processors for the partitions of one consumer group."""

    @property
    def topics(self) -> Collection[str]:
        """Topics that are read; partitions of other topics are not claimed."""

    def of(self, tp: TP, committed: Collection[str]) -> Mapping[str, Processor]:
        """Create the processors of a partition, at least one, and return them by name.

        Args:
            committed: Names in the partition's last commit. A processor may be created for a name that is no longer declared; the
                offset of a name without a processor is retained.

        Raises:
            ConfigurationError: The offsets and metadata of so many processors do not fit into a commit.
        """

    def is_paused(self, topic: str) -> bool:
        """Return whether a topic makes no progress because its processing is paused for a known reason; called from any thread."""
        return False
