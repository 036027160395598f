"""The end of a fetch that has failed: a consumer that is stopped while it waits for the next attempt closes without an error.

``Fetcher._proc_fetch_request`` of aiokafka (0.14, ``consumer/fetcher.py``) returns when it is cancelled while it waits for a reply,
but raises ``CancelledError`` while it waits after a failure. ``Fetcher.close`` passes it on: connections stay open, and the thread
of the consumer of Faust ends without notice to the worker, which then waits for it until its deadline.
"""

from __future__ import annotations

import asyncio
from functools import wraps
from typing import Any

from aiokafka.consumer.fetcher import Fetcher


def return_when_cancelled() -> None:
    """Patch the fetchers of this process: a cancelled fetch returns in both cases. Idempotent."""
    process: Any = Fetcher._proc_fetch_request
    if hasattr(process, "__wrapped__"):
        return

    @wraps(process)
    async def processed(self: Fetcher, assignment: Any, node_id: int, request: Any) -> bool:
        try:
            return bool(await process(self, assignment, node_id, request))
        except asyncio.CancelledError:
            return False

    Fetcher._proc_fetch_request = processed
