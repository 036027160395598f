"""Runs the schedules of a mix of faults, and checks that none of them violates an invariant."""

from __future__ import annotations

from collections import Counter

import redis

from tests.simulation.world import run_schedule


def check_schedules(client: redis.Redis, mix: str, subject: type, schedules: int) -> Counter[str]:
    """Run schedules with a mix of faults; check that none has a violation, and that there were records to check.

    Returns:
        What happened in all schedules together, by name.
    """
    counts: Counter[str] = Counter()
    for seed in range(schedules):
        outcome = run_schedule(client, mix, seed, subject=subject)
        counts.update(outcome.counts)

        assert outcome.violations == [], outcome
    assert counts["records"] > 25 * schedules
    return counts
