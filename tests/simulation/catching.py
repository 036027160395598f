"""Decides whether a broken variant is caught."""

from __future__ import annotations

from collections.abc import Callable

import redis

from tests.simulation.mix import tolerated_in
from tests.simulation.mutants import Mutant
from tests.simulation.subject import Subject
from tests.simulation.world import Outcome, World, run_schedule

CRASH = "crash: "


def first_catch(client: redis.Redis, mutant: Mutant, subject: Callable[[World], Subject], schedules: int) -> Outcome | None:
    """Return the first schedule that violates a guarantee with the mutant and passes without it.

    A process that ends with an error of its own does not count as a violation: a variant that cannot run removes no rule.

    Args:
        client: Client of a real server.
        mutant: The broken variant.
        subject: The processors under test.
        schedules: Number of schedules for each mix before the mutant counts as a survivor.
    """
    for seed in range(schedules):
        for mix in mutant.mixes:
            with mutant.applied():
                broken = run_schedule(client, mix, seed, subject=subject, tolerated=tolerated_in(mix))
            if not all(violation.startswith(CRASH) for violation in broken.violations):
                if not run_schedule(client, mix, seed, subject=subject, tolerated=tolerated_in(mix)).violations:
                    return broken
    return None
