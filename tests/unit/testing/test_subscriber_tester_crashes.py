"""A process crash in the test kit of subscribers: which events wait for it, and the state that it leaves."""

from __future__ import annotations

import asyncio
from typing import Literal

import pytest

from streams_app import Received
from streams_app.testing import SubscriberTester
from tests.helpers.subscribers.kit import Paid, paid, seen_by, subscribed

LEFT = {"yes": (["crash", "done"], []), "no": (["crash"], ["interrupted"])}
"""Outcomes and dead letters of an event whose function had returned when its process was killed, by delivery guarantee."""


async def briefly(event: Received[Paid]) -> None:
    await asyncio.sleep(0.01)  # virtual time


@pytest.mark.parametrize("is_wiped", [False, True])
@pytest.mark.parametrize("idempotent", LEFT)
def test_process_killed_while_a_rebalance_waits_for_it_is_no_longer_awaited(idempotent: str, *, is_wiped: bool) -> None:
    one = subscribed(briefly, idempotent=idempotent)
    with SubscriberTester(one) as kit:
        kit.crash(at="done")
        kit.publish(paid, Paid("o1"))
        if is_wiped:
            kit.wipe_redis()
        kit.rebalance()
        kit.advance("1m")

        assert LEFT[idempotent] == (
            [run.outcome for run in kit.runs(one)],
            [dead_letter.reason for dead_letter in kit.dead_letters(one)],
        )


def test_process_killed_at_the_end_of_the_block_is_no_longer_awaited() -> None:
    one = subscribed(briefly)
    with SubscriberTester(one) as kit:
        kit.crash(at="done")
        kit.publish(paid, Paid("o1"))

    assert [(1, "crash")] == seen_by(kit, one)


@pytest.mark.parametrize("at", ["begun", "done"])
def test_killed_process_logs_nothing_about_its_interrupted_attempt(
    at: Literal["begun", "done"], caplog: pytest.LogCaptureFixture
) -> None:
    one = subscribed(briefly)
    with SubscriberTester(one) as kit:
        kit.crash(at=at)
        kit.publish(paid, Paid("o1"))
        kit.advance("1m")

    assert ([(1, "crash"), (2, "done")], []) == (seen_by(kit, one), caplog.messages)


def test_second_call_after_a_crash_is_made_by_the_next_owner() -> None:
    one = subscribed(briefly)
    with SubscriberTester(one) as kit:
        kit.crash()
        crashed_at = kit.now
        kit.assert_idempotent(one, Paid("o1"), observe=lambda: None)

        assert kit.now > crashed_at  # by the session of the killed process


@pytest.mark.parametrize("how", ["crash", "freeze"])
@pytest.mark.parametrize("is_wiped", [False, True])
def test_at_most_once_event_of_a_process_that_dies_before_its_commit_is_a_dead_letter_only_if_redis_has_lost_it(
    how: str, is_wiped: bool
) -> None:
    async def ship(event: Received[Paid]) -> None:
        """End at once."""

    one = subscribed(ship, idempotent="no")
    with SubscriberTester(one) as kit:
        kit.publish(paid, Paid("o1"))
        if is_wiped:
            kit.wipe_redis()
        if how == "crash":
            kit.crash()
        else:
            kit.freeze("20s")
        kit.advance("1m")

        assert [(1, "done")] == seen_by(kit, one)
        reasons = {dead_letter.reason for dead_letter in kit.dead_letters(one)}
    assert is_wiped == ("interrupted" in reasons)
    assert reasons <= ({"interrupted", "finished-late"} if is_wiped else set())


def test_sleeping_attempt_is_running_until_time_passes() -> None:
    one = subscribed(briefly)
    with SubscriberTester(one) as kit:
        kit.publish(paid, Paid("o1"))
        assert [(1, "running")] == seen_by(kit, one)
        kit.advance("10ms")

        assert [(1, "done")] == seen_by(kit, one)
