"""The traces that faults must leave: a fault that nobody noticed proves nothing."""

from __future__ import annotations

import random

from tests.chaos.stage import FOLD, Stage
from tests.helpers import wait_until
from tests.workers import WorkerProcess

TRACE_SECONDS = 40.0
CLAIMED = f"claimed fold={FOLD}"


class NoTraceError(AssertionError):
    """A fault that left no trace: perhaps it never happened."""


def must(condition: object, trace: str) -> None:
    """Raises NoTraceError unless the trace is there."""
    if not condition:
        raise NoTraceError(trace)


def claims(stage: Stage) -> int:
    """How often any worker has claimed a partition."""
    return stage.logs().count(CLAIMED)


async def a_member(stage: Stage, chance: random.Random) -> WorkerProcess:
    """One of the workers that have had partitions: nobody would notice that one has gone that is still starting."""
    return chance.choice(
        await wait_until(
            lambda: [one for one in stage.workers if one.exit_code is None and CLAIMED in one.log()],
            TRACE_SECONDS,
            "a worker has claimed a partition",
        )
    )


async def claimed_again(stage: Stage, before: int) -> None:
    """Returns when a partition has been claimed since ``before`` was counted."""
    await wait_until(lambda: claims(stage) > before, TRACE_SECONDS, "partitions are claimed again")
