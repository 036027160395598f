"""Subscribers under random schedules: every event is done or a dead letter, whatever happens to functions, workers and servers."""

from __future__ import annotations

from collections import Counter

import pytest
import redis

from tests.chaos.mutants import Mutant
from tests.chaos.mutants_subscribers import AGAIN
from tests.chaos.simulation import run_schedule
from tests.chaos.simulation_subscribing import Subscribing

SCHEDULES = 5
MIXES = [
    "",
    "history",
    "lossy",
    "lossy drops:3 rebalance:2",
    "lossy crash zombie rebalance",
    "lossy crash zombie rebalance drops history",
    "stale rebalance:2",
    "wipe:2 rollback:2",
    "lossy wipe rollback crash zombie rebalance drops",
]


@pytest.mark.parametrize("mix", MIXES, ids=lambda mix: mix or "no faults")
def test_every_event_is_done_or_a_letter_whatever_happens(client: redis.Redis, mix: str) -> None:
    counts: Counter[str] = Counter()
    for seed in range(SCHEDULES):
        outcome = run_schedule(client, mix, seed, subject=Subscribing)
        counts.update(outcome.counts)

        assert outcome.violations == [], outcome
    assert counts["records"] > 25 * SCHEDULES


@pytest.mark.parametrize("mutant", AGAIN, ids=lambda mutant: mutant.name)
def test_a_broken_subscriber_is_caught(client: redis.Redis, mutant: Mutant) -> None:
    with mutant.applied():
        schedules = ((mix, seed) for mix in mutant.mixes for seed in range(SCHEDULES))
        caught = any(run_schedule(client, mix, seed, subject=Subscribing).violations for mix, seed in schedules)

    assert caught
