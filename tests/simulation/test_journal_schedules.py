"""Journals under random schedules: each event once, in segments that match their descriptions, under any faults."""

from __future__ import annotations

import pytest
import redis

from tests.simulation.catching import first_catch
from tests.simulation.journaling import Journaling
from tests.simulation.mutants import Mutant
from tests.simulation.mutants_journal import JOURNALS
from tests.simulation.schedules import check_schedules

SCHEDULES = 3
CATCHING = 12
"""Schedules for each mix of a broken variant."""

MIXES = [
    "",
    "history",
    "lossy",
    "lossy drops:3 rebalance:2",
    "lossy crash zombie rebalance",
    "lossy crash zombie rebalance drops history",
    "lossy freeze:3 crash history",
    "behind lossy",
    "forget crash",
    "wipe:3 rollback:2",
    "wipe:3 history",
    "rollback:9 history",
    "rollback:9 history crash:2",
    "flips history",
    "fragile:append fragile:stage fragile:swap fragile:drop freeze zombie rebalance:2 history",
    "dying:append crash lossy history",
    "dying:stage dying:swap dying:drop crash rebalance history",
    "dying:claim dying:append dying:swap rebalance:3 zombie lossy history",
    "fragile:hub lossy wipe rollback crash zombie rebalance drops",
    "retention:3 freeze zombie rebalance:2",
    "retention:3 wipe lossy drops crash history",
]


@pytest.mark.parametrize("mix", MIXES, ids=lambda mix: mix or "no faults")
def test_journals_contain_each_event_once_and_readers_miss_no_event_without_a_report(client: redis.Redis, mix: str) -> None:
    counts = check_schedules(client, mix, Journaling, SCHEDULES)
    assert counts["packed"] > 2 * SCHEDULES
    assert counts["dropped"] > 2 * SCHEDULES


@pytest.mark.parametrize("mutant", JOURNALS, ids=lambda mutant: mutant.name)
def test_broken_journal_is_caught(client: redis.Redis, mutant: Mutant) -> None:
    assert first_catch(client, mutant, Journaling, CATCHING) is not None, f"survived: {mutant.why}"
