"""Starts and cancels the tasks of a processor, which live as long as its claim."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Coroutine, Mapping
from functools import partial
from types import MappingProxyType
from typing import Any, Final

from streams_app.delivery.claim import Claim
from streams_app.delivery.scripts import FencedError

CANCEL_RETRY_SECONDS: Final = 0.5
"""Time after which a cancelled task that has not ended is cancelled again."""

NO_WORDS: Final[Mapping[str, str]] = MappingProxyType({})


def run(claim: Claim, work: Coroutine[Any, Any, None], name: str, words: Mapping[str, str] = NO_WORDS) -> asyncio.Task[None]:
    """Start a task of a processor, which must cancel it when it is revoked.

    A FencedError in the task calls :meth:`.Claim.resync`, any other error :meth:`.Claim.fatal`. For logs, ``words`` explains causes
    of a FencedError.
    """
    task = asyncio.create_task(work, name=name)
    task.add_done_callback(partial(_ended, claim, words))
    return task


async def cancel_all(tasks: Collection[asyncio.Task[None]]) -> None:
    """Cancel tasks repeatedly until each has ended.

    Once is not enough: ``asyncio.wait_for`` of Python 3.11, which redis-py uses to send, drops a cancellation that arrives at the
    moment when its call completes (python/cpython#86296). A caller that awaits that task would wait forever.
    """
    left = set(tasks)
    while left:
        for task in left:
            task.cancel()
        _, left = await asyncio.wait(left, timeout=CANCEL_RETRY_SECONDS)


def _ended(claim: Claim, words: Mapping[str, str], task: asyncio.Task[None]) -> None:
    error = None if task.cancelled() else task.exception()
    if isinstance(error, FencedError):
        claim.resync(error.cause, words.get(error.cause, ""), error.script)
    elif error is not None:
        claim.fatal(error)
