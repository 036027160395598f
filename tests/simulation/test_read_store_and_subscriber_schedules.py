"""Read stores and subscribers under random schedules: no event is skipped under any faults of servers and workers."""

from __future__ import annotations

import pytest
import redis

from tests.simulation.catching import first_catch
from tests.simulation.mutants import Mutant
from tests.simulation.mutants_at_least_once import AT_LEAST_ONCE, NUMBER_OF_ATTEMPTS
from tests.simulation.mutants_commits import COMMITS_WITH_BEGINS
from tests.simulation.mutants_guarantees import IN_ORDER, MISSING_METADATA, REUSED_PROCESSOR
from tests.simulation.mutants_read_store import SYNCING
from tests.simulation.mutants_write_ahead import (
    AT_MOST_ONCE,
    DEDUPLICATED,
    OFFSET_NOT_COMMITTED,
    ONLY_FRONT_OF_QUEUE,
    ONLY_RECENT_IDS,
    WAITING_AFTER_BEGIN,
)
from tests.simulation.schedules import check_schedules
from tests.simulation.special_subscribers import (
    ByKey,
    ByKeyWithLargeMetadata,
    InOrder,
    OffsetSetByHand,
    OldEvents,
    RetriedAtOnce,
    WithoutKilling,
)
from tests.simulation.subscribing import Subscribing
from tests.simulation.syncing import Syncing
from tests.simulation.world import run_schedule
from tests.simulation.write_ahead import AtMostOnce, Deduplicated

SCHEDULES = 5
CATCHING = 40
"""Schedules of each mix of a broken variant before it counts as a survivor."""
FEW_SCHEDULES = 3
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
DEDUPLICATED_OR_AT_MOST_ONCE = [
    *SUBSCRIBERS,
    "drops:9 rebalance:2",
    "lossy crash:4 rebalance:4",
    "fragile:begin fragile:end lossy crash:2",
    "dying:begin dying:end dying:learn crash rebalance",
    "overtaken crash:4 history",
    "overtaken:2 lossy crash:4 rebalance:4 zombie",
    "stale:3 crash:6 zombie:6 rebalance:6",
]
LARGE_METADATA = ["", "history", "lossy crash:4 rebalance:4"]


@pytest.mark.parametrize("mix", READ_STORES, ids=lambda mix: mix or "no faults")
def test_read_store_receives_every_record_under_any_faults(client: redis.Redis, mix: str) -> None:
    check_schedules(client, mix, Syncing, SCHEDULES)


@pytest.mark.parametrize("mix", DEDUPLICATED_OR_AT_MOST_ONCE, ids=lambda mix: mix or "no faults")
def test_deduplicated_subscriber_calls_no_event_twice_while_redis_keeps_its_data(client: redis.Redis, mix: str) -> None:
    check_schedules(client, mix, Deduplicated, SCHEDULES)


@pytest.mark.parametrize("mix", DEDUPLICATED_OR_AT_MOST_ONCE, ids=lambda mix: mix or "no faults")
def test_at_most_once_subscriber_calls_no_event_twice_under_any_faults_of_redis(client: redis.Redis, mix: str) -> None:
    check_schedules(client, mix, AtMostOnce, SCHEDULES)


@pytest.mark.parametrize(
    ("mix", "subject"),
    [
        ("history crash:9", RetriedAtOnce),
        ("lossy history crash:6", RetriedAtOnce),
        ("history wipe:4", OldEvents),
        ("history crash:4", OffsetSetByHand),
    ],
    ids=lambda part: part if isinstance(part, str) else part.__name__,
)
def test_special_subscriber_calls_no_event_twice_and_skips_none(client: redis.Redis, mix: str, subject: type[Deduplicated]) -> None:
    check_schedules(client, mix, subject, SCHEDULES)


@pytest.mark.parametrize("mix", SUBSCRIBERS, ids=lambda mix: mix or "no faults")
def test_subscriber_processes_or_dead_letters_every_event_under_any_faults(client: redis.Redis, mix: str) -> None:
    check_schedules(client, mix, Subscribing, SCHEDULES)


@pytest.mark.parametrize(
    ("mix", "subject"),
    [
        *((mix, InOrder) for mix in SUBSCRIBERS),
        *((mix, ByKey) for mix in DEDUPLICATED_OR_AT_MOST_ONCE),
        *((mix, ByKeyWithLargeMetadata) for mix in LARGE_METADATA),
    ],
    ids=lambda part: part if isinstance(part, str) else part.__name__,
)
def test_ordered_subscriber_finishes_each_event_before_it_calls_the_next_one_of_the_key(
    client: redis.Redis, mix: str, subject: type[Subscribing]
) -> None:
    check_schedules(client, mix, subject, FEW_SCHEDULES)


@pytest.mark.parametrize("mix", ["", "history", "lossy"], ids=lambda mix: mix or "no faults")
def test_subscriber_calls_no_event_more_often_than_it_fails(client: redis.Redis, mix: str) -> None:
    check_schedules(client, mix, WithoutKilling, SCHEDULES)


def test_end_script_that_fails_half_way_causes_no_second_call(client: redis.Redis) -> None:
    outcome = run_schedule(client, "dying:begin dying:end dying:learn crash rebalance", 19, subject=Deduplicated)

    assert outcome.violations == [], outcome


@pytest.mark.parametrize("seed", [20, 92])
def test_repeated_claim_in_redis_takes_no_state_from_a_later_owner(client: redis.Redis, seed: int) -> None:
    outcome = run_schedule(client, "lossy crash zombie rebalance", seed, subject=Subscribing)

    assert outcome.violations == [], outcome


@pytest.mark.parametrize(
    ("mutant", "subject"),
    [
        *((mutant, Syncing) for mutant in SYNCING),
        *((mutant, Subscribing) for mutant in AT_LEAST_ONCE),
        *((mutant, Deduplicated) for mutant in DEDUPLICATED),
        *((mutant, AtMostOnce) for mutant in (*AT_MOST_ONCE, *COMMITS_WITH_BEGINS)),
        (ONLY_FRONT_OF_QUEUE, ByKey),
        (WAITING_AFTER_BEGIN, RetriedAtOnce),
        (ONLY_RECENT_IDS, OldEvents),
        (OFFSET_NOT_COMMITTED, OffsetSetByHand),
        *((mutant, OffsetSetByHand) for mutant in MISSING_METADATA),
        *((mutant, subject) for mutant in IN_ORDER for subject in (ByKeyWithLargeMetadata, InOrder)),
        *((mutant, WithoutKilling) for mutant in NUMBER_OF_ATTEMPTS),
        *((REUSED_PROCESSOR, subject) for subject in (Subscribing, Deduplicated, AtMostOnce)),
    ],
    ids=lambda part: part.name if isinstance(part, Mutant) else part.__name__,
)
def test_broken_processor_is_caught(client: redis.Redis, mutant: Mutant, subject: type[Syncing | Subscribing]) -> None:
    assert first_catch(client, mutant, subject, CATCHING) is not None, f"survived: {mutant.why}"
