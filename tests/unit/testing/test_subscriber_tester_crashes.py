"""The death of a process in the test kit of subscribers: who waits for it, and what it leaves behind."""

from __future__ import annotations

import asyncio
from typing import Literal

import pytest

from streams_app import Received
from streams_app.testing import SubscriberTester
from tests.kit import Paid, paid, seen_by, subscribed

LEFT = {"yes": (["crash", "done"], []), "no": (["crash"], ["interrupted"])}
"""Outcomes and letters of an event whose function had returned when its process was killed, by what its subscriber promises."""


async def briefly(event: Received[Paid]) -> None:
    await asyncio.sleep(0.01)  # virtual time


@pytest.mark.parametrize("is_wiped", [False, True])
@pytest.mark.parametrize("idempotent", LEFT)
def test_a_process_that_is_killed_while_a_rebalance_waits_for_what_runs_is_waited_for_no_longer(
    idempotent: str, *, is_wiped: bool
) -> None:
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
            [letter.reason for letter in kit.dead_letters(one)],
        )


def test_a_process_that_is_killed_while_the_block_is_left_is_waited_for_no_longer() -> None:
    one = subscribed(briefly)
    with SubscriberTester(one) as kit:
        kit.crash(at="done")
        kit.publish(paid, Paid("o1"))

    assert [(1, "crash")] == seen_by(kit, one)


@pytest.mark.parametrize("at", ["begun", "done"])
def test_a_process_that_was_killed_logs_nothing_of_the_attempt_that_it_has_lost(
    at: Literal["begun", "done"], caplog: pytest.LogCaptureFixture
) -> None:
    one = subscribed(briefly)
    with SubscriberTester(one) as kit:
        kit.crash(at=at)
        kit.publish(paid, Paid("o1"))
        kit.advance("1m")

    assert ([(1, "crash"), (2, "done")], []) == (seen_by(kit, one), caplog.messages)


def test_a_second_call_after_a_crash_is_made_in_the_process_that_takes_over() -> None:
    one = subscribed(briefly)
    with SubscriberTester(one) as kit:
        kit.crash()
        crashed_at = kit.now
        kit.assert_idempotent(one, Paid("o1"), observe=lambda: None)

        assert kit.now > crashed_at  # by the session of the one that was killed


@pytest.mark.parametrize("how", ["crash", "freeze"])
def test_a_no_whose_process_stops_before_the_commit_of_its_end_is_done_and_leaves_a_letter_as_in_a_worker(how: str) -> None:
    async def ship(event: Received[Paid]) -> None:
        """Ends at once."""

    one = subscribed(ship, idempotent="no")
    with SubscriberTester(one) as kit:
        kit.publish(paid, Paid("o1"))
        if how == "crash":
            kit.crash()
        else:
            kit.freeze("20s")
        kit.advance("1m")

        assert [(1, "done")] == seen_by(kit, one)
        assert "interrupted" == kit.dead_letters(one)[0].reason


def test_an_attempt_that_sleeps_is_running_until_time_passes() -> None:
    one = subscribed(briefly)
    with SubscriberTester(one) as kit:
        kit.publish(paid, Paid("o1"))
        assert [(1, "running")] == seen_by(kit, one)
        kit.advance("10ms")

        assert [(1, "done")] == seen_by(kit, one)
