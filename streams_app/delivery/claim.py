"""The claim: the right of a processor to its partition, with methods to commit, to send reports, and to query the log.

:mod:`.claimer` creates claims (see :class:`.PartitionClaim`); a release of the partition ends them.
"""

from __future__ import annotations

import logging
import secrets
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from streams_app.delivery.batch import TP
from streams_app.delivery.clocks import ReaderView
from streams_app.delivery.fingerprints import Fingerprint
from streams_app.delivery.log_continuity import (
    Action,
    Continuation,
    LogVerdict,
    Policy,
    PresentLog,
    StoredPosition,
    continuity_of,
    explanation,
    is_comparable,
)
from streams_app.delivery.offset_metadata import OffsetAndMetadata

logger = logging.getLogger(__name__)


class LogBounds(NamedTuple):
    """First offset and last stable offset of a partition's log.

    Attributes:
        end: The offset after the last readable record.
        asked_ms: Wall-clock time at which the broker was queried.
    """

    begin: int
    end: int
    asked_ms: int


@dataclass(frozen=True, slots=True, eq=False)
class Claim(ABC):
    """The right of one processor to one partition, until the next claim of that partition.

    If the partition has a commit, Kafka has just accepted that commit again from this member and generation, which proves that the
    member owned the partition at that moment. Once the partition is being released, :meth:`resync` and :meth:`on_progress` have no
    effect. Once the processors of the partition have ended, :meth:`commit_now` raises an error.

    If the broker does not answer, a method that queries it raises a ``KafkaError`` or ``TimeoutError``; try again.

    Attributes:
        name: Name of the processor, under which the commit stores its offset.
        token: Random token of this claim. The claim that stored its token last owns the processor's state: every script and
            transaction checks the token.
        generation: Generation of the consumer group. Commits under this claim use this generation and no later one.
        member_id: Id of this member in that generation.
        committed: Committed offset and metadata of this processor; None if the processor is new. If the broker stores no metadata,
            this is the committed offset of the partition.
        log_bounds: Bounds of the log when the claim began.
        partitions: Number of partitions of the topic.
        topic_id: Id that the broker gave the topic when it was created; "" if the broker has no topic ids.
        was_reset: Whether the client has just reset its position by itself: the log was truncated, or the topic was created again.
    """

    tp: TP
    name: str
    generation: int
    member_id: str
    committed: OffsetAndMetadata | None
    log_bounds: LogBounds
    partitions: int
    topic_id: str
    was_reset: bool
    token: str = field(default_factory=lambda: secrets.token_hex(8), kw_only=True)

    @abstractmethod
    def resync(self, cause: str, why: str = "", script: str = "") -> None:
        """Report that the state is not as the processor left it: the partition is claimed again, after a growing backoff.

        The arguments are those of :class:`.ResyncCause`.
        """

    @abstractmethod
    def fatal(self, error: BaseException) -> None:
        """Report an unexpected error, or one that only an operator can resolve.

        After an error of a fold, the process ends. After an error of another processor, the Kafka client of its consumer group is
        recreated.
        """

    @abstractmethod
    def on_progress(self) -> None:
        """Report that :attr:`.Processor.in_flight` has fallen; once it is 0, the reader of the partition is resumed.

        Call it after each step that applies records, not for each record.
        """

    @abstractmethod
    async def commit_now(self, position: OffsetAndMetadata) -> None:
        """Commit the offset of this processor together with those of the partition's other processors; wait for the answer.

        A new processor commits its initial offset by this method within :meth:`.Processor.claim`, *before* it starts. The new
        processors of a partition are committed together, because a broker without metadata would apply the first offset to all.

        Raises:
            NotOwnerError: Kafka rejected the commit, or the processors of the partition have ended.
            KafkaError, TimeoutError: The outcome is unknown; an offset may be committed again at any time.
        """

    @abstractmethod
    async def offsets_in_other_partitions(self) -> Mapping[int, OffsetAndMetadata | None]:
        """Return the committed offset of this processor in every other partition of the topic, by partition number.

        It is None for a partition whose commit has no metadata, so that it is unknown. Partitions are left out if they have no
        commit, or one that does not contain this processor.
        """

    @abstractmethod
    async def log_bounds_now(self) -> LogBounds:
        """Query the broker for the current first offset and last stable offset of the partition.

        Records may be appended after :attr:`log_bounds` was read. So a processor calls this method after it has taken over its
        state, to determine whether it is at the end of the log.
        """

    async def continuation(self, stored: StoredPosition, policy: Policy) -> Continuation:
        """Decide by :mod:`.log_continuity` whether the log is the one that was read, and what the policy of the reader demands.

        If the broker has lost records, this is logged and counted, and the offset of this processor is lowered.

        Raises:
            OtherLogError: The policy demands that an operator decides.
        """
        log = PresentLog(self.topic_id, self.log_bounds.begin, self.log_bounds.end, self.was_reset)
        common = await self.common_end(stored.fingerprints) if is_comparable(stored, self.topic_id) else None
        verdict, offset = continuity_of(stored, log, common)
        action = policy.actions[verdict]
        if action is Action.REJECT:
            what, why = explanation(policy.reader, stored, log, verdict)
            raise OtherLogError(self.tp, what, f"{why}. {policy.advice}")
        if verdict in (LogVerdict.TRUNCATED, LogVerdict.WENT_BACK):
            self.went_back(offset, stored.read_to)
        elif action is Action.RESTART:
            what, why = explanation(policy.reader, stored, log, verdict)
            logger.warning("reading from the beginning: the log %s, %s name=%s source=%s", what, why, self.name, self.tp)
        return Continuation(action, log.begin if action is Action.RESTART else offset)

    @abstractmethod
    async def common_end(self, read: Sequence[Fingerprint]) -> int | None:
        """Compare the log with fingerprints of records that were read, see :func:`.fingerprints.common_end`."""

    @abstractmethod
    def went_back(self, offset: int, read_to: int) -> None:
        """Lower the offset of this processor, if it is higher, and report that the broker lost ``offset`` to ``read_to`` - 1."""

    @abstractmethod
    async def broker_keeps_metadata(self) -> bool:
        """Return whether the broker stores commit metadata, judged by the commit of the partition; False if there is no commit.

        Without metadata, the committed offset applies to all processors.
        """

    @abstractmethod
    async def offset_at(self, time_ms: int) -> int:
        """Return an offset from which to read all records with timestamps >= ``time_ms``; the end of the log if there are none."""

    @abstractmethod
    def reader_view(self) -> ReaderView:
        """Return the end offsets in the last fetch reply of this partition, with or without records, and the time of that fetch."""


class ImpossibleClaimError(Exception):
    """A partition cannot be claimed without an operator's action."""

    def __init__(self, tp: TP, what: str, advice: str) -> None:
        super().__init__(f"{tp} {what}")
        self.advice = advice


class OtherLogError(ImpossibleClaimError):
    """The log is not the one that was read, or the broker has lost a part of it, and only an operator can decide what to do."""
