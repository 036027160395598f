"""The requests of a consumer group's member to the broker, on an aiokafka consumer; awaited on the loop that runs it."""

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
    KafkaError,
    NotCoordinatorForGroupError,
    RebalanceInProgressError,
    RequestTimedOutError,
    TopicAuthorizationFailedError,
    UnknownMemberIdError,
    for_code,
)
from aiokafka.protocol.commit import OffsetCommitRequest
from aiokafka.structs import TopicPartition

from streams_app.backoff import Backoff
from streams_app.delivery.batch import TP
from streams_app.delivery.group_consumer import Committed, Member, NotOwnerError
from streams_app.kafka.log_ends import high_watermarks

_UNANSWERED: Final = (KafkaConnectionError, RequestTimedOutError, CorrelationIdError)
"""The connection is closed, and what was sent on it may still come: after whatever is sent on the next one."""

_NOT_OWNER: Final = (IllegalGenerationError, UnknownMemberIdError, RebalanceInProgressError)


async def committed_of(consumer: AIOKafkaConsumer, tps: Iterable[TP]) -> dict[TP, Committed]:
    """The commits the broker holds now, not those the client meant to make; partitions without a commit are left out."""
    asked = [TopicPartition(*tp) for tp in tps]
    found = await consumer._coordinator.fetch_committed_offsets(asked)
    return {TP(*tp): Committed(held.offset, held.metadata or "") for tp, held in found.items() if held.offset >= 0}


async def places_of(consumer: AIOKafkaConsumer, positions: Mapping[TP, int]) -> dict[TP, tuple[int, int]]:
    """Partition → its position and the end of its log: of all that was acknowledged, also behind an open transaction.

    Args:
        consumer: Asks the broker.
        positions: Below 0: what is committed, or the begin of the log where nothing is.

    Raises:
        KafkaError: It could not be found out now.
    """
    tps = [TopicPartition(*tp) for tp in positions]
    unknown = [tp for tp, position in positions.items() if position < 0]
    if not tps:
        return {}
    ends = await consumer.end_offsets(tps)
    high = await high_watermarks(consumer, tps)
    committed = await committed_of(consumer, unknown) if unknown else {}
    never = [TopicPartition(*tp) for tp in unknown if tp not in committed]
    known = {**positions, **{tp: held.offset for tp, held in committed.items()}}
    known |= {TP(*tp): begin for tp, begin in (await consumer.beginning_offsets(never) if never else {}).items()}
    return {TP(*tp): (known[TP(*tp)], max(end, high[tp])) for tp, end in ends.items()}


async def commit_as(consumer: AIOKafkaConsumer, marks: Mapping[TP, Committed], member: Member) -> None:
    """Commits as a member of a generation, whatever the client is by now; waits for a coordinator that moves.

    aiokafka's own commit is sent under what is current at that moment, and again after a rejoin: the mark of a partition that
    was taken away meanwhile would be accepted. This request stays what it is, and is sent again only where the broker has answered
    that it did not take it, or nothing was sent: one without an answer may come twice, the second time after a newer one.

    Raises:
        NotOwnerError: The broker refused it: the group has gone on without this member, or is about to.
        KafkaError: There was no answer, or an error that lasts; the outcome is unknown.
    """
    coordinator: Any = consumer._coordinator
    request = _commit_request(coordinator.group_id, marks, member)
    backoff = Backoff(first_seconds=0.1, longest_seconds=1.0)
    while True:
        await coordinator.ensure_coordinator_known()
        try:
            async with coordinator._commit_lock:
                sending = asyncio.ensure_future(coordinator._send_req(request))
                sending.add_done_callback(_look)
                response = await asyncio.shield(sending)
            _check(response, coordinator, member)
        except _NOT_OWNER as error:
            raise NotOwnerError(str(error)) from error
        except _UNANSWERED:
            raise
        except KafkaError as error:
            if not error.retriable:
                raise
            await asyncio.sleep(backoff.failed())
        else:
            return


def _look(sending: asyncio.Task[Any]) -> None:
    """Looks at the failure of a request that nobody waits for any more, so that asyncio does not complain that nobody did."""
    if not sending.cancelled():
        sending.exception()


def _commit_request(group: str, marks: Mapping[TP, Committed], member: Member) -> OffsetCommitRequest:
    topics: dict[str, list[tuple[int, int, str]]] = defaultdict(list)
    for tp, mark in marks.items():
        topics[tp.topic].append((tp.partition, mark.offset, mark.metadata))
    retention = OffsetCommitRequest.DEFAULT_RETENTION_TIME
    return OffsetCommitRequest(group, member.generation, member.member_id, retention, list(topics.items()))


def _check(response: Any, coordinator: Any, member: Member) -> None:
    """Raises the error with which the broker refuses the first partition that it refuses; returns if it refuses none."""
    refused = [(code, topic) for topic, partitions in response.topics for _, code in partitions if code]
    if not refused:
        return
    code, topic = refused[0]
    error = for_code(code)
    if error in (GroupCoordinatorNotAvailableError, NotCoordinatorForGroupError):
        coordinator.coordinator_dead()
    is_current = (coordinator.generation, coordinator.member_id) == (member.generation, member.member_id)
    # aiokafka does the same after its own commit. But an error for an old claim says nothing about the member as it is now.
    if is_current and error is RebalanceInProgressError:
        coordinator.request_rejoin()
    elif is_current and error in _NOT_OWNER:
        coordinator.reset_generation()
    raise error(topic if error is TopicAuthorizationFailedError else coordinator.group_id)
