"""Steps that may fail without harm. A client that is closed cancels tasks that others await, so cancellations are told apart."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine
from typing import Any

logger = logging.getLogger(__name__)


async def attempt(call: Coroutine[Any, Any, Any], seconds: float, what: str) -> None:
    """Await a step that may fail without harm."""
    try:
        await asyncio.wait_for(call, seconds)
    except (Exception, asyncio.CancelledError) as error:  # any error: the following steps must run nevertheless
        if is_cancelled():
            raise
        logger.debug("%s of a consumer that is given up failed", what, exc_info=error)


def is_cancelled() -> bool:
    """Return whether the current task itself is being cancelled."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0
