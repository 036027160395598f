"""Faults of any store and its writers: a worker or the server is killed, or the server is frozen."""

from __future__ import annotations

import asyncio
import os
import signal
from typing import Any, Final

from tests.chaos.stores.run import StoreRun
from tests.helpers.waiting import wait_until

HOLD_SECONDS: Final = 5.0


async def worker_killed(run: StoreRun) -> None:
    """Kill a worker; the supervisor starts another one."""
    worker = run.chance.choice(run.workers)
    worker.kill()
    await wait_until(lambda: worker.exit_code == -signal.SIGKILL, 20, "the worker is dead")


async def server_killed(run: Any) -> None:
    """Kill the server, which is down for a while and recovers from its log."""
    run.server.kill()
    await asyncio.sleep(run.chance.uniform(0, HOLD_SECONDS))  # until the fault begins
    run.server = await asyncio.to_thread(run.server.restart)


async def server_frozen(run: Any) -> None:
    """Suspend the server for longer than any client waits; it executes the pending requests when it resumes."""
    os.kill(run.server.pid, signal.SIGSTOP)
    await asyncio.sleep(HOLD_SECONDS)  # the fault lasts
    os.kill(run.server.pid, signal.SIGCONT)
