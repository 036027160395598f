"""The tasks of a processor end with its claim."""

from __future__ import annotations

import asyncio

from streams_app.delivery.tasks import cancel_all


async def test_task_that_swallows_a_cancellation_is_cancelled_repeatedly() -> None:
    dropped = 0

    async def sends() -> None:
        nonlocal dropped
        while True:
            try:
                await asyncio.sleep(60)  # runs until it is cancelled
            except asyncio.CancelledError:
                dropped += 1
                if dropped > 1:
                    raise

    task = asyncio.create_task(sends())
    await asyncio.sleep(0)  # it has begun
    async with asyncio.timeout(10):
        await cancel_all([task])

    assert (True, 2) == (task.cancelled(), dropped)
