"""Runs steps whose failure is harmless, such as closing a client.

Closing a client cancels tasks that other code awaits. So a cancellation of the caller is distinguished from one within the step.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine
from typing import Any

logger = logging.getLogger(__name__)


async def attempt(call: Coroutine[Any, Any, Any], seconds: float, what: str) -> None:
    """Await ``call`` for at most ``seconds``. Log its failure at debug level, and return normally.

    Only a cancellation of the caller is raised, not a cancellation within ``call``.

    Args:
        call: The step.
        seconds: Timeout.
        what: Name of the step, for the log.
    """
    try:
        await asyncio.wait_for(call, seconds)
    except (Exception, asyncio.CancelledError) as error:  # any error: the caller's further steps must still run
        if is_cancelled():
            raise
        logger.debug("%s of a consumer that is given up failed", what, exc_info=error)


def is_cancelled() -> bool:
    """Return whether the current task itself is being cancelled."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0
