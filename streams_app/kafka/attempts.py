"""What may fail without harm, and whose cancellation it is: a client that is closed cancels tasks that others wait for."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine
from typing import Any

logger = logging.getLogger(__name__)


async def attempt(call: Coroutine[Any, Any, Any], seconds: float, what: str) -> None:
    """Awaits something that may fail without harm."""
    try:
        await asyncio.wait_for(call, seconds)
    except (Exception, asyncio.CancelledError) as error:  # whatever it is: what follows must be done all the same
        if is_cancelled():
            raise
        logger.debug("%s of a consumer that is given up failed", what, exc_info=error)


def is_cancelled() -> bool:
    """Whether the task that asks is to end itself."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0
