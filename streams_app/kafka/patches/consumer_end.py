"""Ends an aiokafka consumer whose broker may not answer: no task and no connection of it remains.

``AIOKafkaConsumer.stop`` (0.14) waits for the reply to its leave request before it ends anything else. Cancelled, it leaves
everything running, and its heartbeats keep a member in the group that reads nothing (``consumer/group_coordinator.py``).
"""

from __future__ import annotations

import asyncio
import logging

from aiokafka import AIOKafkaConsumer

logger = logging.getLogger(__name__)

END_TIMEOUT_SECONDS = 1.0
"""How long what was cancelled may take to end."""


async def end(consumer: AIOKafkaConsumer, leave_seconds: float) -> None:
    """End a consumer that has a group; the broker may take ``leave_seconds`` to answer the leave request.

    Raises:
        CancelledError: The caller was cancelled. Tasks that the client cancels while it closes do not raise it.
    """
    try:
        async with asyncio.timeout(leave_seconds):
            await consumer.stop()
    except (Exception, asyncio.CancelledError) as error:  # whatever it is: nothing of the consumer may stay behind
        logger.debug("a consumer did not leave its group", exc_info=error)
        await _break_off(consumer)
        task = asyncio.current_task()
        if task is not None and task.cancelling():
            raise


async def _break_off(consumer: AIOKafkaConsumer) -> None:
    """End what ``stop`` would have ended later: tasks first, because each would connect anew."""
    coordinator, fetcher = consumer._coordinator, consumer._fetcher
    if coordinator:
        of_group = coordinator._coordination_task, coordinator._heartbeat_task, coordinator._commit_refresh_task
        tasks = [task for task in of_group if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks, timeout=END_TIMEOUT_SECONDS)
    if fetcher:
        await fetcher.close()
    await consumer._client.close()
