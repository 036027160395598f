"""A member of a group before its client has found the group."""

from __future__ import annotations

import asyncio
import gc
from types import SimpleNamespace
from typing import Any

import pytest
from aiokafka import AIOKafkaConsumer
from aiokafka.errors import KafkaConnectionError, NodeNotReadyError

from streams_app.delivery.batch import TP
from streams_app.delivery.group_consumer import Member
from streams_app.fold import Fold
from streams_app.kafka.group_member import NO_GENERATION, GroupMember, attempt, is_cancelled
from streams_app.kafka.member_requests import commit_as
from streams_app.settings import Settings
from streams_app.settings.sections import KafkaSettings
from tests.helpers.waiting import wait_until


async def test_member_whose_client_is_starting_has_neither_generation_nor_id() -> None:
    fold = Fold(name="f", source="s", group_key="g", changed="c", quiet_period="1s")
    member = GroupMember(Settings(app_id="a", folds=(fold,)), "g", ["t"])
    member._consumer = AIOKafkaConsumer(bootstrap_servers="127.0.0.1:1")
    found = member.generation, member.member_id
    await member._consumer.stop()

    assert (NO_GENERATION, "") == found


async def test_member_that_releases_for_its_whole_grace_stays_in_its_group() -> None:
    fold = Fold(name="f", source="s", group_key="g", changed="c", quiet_period="1s")
    settings = Settings(app_id="a", folds=(fold,), kafka=KafkaSettings(bootstrap_servers="127.0.0.1:1"))
    member = GroupMember(settings, "g", ["t"], release_seconds=10.0, last_release_seconds=306.0)
    with pytest.raises(KafkaConnectionError):
        await member._join()
    client = member.client
    assert client is not None
    await client.stop()

    assert client._max_poll_interval_ms > 306_000


async def test_record_that_arrives_during_an_offset_lookup_by_time_is_not_skipped() -> None:
    log = [1_000, 2_000]

    class Broker:
        """Answers as for a log that grows after each answer."""

        _client = SimpleNamespace(cluster=SimpleNamespace(leader_for_partition=lambda _: None))

        async def offsets_for_times(self, times: dict[Any, int]) -> dict[Any, Any]:
            ((key, time_ms),) = times.items()
            found = next((SimpleNamespace(offset=at) for at, one in enumerate(log) if one >= time_ms), None)
            log.append(9_000)
            return {key: found}

        async def end_offsets(self, keys: list[Any]) -> dict[Any, int]:
            end = len(log)
            log.append(9_000)
            return {keys[0]: end}

    class Asking(GroupMember):
        async def _asked(self, question: Any) -> Any:
            return await question(Broker())

    fold = Fold(name="f", source="s", group_key="g", changed="c", quiet_period="1s")
    member = Asking(Settings(app_id="a", folds=(fold,)), "g", ["t"])

    assert 2 >= await member.offset_at(TP("t", 0), 5_000)


class Cancelled(GroupMember):
    """A member whose client cancels the request that it awaits."""

    joined = 0

    async def _join(self) -> None:
        self.joined += 1
        if self.joined == 1:
            raise asyncio.CancelledError

    async def _serve(self, ownership: Any, stop: asyncio.Event) -> None:
        stop.set()

    async def _leave(self, ownership: Any, seconds: float) -> None:
        """Do nothing: no group was joined."""


async def test_client_that_cancels_a_waiting_member_is_replaced() -> None:
    fold = Fold(name="f", source="s", group_key="g", changed="c", quiet_period="1s")
    member = Cancelled(Settings(app_id="a", folds=(fold,)), "g", ["t"])
    nobody: Any = None
    await member.run(nobody, asyncio.Event())

    assert 2 == member.joined


async def test_cancellation_inside_a_closing_client_does_not_spread() -> None:
    async def cancelled() -> None:
        raise asyncio.CancelledError

    await attempt(cancelled(), 1, "end")

    assert not is_cancelled()


async def test_cancelled_member_ends() -> None:
    running = asyncio.create_task(attempt(asyncio.Event().wait(), 60, "end"))
    await asyncio.sleep(0)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running


async def test_failure_of_an_abandoned_commit_is_silent() -> None:
    loop = asyncio.get_running_loop()
    answer: asyncio.Future[Any] = loop.create_future()
    asked = asyncio.Event()
    reported: list[str] = []

    async def coordinator_is_known() -> None:
        """Do nothing: the coordinator is known."""

    async def send(request: Any) -> Any:
        asked.set()
        return await answer

    client: Any = SimpleNamespace(
        _coordinator=SimpleNamespace(
            group_id="g", ensure_coordinator_known=coordinator_is_known, _commit_lock=asyncio.Lock(), _send_req=send
        )
    )  # fmt: skip
    loop.set_exception_handler(lambda _, context: reported.append(context["message"]))
    committing = asyncio.create_task(commit_as(client, {}, Member(1, "m")))
    await asked.wait()
    committing.cancel()
    await asyncio.wait({committing})
    answer.set_exception(NodeNotReadyError())
    del committing
    await wait_until(lambda: len(asyncio.all_tasks()) == 1, 60, "the request has ended, too")
    gc.collect()

    assert [] == reported
