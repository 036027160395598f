"""Requests of a group member to the broker, through an aiokafka consumer. Await the functions on the consumer's event loop."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Any, Final

from aiokafka import AIOKafkaConsumer
from aiokafka.errors import (
    CorrelationIdError,
    GroupCoordinatorNotAvailableError,
    IllegalGenerationError,
    KafkaConnectionError,
    NotCoordinatorForGroupError,
    RebalanceInProgressError,
    RequestTimedOutError,
    TopicAuthorizationFailedError,
    UnknownMemberIdError,
    for_code,
)
from aiokafka.protocol.commit import OffsetCommitRequest
from aiokafka.structs import TopicPartition

from streams_app.delivery.batch import TP
from streams_app.delivery.group_consumer import Member, NotOwnerError, PartitionCommit
from streams_app.kafka.log_ends import high_watermarks, stable_ends
from streams_app.kafka.retriable import while_retriable

_UNANSWERED: Final = (KafkaConnectionError, RequestTimedOutError, CorrelationIdError)
"""Errors of a request whose connection was closed. The broker may still execute the request, even after later requests."""

_NOT_OWNER: Final = (IllegalGenerationError, UnknownMemberIdError, RebalanceInProgressError)


async def committed_of(consumer: AIOKafkaConsumer, tps: Iterable[TP]) -> dict[TP, PartitionCommit]:
    """Read the group's commits from the broker, not from the client's cache; partitions without a commit are left out."""
    asked = [TopicPartition(*tp) for tp in tps]
    found = await consumer._coordinator.fetch_committed_offsets(asked)
    return {
        TP(*tp): PartitionCommit(present.offset, present.metadata or "") for tp, present in found.items() if present.offset >= 0
    }


async def unread_ranges_of(consumer: AIOKafkaConsumer, positions: Mapping[TP, int]) -> dict[TP, tuple[int, int]]:
    """Return the position and the high watermark of each partition; the offsets between them are not read yet.

    Args:
        positions: Position of each partition. A negative position is replaced by the committed offset, or by the first offset
            if there is no commit.
    """
    tps = [TopicPartition(*tp) for tp in positions]
    unknown = [tp for tp, position in positions.items() if position < 0]
    if not tps:
        return {}
    ends = await stable_ends(consumer, tps)
    high = await high_watermarks(consumer, tps)
    committed = await committed_of(consumer, unknown) if unknown else {}
    never = [TopicPartition(*tp) for tp in unknown if tp not in committed]
    offsets = {**positions, **{tp: present.offset for tp, present in committed.items()}}
    offsets |= {TP(*tp): begin for tp, begin in (await consumer.beginning_offsets(never) if never else {}).items()}
    return {TP(*tp): (offsets[TP(*tp)], max(end, high[tp])) for tp, end in ends.items()}


async def commit_as(consumer: AIOKafkaConsumer, positions: Mapping[TP, PartitionCommit], member: Member) -> None:
    """Commit as :meth:`.GroupConsumer.commit` promises; while the coordinator moves, retry.

    The request is repeated only if the broker has rejected it or it was not sent. If an unanswered request were repeated, the
    broker might execute it twice, the second time after a newer commit.
    """
    coordinator: Any = consumer._coordinator
    request = _commit_request(coordinator.group_id, positions, member)

    async def commit() -> None:
        await coordinator.ensure_coordinator_known()
        try:
            async with coordinator._commit_lock:
                sending = asyncio.ensure_future(coordinator._send_req(request))
                sending.add_done_callback(_retrieve_exception)
                response = await asyncio.shield(sending)
            _check(response, coordinator, member)
        except _NOT_OWNER as error:
            raise NotOwnerError(str(error)) from error

    await while_retriable(commit, final=_UNANSWERED)


def _retrieve_exception(sending: asyncio.Task[Any]) -> None:
    """Retrieve the exception of a request that is no longer awaited, so that asyncio does not log it."""
    if not sending.cancelled():
        sending.exception()


def _commit_request(group: str, positions: Mapping[TP, PartitionCommit], member: Member) -> OffsetCommitRequest:
    topics: dict[str, list[tuple[int, int, str]]] = defaultdict(list)
    for tp, position in positions.items():
        topics[tp.topic].append((tp.partition, position.offset, position.metadata))
    retention = OffsetCommitRequest.DEFAULT_RETENTION_TIME
    return OffsetCommitRequest(group, member.generation, member.member_id, retention, list(topics.items()))


def _check(response: Any, coordinator: Any, member: Member) -> None:
    """Raise the first error of a commit response; return normally if the broker has accepted all offsets.

    Before the error is raised, aiokafka's coordinator is made to act on it as after a commit of its own: it looks for the group's
    new coordinator, or rejoins the group.
    """
    rejected = [(code, topic) for topic, partitions in response.topics for _, code in partitions if code]
    if not rejected:
        return
    code, topic = rejected[0]
    error = for_code(code)
    if error in (GroupCoordinatorNotAvailableError, NotCoordinatorForGroupError):
        coordinator.coordinator_dead()
    is_current = (coordinator.generation, coordinator.member_id) == (member.generation, member.member_id)
    # aiokafka does the same after its own commits. An error for an earlier membership does not concern the current one.
    if is_current and error is RebalanceInProgressError:
        coordinator.request_rejoin()
    elif is_current and error in _NOT_OWNER:
        coordinator.reset_generation()
    raise error(topic if error is TopicAuthorizationFailedError else coordinator.group_id)
