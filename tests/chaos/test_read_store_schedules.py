"""The read store under random schedules: nothing is passed over, whatever happens to its store, its member and its process."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import pytest
import redis

from tests.chaos.mutants import Change, Mutant
from tests.chaos.simulation import run_schedule
from tests.chaos.simulation_reading import Reading
from tests.conftest import RedisServer

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
]

BROKEN = (
    Mutant(
        "the first transaction of a range notes its end",
        "A crash between two transactions loses what follows.",
        ("lossy crash zombie rebalance drops history",),
        (Change("read_store.processor:_steps", "taken[at + 1][0].offset if at + 1 < len(taken) else batch.end", "batch.end"),),
    ),
    Mutant(
        "what is delivered may be committed",
        "The mark is ahead of the store.",
        ("fragile:store crash",),
        (
            Change(
                "read_store.processor:StoreProcessor.deliver",
                "self._arrived.put_nowait(batch)",
                "self._next = batch.end\nself._arrived.put_nowait(batch)",
            ),
        ),
    ),
    Mutant(
        "what the store refuses is passed over",
        "A store that is away loses names.",
        ("fragile:store crash",),
        (Change("read_store.processor:StoreProcessors.done", "await asyncio.sleep(wait_ms / 1000)", "return None"),),
    ),
    Mutant(
        "every range is taken",
        "What a rebalance drops is passed over.",
        ("lossy drops:3 rebalance:2",),
        (
            Change(
                "delivery.ranges:Ranges.deliver",
                "if any(batch.begin > served.next for served in self.served.values()):",
                "if False:",
            ),
        ),
    ),
)


@pytest.fixture(scope="module")
def client(redis_server: RedisServer) -> Iterator[redis.Redis]:
    with redis.Redis.from_url(redis_server.url) as made:
        yield made


@pytest.mark.parametrize("mix", MIXES, ids=lambda mix: mix or "no faults")
def test_every_record_gets_to_the_store_whatever_happens(client: redis.Redis, mix: str) -> None:
    counts: Counter[str] = Counter()
    for seed in range(SCHEDULES):
        outcome = run_schedule(client, mix, seed, subject=Reading)
        counts.update(outcome.counts)

        assert outcome.violations == [], outcome
    assert counts["records"] > 25 * SCHEDULES


@pytest.mark.parametrize("mutant", BROKEN, ids=lambda mutant: mutant.name)
def test_a_broken_processor_is_caught(client: redis.Redis, mutant: Mutant) -> None:
    with mutant.applied():
        schedules = ((mix, seed) for mix in mutant.mixes for seed in range(SCHEDULES))
        caught = any(run_schedule(client, mix, seed, subject=Reading).violations for mix, seed in schedules)

    assert caught
