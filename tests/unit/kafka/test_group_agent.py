"""The agent of a component: its gauges while the broker answers and while it does not, and the end of its membership."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest

from streams_app.clock import SystemClock
from streams_app.delivery.batch import TP
from streams_app.delivery.clocks import TrustedClock
from streams_app.delivery.processor import Processors
from streams_app.errors import TryAgainError
from streams_app.health.metrics import Metrics
from streams_app.health.outage_reporter import OutageReporter
from streams_app.health.status import Status
from streams_app.kafka.group_agent import GroupAgent, UnreadRanges, config_of, lag_of
from streams_app.settings import Settings

ONE, TWO = TP("orders", 0), TP("orders", 1)


class Membership:
    """A membership whose requests have given answers; it ends after the last one."""

    group = "journal.accounts"

    def __init__(self, *answers: UnreadRanges | Exception) -> None:
        self._answers = list(answers)
        self._has_ended = asyncio.Event()
        self.outage = OutageReporter("consumer of group a.journal.accounts")
        self.has_left = False

    def assignment(self) -> set[TP]:
        return set()

    async def unread_ranges(self, positions: object) -> UnreadRanges:
        if not self._answers:
            self._has_ended.set()
            await asyncio.Event().wait()
        answer = self._answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    async def run(self, ownership: object, stop: asyncio.Event) -> None:
        await self._has_ended.wait()
        self.has_left = True


def agent_of(member: Membership, update: Any, **options: Any) -> GroupAgent:
    settings = Settings.model_validate({"app_id": "a", "journals": [{"name": "accounts", "source": "events", "key": "account_id"}]})
    config = config_of(settings, "g", TrustedClock(SystemClock()), Metrics(settings), lambda error: None)
    return GroupAgent("journal", cast("Any", member), cast("Processors", None), config, update, update_seconds=0.0, **options)


async def test_gauges_are_updated_without_a_lag_while_the_broker_does_not_answer() -> None:
    found: list[UnreadRanges | None] = []
    member = Membership({ONE: (1, 4)}, TimeoutError(), {})
    await agent_of(member, found.append).run(asyncio.Event())

    assert [{ONE: (1, 4)}, None, {}] == found


async def test_gauges_that_fail_are_logged_once_and_updated_again(caplog: pytest.LogCaptureFixture) -> None:
    updates = []

    def update(unread_ranges: UnreadRanges | None) -> None:
        updates.append(unread_ranges)
        raise ValueError("a defect")

    await agent_of(Membership({}, {}, {}), update).run(asyncio.Event())

    assert 3 == len(updates)
    assert ["gauges of a journal failed, trying again group=journal.accounts"] == caplog.messages


async def test_outages_of_a_component_and_of_its_client_are_remarks_until_they_end() -> None:
    status, member, store = Status(), Membership({}, {}, {}), OutageReporter("read store dash")
    store.failed(TryAgainError("locked"))
    found: list[list[str]] = []

    def update(unread_ranges: UnreadRanges | None) -> None:
        found.append([text.partition(" since ")[0] for text in status.remarks()])
        store.succeeded()
        if len(found) == 1:
            member.outage.failed(TryAgainError("denied"))
        else:
            member.outage.succeeded()

    await agent_of(member, update, status=status, outages=[store]).run(asyncio.Event())

    assert [["read store dash does not work"], ["consumer of group a.journal.accounts does not work"], []] == found


async def test_component_ends_after_its_member_has_left_the_group() -> None:
    member, found = Membership({}), []

    async def end() -> None:
        found.append((member.has_left, [task for task in asyncio.all_tasks() if task.get_name() == "journal.accounts gauges"]))

    await agent_of(member, lambda unread_ranges: None, on_end=end).run(asyncio.Event())

    assert [(True, [])] == found


def test_lag_does_not_fall_below_zero_if_the_end_of_a_log_is_older_than_a_position() -> None:
    assert 3 == lag_of({ONE: (1, 4), TWO: (9, 5)})
