"""The metadata that a group member commits beside its offsets, and how a rebalance affects it."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Coroutine
from contextlib import AsyncExitStack, asynccontextmanager
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import pytest
from aiokafka.errors import KafkaConnectionError, UnknownMemberIdError
from aiokafka.protocol.commit import OffsetCommitRequest

from streams_app.clock import SystemClock
from streams_app.delivery.batch import TP
from streams_app.delivery.claim import Claim
from streams_app.delivery.clocks import TrustedClock
from streams_app.delivery.group_consumer import NotOwnerError, PartitionCommit
from streams_app.delivery.offset_metadata import OffsetAndMetadata, commit_of
from streams_app.delivery.ownership import Ownership, OwnershipConfig
from streams_app.delivery.processor import Processors
from streams_app.health.status import Status
from streams_app.kafka.group_member import GroupMember
from streams_app.settings import Settings
from streams_app.subscribers.state.offset_metadata import MAX_METADATA_BYTES
from tests.conftest import KafkaServer, Names
from tests.helpers.delivery.ownership import Taker
from tests.helpers.kafka.topics import create_topics
from tests.helpers.waiting import wait_until
from tests.helpers.worker.site import SESSION

pytestmark = [pytest.mark.timeout(200), pytest.mark.apache]  # the embedded broker stores no metadata and accepts any generation

LIMIT_SECONDS = 60
METADATA = "n" * MAX_METADATA_BYTES


class MetadataTaker(Taker):
    """Commits metadata when it is claimed, and records the metadata that it found."""

    found: OffsetAndMetadata | None = None

    async def claim(self, claim: Claim) -> int:
        self.found = claim.committed
        self.low = OffsetAndMetadata(5, METADATA if claim.committed is None else claim.committed.metadata)
        await claim.commit_now(self.low)
        return 5


class MetadataProcessors(Processors):
    topics: Collection[str] = ()

    def __init__(self, topic: str) -> None:
        self.topics = [topic]
        self.made: list[MetadataTaker] = []

    def of(self, tp: TP, committed: Collection[str]) -> dict[str, MetadataTaker]:
        self.made.append(MetadataTaker())
        return {"ship": self.made[-1]}


@asynccontextmanager
async def member_of(bootstrap: str, names: Names, topic: str) -> Any:
    fold = {"name": "f", "source": f"{topic}.source", "output": topic, "group_key": "id", "changed": "m", "quiet_period": "1s"}
    kafka = {"bootstrap_servers": bootstrap, "session_timeout": SESSION}
    settings = Settings.model_validate({"app_id": names.app_id, "kafka": kafka, "folds": [fold]})
    member = GroupMember(settings, "ship", [topic], release_seconds=1.0)
    processors = MetadataProcessors(topic)
    config = OwnershipConfig(
        TrustedClock(SystemClock()),
        Status(),
        member.fail,
        lambda *_: None,
        session_ms=2_000,
        tick_seconds=0.2,
        on_doubt=member.fail,
    )
    ownership = Ownership(member, processors, config)
    stop = asyncio.Event()
    running = asyncio.create_task(member.run(ownership, stop))
    try:
        yield SimpleNamespace(group_member=member, ownership=ownership, made=processors.made)
    finally:
        stop.set()
        await running


async def test_commit_under_a_former_claim_is_rejected_and_the_metadata_of_the_next_one_stays(
    kafka: KafkaServer, names: Names
) -> None:
    tp = TP(names.topic("orders"), 0)
    await create_topics(kafka.bootstrap_servers, [tp.topic], 1)
    async with AsyncExitStack() as members:
        first = await members.enter_async_context(member_of(kafka.bootstrap_servers, names, tp.topic))
        await wait_until(lambda: tp in first.ownership.partitions, LIMIT_SECONDS, "the first has claimed it")
        former = first.ownership.partitions[tp].member
        other = await members.enter_async_context(member_of(kafka.bootstrap_servers, names, tp.topic))

        def owners() -> list[Any]:
            return [
                one for one in (first, other) if tp in one.ownership.partitions and one.group_member.generation > former.generation
            ]

        await wait_until(lambda: len(owners()) == 1, LIMIT_SECONDS, "one of them has claimed it under the next generation")
        owner = owners()[0]
        with pytest.raises(NotOwnerError):
            await first.group_member.commit({tp: PartitionCommit(9, "begun by nobody")}, former)
        committed = await owner.group_member.committed(tp)

    assert OffsetAndMetadata(5, METADATA) == owner.made[-1].found
    assert commit_of({"ship": OffsetAndMetadata(5, METADATA)}) == committed


async def test_commit_after_its_member_has_rejoined_is_rejected(kafka: KafkaServer, names: Names) -> None:
    tp = TP(names.topic("orders"), 0)
    await create_topics(kafka.bootstrap_servers, [tp.topic], 1)
    async with member_of(kafka.bootstrap_servers, names, tp.topic) as only:
        await wait_until(lambda: tp in only.ownership.partitions, LIMIT_SECONDS, "it has claimed")
        partition = only.ownership.partitions[tp]
        late = await cut_off(
            only.group_member, only.ownership.commits.commit_now(partition, "ship", OffsetAndMetadata(6, METADATA))
        )
        with pytest.raises(NotOwnerError):
            await only.ownership.commits.commit_now(partition, "ship", OffsetAndMetadata(7, METADATA))

        def has_rejoined() -> bool:
            return tp in only.ownership.partitions and only.ownership.partitions[tp].member.member_id != partition.member.member_id

        await wait_until(has_rejoined, LIMIT_SECONDS, "it has joined the group as another member")
        await only.ownership.commits.commit_now(only.ownership.partitions[tp], "ship", OffsetAndMetadata(8, METADATA))
        answer = await only.group_member.client._coordinator._send_req(late)
        committed = await only.group_member.committed(tp)

    assert [UnknownMemberIdError.errno] == [code for _, partitions in answer.topics for _, code in partitions]
    assert commit_of({"ship": OffsetAndMetadata(8, METADATA)}) == committed


async def cut_off(group_member: GroupMember, commit: Coroutine[Any, Any, None]) -> Any:
    """Cut the connection while a commit request is in flight."""
    assert group_member.client is not None
    coordinator, sent = group_member.client._coordinator, []
    send = coordinator._send_req

    async def lose(request: Any) -> Any:
        if not isinstance(request, OffsetCommitRequest):
            return await send(request)
        sent.append(request)
        raise KafkaConnectionError("the connection was cut")

    with patch.object(coordinator, "_send_req", lose), pytest.raises(KafkaConnectionError):
        await commit
    return sent[0]
