"""The read store under random schedules: nothing is passed over, whatever happens to its store, its member and its process."""

from __future__ import annotations

from collections import Counter

import pytest
import redis

from tests.chaos.mutants import Mutant
from tests.chaos.mutants_read_store import SYNCING
from tests.chaos.simulation import run_schedule
from tests.chaos.simulation_reading import Reading

SCHEDULES = 5
MIXES = [
    "",
    "history",
    "lossy",
    "lossy drops:3 rebalance:2",
    "lossy crash zombie rebalance",
    "lossy crash zombie rebalance drops history",
    "fragile:store crash",
    "fragile:store freeze zombie rebalance:2",
    "failover:3",
    "lossy failover crash zombie rebalance drops",
]


@pytest.mark.parametrize("mix", MIXES, ids=lambda mix: mix or "no faults")
def test_every_record_gets_to_the_store_whatever_happens(client: redis.Redis, mix: str) -> None:
    counts: Counter[str] = Counter()
    for seed in range(SCHEDULES):
        outcome = run_schedule(client, mix, seed, subject=Reading)
        counts.update(outcome.counts)

        assert outcome.violations == [], outcome
    assert counts["records"] > 25 * SCHEDULES


@pytest.mark.parametrize("mutant", SYNCING, ids=lambda mutant: mutant.name)
def test_a_broken_processor_is_caught(client: redis.Redis, mutant: Mutant) -> None:
    with mutant.applied():
        schedules = ((mix, seed) for mix in mutant.mixes for seed in range(SCHEDULES))
        caught = any(run_schedule(client, mix, seed, subject=Reading).violations for mix, seed in schedules)

    assert caught
