"""The traces that faults must leave: a fault that nobody noticed proves nothing."""

from __future__ import annotations

from tests.chaos.stage import FOLD, Stage
from tests.helpers import wait_until

TRACE_SECONDS = 40.0


class NoTraceError(AssertionError):
    """A fault that left no trace: perhaps it never happened."""


def must(condition: object, trace: str) -> None:
    """Raises NoTraceError unless the trace is there."""
    if not condition:
        raise NoTraceError(trace)


def claims(stage: Stage) -> int:
    """How often any worker has claimed a partition."""
    return stage.logs().count(f"claimed fold={FOLD}")


async def claimed_again(stage: Stage, before: int) -> None:
    """Returns when a partition has been claimed since ``before`` was counted."""
    await wait_until(lambda: claims(stage) > before, TRACE_SECONDS, "partitions are claimed again")
