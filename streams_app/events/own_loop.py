"""Event loop in a separate thread, for programs without an event loop: Django, scripts, sync functions.

A forked process has none of the threads of its parent, so check :attr:`OwnLoop.is_mine` before each use.
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
    """Event loop that runs in a separate thread until it is closed or the process ends."""

    def __init__(self, name: str) -> None:
        self._loop = asyncio.new_event_loop()
        self._pid = os.getpid()
        # A daemon thread, so that a program that does not close the loop can still exit.
        self._thread = threading.Thread(target=self._loop.run_forever, name=name, daemon=True)
        self._thread.start()

    @property
    def is_mine(self) -> bool:
        """Whether the thread of the loop runs in this process; False in a process that was forked from the one that started it."""
        return self._pid == os.getpid()

    def run(self, work: Coroutine[Any, Any, R]) -> R:
        """Run a coroutine in the loop and wait for its result. Call this from another thread."""
        return waited_for(work, self._loop)

    def begin(self, work: Coroutine[Any, Any, R]) -> Future[R]:
        """Start a coroutine in the loop. Another event loop can await the returned future with :func:`asyncio.wrap_future`."""
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    def close(self) -> None:
        """Stop the loop after its current callback, and end the thread. Futures of unfinished coroutines never complete."""
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


def waited_for(work: Coroutine[Any, Any, R], loop: asyncio.AbstractEventLoop) -> R:
    """Run a coroutine in the event loop of another thread and wait for its result.

    If the wait is interrupted, the coroutine is cancelled.

    Raises:
        RuntimeError: The loop runs in this thread, so waiting would deadlock.
    """
    try:
        is_own = asyncio.get_running_loop() is loop
    except RuntimeError:
        is_own = False
    if is_own:
        work.close()
        raise RuntimeError("this thread runs the event loop, which a wait would block: await the function without _sync")
    future = asyncio.run_coroutine_threadsafe(work, loop)
    try:
        return future.result()
    except BaseException:  # also an interrupt of this thread, after which the result has no use
        future.cancel()
        raise
