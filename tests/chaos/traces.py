"""The traces that faults must leave: a fault without an effect proves nothing."""

from __future__ import annotations

import random
import re
from operator import itemgetter

from tests.chaos.stage import FOLD, Stage
from tests.helpers.waiting import wait_until
from tests.helpers.worker.workers import WorkerProcess

TRACE_SECONDS = 40.0
CLAIMED = f"claimed fold={FOLD}"
_CLAIM = re.compile(rf"^(\S+ \S+) .*{CLAIMED} source=(\S+)", re.MULTILINE)


class NoTraceError(AssertionError):
    """A fault left no trace: it may not have happened."""


def must(condition: object, trace: str) -> None:
    """Raise NoTraceError unless the trace exists."""
    if not condition:
        raise NoTraceError(trace)


def claims(stage: Stage) -> int:
    """Return the number of claims of all workers."""
    return stage.logs().count(CLAIMED)


async def a_member(stage: Stage, chance: random.Random) -> WorkerProcess:
    """Return a worker that has a partition: the loss of a worker that is still joining the group would have no effect."""
    return chance.choice(await wait_until(lambda: _owners(stage), TRACE_SECONDS, "a worker has a partition"))


def _owners(stage: Stage) -> list[WorkerProcess]:
    """Return the running workers that were the last to claim a partition."""
    latest: dict[str, tuple[str, WorkerProcess]] = {}
    for worker in (*stage.ended, *stage.workers):
        for at, source in _CLAIM.findall(worker.log()):
            latest[source] = max(latest.get(source, (at, worker)), (at, worker), key=itemgetter(0))
    owners = [owner for _, owner in latest.values()]
    return [worker for worker in stage.workers if worker.exit_code is None and worker in owners]


async def until_reclaimed(stage: Stage, before: int) -> None:
    """Wait until a partition has been claimed after ``before`` was counted."""
    await wait_until(lambda: claims(stage) > before, TRACE_SECONDS, "partitions are claimed again")
