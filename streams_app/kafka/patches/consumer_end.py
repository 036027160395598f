"""Ends an aiokafka consumer whose broker may not answer; no task or connection of the consumer remains.

``AIOKafkaConsumer.stop`` (0.14) waits for the reply to its leave request before it ends its tasks and connections. If ``stop``
is cancelled, they continue, and heartbeats maintain a group member that reads no records (``consumer/group_coordinator.py``).
"""

from __future__ import annotations

import asyncio
import logging

from aiokafka import AIOKafkaConsumer

logger = logging.getLogger(__name__)

END_TIMEOUT_SECONDS = 1.0
"""Time that cancelled tasks may take to end."""


async def end(consumer: AIOKafkaConsumer, leave_seconds: float) -> None:
    """End a consumer that has a group; wait for the reply to its leave request for at most ``leave_seconds``.

    Raises:
        CancelledError: The caller was cancelled. Cancellations of tasks of the client are not raised.
    """
    try:
        async with asyncio.timeout(leave_seconds):
            await consumer.stop()
    except (Exception, asyncio.CancelledError) as error:  # any error, because no task or connection may remain
        logger.debug("a consumer did not leave its group", exc_info=error)
        await _break_off(consumer)
        task = asyncio.current_task()
        if task is not None and task.cancelling():
            raise


async def _break_off(consumer: AIOKafkaConsumer) -> None:
    """End the tasks and connections that ``stop`` has not ended. Tasks end first, because they would reconnect."""
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
