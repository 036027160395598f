"""Shutdown of a subscriber whose worker is stopped during a rebalance, by the test kit."""

from __future__ import annotations

import asyncio

import pytest

from streams_app import Received
from streams_app.delivery.ownership import LAST_COMMIT_SECONDS
from streams_app.subscribers.running.processor import RELEASE_SECONDS
from streams_app.testing import SubscriberTester
from tests.helpers.subscribers.kit import Paid, paid, subscribed

GRACE_SECONDS = 15.0


@pytest.mark.parametrize(
    ("runs_seconds", "ended_after_seconds", "outcome", "reasons"),
    [
        pytest.param(10, 8, "done", [], id="what runs has its grace"),
        pytest.param(40, 15, "interrupted", ["interrupted"], id="no longer, although the rebalance would wait"),
    ],
)
@pytest.mark.parametrize("idempotent", ["unknown", "no"])
def test_stop_during_a_rebalance_gives_running_attempts_their_grace(
    idempotent: str, runs_seconds: float, ended_after_seconds: float, outcome: str, reasons: list[str]
) -> None:
    async def ship(event: Received[Paid]) -> None:
        await asyncio.sleep(runs_seconds)  # virtual time

    one = subscribed(ship, idempotent=idempotent, timeout="2m")
    with SubscriberTester(one) as kit:
        owner = kit._workers.owner
        ((member, _),) = owner._local._served
        ownership = member._ownership
        assert ownership is not None
        kit.publish(paid, Paid("o1"))
        kit.advance("1s")
        owner.run_outside_attempts(ownership.revoked(ownership.partitions))
        kit.advance("1s")
        stopped_at = kit.now
        kit._workers.run_outside_attempts(ownership.stop(GRACE_SECONDS + RELEASE_SECONDS + LAST_COMMIT_SECONDS))

        assert (ended_after_seconds, [outcome]) == ((kit.now - stopped_at).total_seconds(), [run.outcome for run in kit.runs(one)])
        kit.rebalance()
        kit.advance("1m")
        assert (1, reasons) == (len(kit.runs(one)), [dead_letter.reason for dead_letter in kit.dead_letters(one)])
