"""Live views under random schedules: each state matches the log, and browsers receive only such states."""

from __future__ import annotations

import pytest
import redis

from tests.simulation.catching import first_catch
from tests.simulation.mutants import Mutant
from tests.simulation.mutants_live import VIEWS
from tests.simulation.schedules import check_schedules
from tests.simulation.viewing import Viewing

SCHEDULES = 4
CATCHING = 30
"""Schedules for each mix of a broken variant, ten times the median; a variant that needs more has a named test."""

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
    "redefined history crash",
    "tabs",
    "wipe:3 rollback:2",
    "wipe:3 history",
    "fragile:apply fragile:expire freeze zombie rebalance:2",
    "fragile:hub wipe",
    "fragile:hub lossy wipe rollback crash zombie rebalance drops",
    "retention:3 freeze zombie rebalance:2",
    "retention:3 wipe lossy drops crash history",
]


@pytest.mark.parametrize("mix", MIXES, ids=lambda mix: mix or "no faults")
def test_views_match_the_log_and_browsers_receive_only_their_states(client: redis.Redis, mix: str) -> None:
    check_schedules(client, mix, Viewing, SCHEDULES)


@pytest.mark.parametrize("mutant", VIEWS, ids=lambda mutant: mutant.name)
def test_broken_view_is_caught(client: redis.Redis, mutant: Mutant) -> None:
    assert first_catch(client, mutant, Viewing, CATCHING) is not None, f"survived: {mutant.why}"
