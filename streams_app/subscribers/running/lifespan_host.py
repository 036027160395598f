"""Enters and exits what all functions of a process share: the lifespan of the catalogue, and the publisher of their events."""

from __future__ import annotations

import asyncio
import logging
from concurrent.futures import Future
from contextlib import AsyncExitStack

from streams_app.errors import InternalError, text_of
from streams_app.events.publishing import Events
from streams_app.subscribers.declaration.catalogue import Lifespan

logger = logging.getLogger(__name__)


class LifespanHost:
    """Enters and exits the lifespan of the catalogue in one task on the event loop of ``async`` functions.

    Some context managers have to be exited in the task that entered them.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, lifespan: Lifespan | None, events: Events) -> None:
        """Prepare the host; the publisher ``events`` is entered after the lifespan and exited before it."""
        self._loop = loop
        self._lifespan = lifespan
        self._events = events
        self._opened: Future[None] = Future()
        self._ended = asyncio.Event()

    async def __aenter__(self) -> None:
        self._living = asyncio.run_coroutine_threadsafe(self._live(), self._loop)
        await asyncio.wrap_future(self._opened)

    async def __aexit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._ended.set)
        await asyncio.wrap_future(self._living)

    async def enter_unless(self, stop: asyncio.Event) -> bool:
        """Enter the lifespan and the publisher, and return True.

        If ``stop`` is set before both are entered, cancel the lifespan and return False: entering may take as long as a database is
        unavailable. A cancelled lifespan is not awaited, because it may block its event loop.
        """
        entering, stopping = asyncio.ensure_future(self.__aenter__()), asyncio.ensure_future(stop.wait())
        try:
            await asyncio.wait((entering, stopping), return_when=asyncio.FIRST_COMPLETED)
            if entering.done():
                await entering
                return True
            return False
        finally:
            stopping.cancel()
            if not entering.done():
                self._living.cancel()
                entering.cancel()

    async def _live(self) -> None:
        try:
            async with AsyncExitStack() as stack:
                if self._lifespan is not None:
                    await stack.enter_async_context(self._lifespan())
                await stack.enter_async_context(self._events)
                if not self._opened.set_running_or_notify_cancel():
                    return  # stopped while the lifespan blocked its event loop; the stack exits the entered context managers
                self._opened.set_result(None)
                await self._ended.wait()
        except BaseException as raised:
            error = _worker_error(raised, "end" if self._opened.done() else "begin")
            if not self._opened.done():
                self._opened.set_exception(error)
            elif error is raised:
                raise
            else:
                raise error from raised


def _worker_error(raised: BaseException, when: str) -> BaseException:
    """Log an error of a lifespan; return the error that the worker raises."""
    if isinstance(raised, asyncio.CancelledError):
        return raised
    logger.error("the lifespan of the catalogue has failed at its %s error=%s", when, text_of(raised))
    if isinstance(raised, SystemExit | KeyboardInterrupt):
        # On the event loop of the worker it would end the process with its own exit code, without closing the other resources.
        return InternalError(f"the lifespan of the catalogue has raised {text_of(raised)}")
    return raised
