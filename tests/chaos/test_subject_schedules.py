"""Read stores and subscribers under random schedules: no event is skipped under any faults of servers and workers."""

from __future__ import annotations

from collections import Counter

import pytest
import redis

from tests.chaos.catching import first_catch
from tests.chaos.mutants import Mutant
from tests.chaos.mutants_commits import COMMITS_OF_NOTES
from tests.chaos.mutants_once import AT_MOST_ONCE, UNKNOWN
from tests.chaos.mutants_once_more import KAFKA_UNTOLD, NO_FRESH, ONLY_RECENT, WAIT_AFTER_BEGIN
from tests.chaos.mutants_promises import BY_HAND, IN_ORDER, KEPT_PLACE
from tests.chaos.mutants_read_store import SYNCING
from tests.chaos.mutants_subscribers import AGAIN, AS_OFTEN
from tests.chaos.simulation import run_schedule
from tests.chaos.simulation_once import AtMostOnce, Once
from tests.chaos.simulation_once_more import ByKey, ByKeyWithRoom, FarBehind, Harmless, Hasty, InOrder, PlacedByHand
from tests.chaos.simulation_reading import Reading
from tests.chaos.simulation_subscribing import Subscribing

SCHEDULES = 5
TRIED = 40
"""Schedules of each mix of a broken variant before it counts as a survivor."""
FEW = 3
"""Number of schedules if the same mixes also run without order."""

EVERY_SUBJECT = [
    "",
    "history",
    "lossy",
    "lossy drops:3 rebalance:2",
    "lossy crash zombie rebalance",
    "lossy crash zombie rebalance drops history",
]
READ_STORES = [
    *EVERY_SUBJECT,
    "fragile:store crash",
    "fragile:store freeze zombie rebalance:2",
    "failover:3",
    "lossy failover crash zombie rebalance drops",
]
SUBSCRIBERS = [
    *EVERY_SUBJECT,
    "stale rebalance:2",
    "wipe:2 rollback:2",
    "lossy wipe rollback crash zombie rebalance drops",
    "lossy freeze:3 crash history",
    "retention:3 freeze zombie rebalance:2",
    "retention lossy drops crash",
]
ONCE = [
    *SUBSCRIBERS,
    "drops:9 rebalance:2",
    "lossy crash:4 rebalance:4",
    "fragile:begin fragile:end lossy crash:2",
    "dying:begin dying:end dying:learn crash rebalance",
    "overtaken crash:4 history",
    "overtaken:2 lossy crash:4 rebalance:4 zombie",
    "stale:3 crash:6 zombie:6 rebalance:6",
]
WITH_ROOM = ["", "history", "lossy crash:4 rebalance:4"]


def prove(client: redis.Redis, mix: str, subject: type[Reading | Subscribing], schedules: int = SCHEDULES) -> None:
    """Run the schedules of a mix; check that none has a violation, and that there were events to check."""
    counts: Counter[str] = Counter()
    for seed in range(schedules):
        outcome = run_schedule(client, mix, seed, subject=subject)
        counts.update(outcome.counts)

        assert outcome.violations == [], outcome
    assert counts["records"] > 25 * schedules


@pytest.mark.parametrize("mix", READ_STORES, ids=lambda mix: mix or "no faults")
def test_read_store_receives_every_record_under_any_faults(client: redis.Redis, mix: str) -> None:
    prove(client, mix, Reading)


@pytest.mark.parametrize("mix", ONCE, ids=lambda mix: mix or "no faults")
def test_deduplicated_subscriber_calls_no_event_twice_while_redis_keeps_its_data(client: redis.Redis, mix: str) -> None:
    prove(client, mix, Once)


@pytest.mark.parametrize("mix", ONCE, ids=lambda mix: mix or "no faults")
def test_at_most_once_subscriber_calls_no_event_twice_under_any_faults_of_redis(client: redis.Redis, mix: str) -> None:
    prove(client, mix, AtMostOnce)


@pytest.mark.parametrize(
    ("mix", "subject"),
    [
        ("history crash:9", Hasty),
        ("lossy history crash:6", Hasty),
        ("history wipe:4", FarBehind),
        ("history crash:4", PlacedByHand),
    ],
    ids=lambda part: part if isinstance(part, str) else part.__name__,
)
def test_special_subscriber_calls_no_event_twice_and_skips_none(client: redis.Redis, mix: str, subject: type[Once]) -> None:
    prove(client, mix, subject)


@pytest.mark.parametrize("mix", SUBSCRIBERS, ids=lambda mix: mix or "no faults")
def test_subscriber_processes_or_dead_letters_every_event_under_any_faults(client: redis.Redis, mix: str) -> None:
    prove(client, mix, Subscribing)


@pytest.mark.parametrize(
    ("mix", "subject"),
    [*((mix, InOrder) for mix in SUBSCRIBERS), *((mix, ByKey) for mix in ONCE), *((mix, ByKeyWithRoom) for mix in WITH_ROOM)],
    ids=lambda part: part if isinstance(part, str) else part.__name__,
)
def test_ordered_subscriber_finishes_each_event_before_it_calls_the_next_one_of_the_key(
    client: redis.Redis, mix: str, subject: type[Subscribing]
) -> None:
    prove(client, mix, subject, FEW)


@pytest.mark.parametrize("mix", ["", "history", "lossy"], ids=lambda mix: mix or "no faults")
def test_subscriber_calls_no_event_more_often_than_it_fails(client: redis.Redis, mix: str) -> None:
    prove(client, mix, Harmless)


def test_end_script_that_fails_half_way_causes_no_second_call(client: redis.Redis) -> None:
    outcome = run_schedule(client, "dying:begin dying:end dying:learn crash rebalance", 19, subject=Once)

    assert outcome.violations == [], outcome


@pytest.mark.parametrize("seed", [20, 92])
def test_repeated_claim_in_redis_takes_no_state_from_a_later_owner(client: redis.Redis, seed: int) -> None:
    outcome = run_schedule(client, "lossy crash zombie rebalance", seed, subject=Subscribing)

    assert outcome.violations == [], outcome


@pytest.mark.parametrize(
    ("mutant", "subject"),
    [
        *((mutant, Reading) for mutant in SYNCING),
        *((mutant, Subscribing) for mutant in AGAIN),
        *((mutant, Once) for mutant in UNKNOWN),
        *((mutant, AtMostOnce) for mutant in (*AT_MOST_ONCE, *COMMITS_OF_NOTES)),
        (NO_FRESH, ByKey),
        (WAIT_AFTER_BEGIN, Hasty),
        (ONLY_RECENT, FarBehind),
        (KAFKA_UNTOLD, PlacedByHand),
        *((mutant, PlacedByHand) for mutant in BY_HAND),
        *((mutant, subject) for mutant in IN_ORDER for subject in (ByKeyWithRoom, InOrder)),
        *((mutant, Harmless) for mutant in AS_OFTEN),
        *((KEPT_PLACE, subject) for subject in (Subscribing, Once, AtMostOnce)),
    ],
    ids=lambda part: part.name if isinstance(part, Mutant) else part.__name__,
)
def test_broken_processor_is_caught(client: redis.Redis, mutant: Mutant, subject: type[Reading | Subscribing]) -> None:
    assert first_catch(client, mutant, subject, TRIED) is not None, f"survived: {mutant.why}"
