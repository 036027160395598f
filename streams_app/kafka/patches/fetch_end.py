"""Patch of aiokafka's fetcher: a consumer that is stopped while it waits after a failed fetch closes without an error.

If ``Fetcher._proc_fetch_request`` of aiokafka (0.14, ``consumer/fetcher.py``) is cancelled while it waits for a reply, it returns.
If it is cancelled while it waits after a failure, it raises ``CancelledError``, which ``Fetcher.close`` passes on. Then
connections stay open, and the thread of Faust's consumer ends without notice: the worker waits for it until the shutdown deadline.
"""

from __future__ import annotations

import asyncio
from functools import wraps
from typing import Any

from aiokafka.consumer.fetcher import Fetcher


def return_when_cancelled() -> None:
    """Patch the fetchers of this process so that a fetch that is cancelled always returns. Further calls have no effect."""
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
