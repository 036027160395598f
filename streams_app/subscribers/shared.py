"""What the functions of a process share: the lifespan of the catalogue and a publisher."""

from __future__ import annotations

import asyncio
from concurrent.futures import Future
from contextlib import AsyncExitStack

from streams_app.events.publishing import Events
from streams_app.subscribers.catalogue import Lifespan


class Shared:
    """What functions share, entered and left by one task on their own loop: a context manager may insist on that."""

    def __init__(self, loop: asyncio.AbstractEventLoop, lifespan: Lifespan | None, events: Events) -> None:
        """Opens nothing yet.

        Args:
            loop: Where functions that are ``async`` run.
            lifespan: Of the catalogue.
            events: Publishes what functions want published.
        """
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

    async def _live(self) -> None:
        try:
            async with AsyncExitStack() as stack:
                if self._lifespan is not None:
                    await stack.enter_async_context(self._lifespan())
                await stack.enter_async_context(self._events)
                self._opened.set_result(None)
                await self._ended.wait()
        except BaseException as error:
            if self._opened.done():
                raise
            self._opened.set_exception(error)
