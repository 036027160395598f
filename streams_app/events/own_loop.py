"""An event loop in a thread of its own, for programs that have none: Django, scripts, sync functions.

A process that was forked has none of the threads of its parent; whoever keeps one of these looks at ``is_mine`` before each use.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Coroutine
from concurrent.futures import Future
from typing import Any, TypeVar

R = TypeVar("R")


class OwnLoop:
    """A running loop; it ends with the process, or when it is closed."""

    def __init__(self, name: str) -> None:
        """Starts the thread.

        Args:
            name: Of the thread.
        """
        self._loop = asyncio.new_event_loop()
        self._pid = os.getpid()
        # A daemon: a program that forgets to close it ends nevertheless.
        self._thread = threading.Thread(target=self._loop.run_forever, name=name, daemon=True)
        self._thread.start()

    @property
    def is_mine(self) -> bool:
        """Whether its thread is one of this process."""
        return self._pid == os.getpid()

    def run(self, work: Coroutine[Any, Any, R]) -> R:
        """Runs a coroutine in the thread and waits for its end, from any other thread."""
        return waited_for(work, self._loop)

    def begin(self, work: Coroutine[Any, Any, R]) -> Future[R]:
        """Runs a coroutine in the thread; whoever has a loop of its own waits for the end by :func:`asyncio.wrap_future`."""
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    def close(self) -> None:
        """Ends the thread, once what is called back at the moment has returned."""
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


def waited_for(work: Coroutine[Any, Any, R], loop: asyncio.AbstractEventLoop) -> R:
    """Runs a coroutine in a loop of another thread and waits for its end; who gives up waiting cancels it.

    Raises:
        RuntimeError: The loop is that of this thread, which would wait for itself for ever.
    """
    try:
        is_own = asyncio.get_running_loop() is loop
    except RuntimeError:
        is_own = False
    if is_own:
        work.close()
        raise RuntimeError("this thread runs the loop that is to be waited for: await the function without _sync")
    future = asyncio.run_coroutine_threadsafe(work, loop)
    try:
        return future.result()
    except BaseException:  # also what interrupts this thread: nobody waits for the work any more
        future.cancel()
        raise
