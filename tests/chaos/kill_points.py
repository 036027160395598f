"""A worker that kills itself with SIGKILL at a named point: ``STREAMS_APP_TEST_KILL_AT=POINT:COUNT``.

Run as ``python -m tests.chaos.kill_points worker ...``. The methods of the product are wrapped from outside.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable
from typing import Any

from streams_app.cli import main
from streams_app.delivery.ownership import Ownership
from streams_app.folding.shard.range_progress import FoldStep
from streams_app.folding.shard.shard import Shard
from streams_app.folding.store.replies import FoldOutcome
from streams_app.journal.agents.keeper import Keeper
from streams_app.journal.agents.shard import JournalShard
from streams_app.journal.store.journal_store import JournalStore
from streams_app.journal.store.segment import Segment
from streams_app.kafka.faust_consumer import FaustGroupConsumer
from streams_app.kafka.producer import AckedProducer

POINTS: dict[str, tuple[Any, str, str]] = {
    "after-fetch": (Ownership, "deliver", "before"),
    "after-fold": (Shard, "fold_once", "after"),
    "after-seal": (Shard, "seal", "after"),
    "after-produce": (AckedProducer, "send", "during"),
    "after-ack": (AckedProducer, "send", "after"),
    "mid-commit": (FaustGroupConsumer, "commit", "during"),
    "in-rebalance": (Ownership, "assigned", "after"),
}

JOURNAL_POINTS: dict[str, tuple[Any, str, str]] = {
    "staged": (JournalStore, "stage", "after"),
    "read-back": (Keeper, "_digest", "after"),
    "before-swap": (JournalStore, "swap", "before"),
    "after-swap": (JournalStore, "swap", "after"),
    "in-drop": (JournalStore, "drop", "during"),
    "midnight": (JournalShard, "_begun", "after"),
}
"""Points of a worker with a journal; at ``midnight``, the first segment of a day begins."""


def arm(point: str, count: int) -> None:
    """Kill the process when it reaches a point for the ``count``-th time."""
    owner, name, when = {**POINTS, **JOURNAL_POINTS}[point]
    original = getattr(owner, name)
    left = [count]

    def is_time() -> bool:
        left[0] -= 1
        return left[0] == 0

    setattr(owner, name, _wrapped(original, when, is_time))


def _wrapped(original: Callable[..., Any], when: str, is_time: Callable[[], bool]) -> Callable[..., Any]:
    async def waited(*args: Any, **kwargs: Any) -> Any:
        if when == "before" and is_time():
            _die()
        if when == "during" and is_time():
            running = asyncio.ensure_future(original(*args, **kwargs))
            await asyncio.wait({running}, timeout=0.002)
            _die()
        result = await original(*args, **kwargs)
        if when == "after" and result is not None and _did_something(result) and is_time():
            _die()
        return result

    def called(*args: Any, **kwargs: Any) -> Any:
        if when == "before" and is_time():
            _die()
        result = original(*args, **kwargs)
        if when == "after" and _did_something(result) and is_time():
            asyncio.get_running_loop().call_later(0.005, _die)
        return result

    return waited if asyncio.iscoroutinefunction(original) else called


def _did_something(result: Any) -> bool:
    """Whether the call did something: a seal without due groups, a fold with a full outbox or a further part of a day does not."""
    if isinstance(result, Segment):
        return result.part == 0
    if isinstance(result, FoldStep):
        return result.outcome is not FoldOutcome.FULL
    return bool(getattr(result, "sealed", True))


def _die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    at, _, times = os.environ["STREAMS_APP_TEST_KILL_AT"].partition(":")
    arm(at, int(times))
    main()
