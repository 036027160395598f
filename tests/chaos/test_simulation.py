"""The protocol under random schedules of faults; a failure names the mix and the seed that repeat it exactly."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import pytest
import redis

from tests.chaos.simulation import run_schedule
from tests.chaos.simulation_faults import FAULTS
from tests.conftest import RedisServer

SCHEDULES = 14

MIXES = [
    "",
    "lossy",
    "lossy crash",
    "lossy crash zombie rebalance",
    "lossy wipe",
    "lossy rollback",
    "lossy drops rebalance",
    "lossy retention drops crash",
    "lossy latest crash zombie wipe",
    "lossy crash rebalance dying:fold",
    "lossy crash zombie forget",
    "lossy crash zombie rebalance forget latest",
    "lossy crash zombie rebalance foldset",
    "lossy crash zombie rebalance foldset wipe rollback",
    "lossy crash zombie rebalance wipe rollback drops dying:fold",
    "lossy crash zombie rebalance wipe rollback drops retention latest",
]

OPEN = frozenset({"back"})
"""Known and not yet mended, see the expected failures below. Nothing is lost by it."""

DYING = frozenset({"twice"})
"""A script that dies half-way costs an event's second delivery under another id, no more: what it had sealed is in the outbox and
may be folded once more. No server does that to a script that has begun to write; its loss must not be worse."""


@pytest.fixture(scope="module")
def client(redis_server: RedisServer) -> Iterator[redis.Redis]:
    with redis.Redis.from_url(redis_server.url) as made:
        yield made


@pytest.mark.parametrize("mix", MIXES, ids=lambda mix: mix or "no faults")
def test_nothing_is_lost_invented_or_stuck_whatever_happens(client: redis.Redis, mix: str) -> None:
    counts: Counter[str] = Counter()
    for seed in range(SCHEDULES):
        outcome = run_schedule(client, mix, seed, tolerated=OPEN | DYING if "dying" in mix else OPEN)
        counts.update(outcome.counts)

        assert outcome.violations == [], outcome
    assert counts["events"] > 50 * SCHEDULES
    assert counts["records"] > 25 * SCHEDULES
    assert [] == [fault for fault in mix.split() if fault in FAULTS and not counts[fault]], "a fault never happened"


def test_a_schedule_is_decided_by_its_mix_and_seed(client: redis.Redis) -> None:
    mix = "lossy crash zombie rebalance rollback"
    first, again, other = (run_schedule(client, mix, seed) for seed in (3, 3, 4))

    assert first == again
    assert first.counts != other.counts


def test_no_key_is_left_behind(client: redis.Redis) -> None:
    run_schedule(client, "lossy crash", 1)

    assert [] == list(client.scan_iter("{sim-*"))
