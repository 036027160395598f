"""When a broken variant counts as caught."""

from __future__ import annotations

from collections.abc import Callable

import redis

from tests.chaos.mutants import Mutant
from tests.chaos.simulation import Outcome, World, run_schedule
from tests.chaos.simulation_subject import Subject

CRASH = "crash: "


def first_catch(client: redis.Redis, mutant: Mutant, subject: Callable[[World], Subject], schedules: int) -> Outcome | None:
    """The first schedule that breaks a promise with the mutant and passes without it.

    A process that ends with an error of its own breaks none: text that cannot run takes no rule away.

    Args:
        client: Of a real server.
        mutant: The broken variant.
        subject: The processors that are tried.
        schedules: Tried for each of its mixes before it counts as a survivor.
    """
    for seed in range(schedules):
        for mix in mutant.mixes:
            with mutant.applied():
                broken = run_schedule(client, mix, seed, subject=subject)
            if not all(violation.startswith(CRASH) for violation in broken.violations):
                if not run_schedule(client, mix, seed, subject=subject).violations:
                    return broken
    return None
