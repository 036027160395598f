"""Current values from a user's function, which runs on a thread with its own event loop.

A function that blocks, computes or hangs delays only the store that calls it: folding, heartbeats and other stores use other event
loops. All calls run on the same event loop, so the function can keep a client open between calls. After a call that hangs, a new
event loop is used.
"""

from __future__ import annotations

import asyncio
import inspect
import json
import threading
import traceback
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from streams_app.errors import TryAgainError
from streams_app.read_store.core.errors import SourceFailedError, TooSlowError
from streams_app.read_store.core.function_answer import BadAnswerError, BadValueError, Pair, calls_for, with_answer
from streams_app.read_store.core.merge import CellChange
from streams_app.read_store.core.source import by_fold
from streams_app.settings import ReadStoreSettings

DATA_ERRORS: Final = (ValueError, TypeError, LookupError, ArithmeticError)
"""Exceptions of the function that are attributed to a single value rather than to the function as a whole."""

OUTAGES: Final = (OSError, json.JSONDecodeError, UnicodeError)
"""Exceptions that clients raise if a service does not answer, or its reply is malformed. They are never attributed to a value, even
if they are among :data:`DATA_ERRORS`."""

MAX_STUCK: Final = 4
"""Number of abandoned threads, whose calls have not returned, at which further calls fail."""

GRACE_SECONDS: Final = 1.0
"""Time that the thread of a cancelled call has to respond before it is abandoned."""


class PythonSource:
    """Source that calls a user's function ``current(fold, pairs)``, async or not, usually once for each fold in a batch.

    ``pairs`` is a list of ``(group, changed name)``. The function returns a dict of current values by pair; a pair that it
    lacks counts as deleted.
    """

    carries_values = False

    def __init__(self, function: Callable[..., Any], settings: ReadStoreSettings) -> None:
        self._function = function
        self._folds = settings.folds
        self._what = f"{settings.section}.current ({getattr(function, '__qualname__', type(function).__name__)})"
        self._loop = FunctionLoop(self._what, settings.timeout_ms / 1000)

    async def current(self, changes: Sequence[CellChange]) -> list[CellChange]:
        found: list[CellChange] = []
        for mentioned in by_fold(changes):
            values: dict[CellChange, CellChange] = {}
            for asked in calls_for(mentioned):
                answered = await self._answer(mentioned[0].cell.fold, asked)
                values.update(zip(asked.values(), answered, strict=True))
            found += [values[change] for change in mentioned]
        return found

    async def check(self) -> None:
        for fold in self._folds:
            await self._answer(fold, {})

    async def close(self) -> None:
        await self._loop.close()

    async def _answer(self, fold: str, asked: Mapping[Pair, CellChange]) -> list[CellChange]:
        outcome = await self._loop.call(self._function, fold, list(asked))
        if outcome.error is not None:
            why = f"raised {_error_text(outcome.error)}"
            is_data_error = isinstance(outcome.error, DATA_ERRORS) and not isinstance(outcome.error, OUTAGES)
            raise SourceFailedError(f"{self._what} {why}", why, is_data_error=is_data_error) from outcome.error
        try:
            return with_answer(asked, outcome.result)
        except BadAnswerError as error:
            is_data_error = isinstance(error, BadValueError)
            raise SourceFailedError(f"{self._what} {error}", str(error), is_data_error=is_data_error) from error


def _error_text(error: BaseException) -> str:
    """Return a text with the type and message of an exception, and the line at which it was raised."""
    frames = traceback.extract_tb(error.__traceback__)[-1:]
    return f"{type(error).__name__}: {error}" + "".join(f" ({each.filename}:{each.lineno})" for each in frames)


@dataclass(frozen=True, slots=True)
class CallOutcome:
    """The result of a call of a user's function, or the exception that the function has raised.

    The exception is returned, not raised, so that it is not mistaken for an exception of this module.

    Attributes:
        result: What the function returned; None if it raised.
        error: The exception; None if the function returned.
    """

    result: Any = None
    error: BaseException | None = None


class FunctionLoop:
    """Calls functions on an event loop of its own, on a separate thread, with a time limit for each call."""

    def __init__(self, what: str, seconds: float) -> None:
        self._what = what
        self._seconds = seconds
        self._running: tuple[threading.Thread, asyncio.AbstractEventLoop] | None = None
        self._stuck: list[threading.Thread] = []

    async def call(self, function: Callable[..., Any], *arguments: Any) -> CallOutcome:
        """Call a function on the thread, and await its result if it is awaitable; return the result or the exception.

        Raises:
            TooSlowError: The function did not return in time; it was cancelled or abandoned.
            TryAgainError: Too many earlier calls have never returned.
        """
        self._stuck = [thread for thread in self._stuck if thread.is_alive()]
        if len(self._stuck) >= MAX_STUCK:
            raise TryAgainError(f"{self._what}: {len(self._stuck)} calls have never returned, waiting for one of them")
        _, loop = self._started()
        call = asyncio.wrap_future(asyncio.run_coroutine_threadsafe(_outcome(function, arguments), loop))
        try:
            done, _ = await asyncio.wait({call}, timeout=self._seconds)
            if done:
                return call.result()
        except asyncio.CancelledError:
            await self._cancelled(call, loop)
            raise
        await self._cancelled(call, loop)
        raise TooSlowError(f"{self._what} did not return within {self._seconds:g} s")

    async def close(self) -> None:
        """End the thread; if a call blocks it, the thread is abandoned."""
        running, self._running = self._running, None
        if running is not None:
            running[1].call_soon_threadsafe(running[1].stop)

    def _started(self) -> tuple[threading.Thread, asyncio.AbstractEventLoop]:
        if self._running is None:
            loop = asyncio.new_event_loop()
            # A daemon thread: a call that never returns must not keep the process alive.
            thread = threading.Thread(target=_run, args=(loop,), name=self._what, daemon=True)
            thread.start()
            self._running = thread, loop
        return self._running

    async def _cancelled(self, call: asyncio.Future[CallOutcome], loop: asyncio.AbstractEventLoop) -> None:
        """Cancel a call. If the thread does not respond, abandon the thread; the next call then starts another one."""
        call.cancel()
        answer = asyncio.wrap_future(asyncio.run_coroutine_threadsafe(asyncio.sleep(0), loop))
        done, _ = await asyncio.wait({answer}, timeout=GRACE_SECONDS)
        if not done and self._running is not None and self._running[1] is loop:
            self._stuck.append(self._running[0])
            await self.close()


async def _outcome(function: Callable[..., Any], arguments: tuple[Any, ...]) -> CallOutcome:
    try:
        result = function(*arguments)
        if inspect.isawaitable(result):
            result = await _awaited(result)
    except BaseException as error:  # noqa: BLE001  # SystemExit would end the loop; a CancelledError may be the user's
        return CallOutcome(error=error)
    return CallOutcome(result)


async def _awaited(result: Awaitable[Any]) -> Any:
    return await result


def _run(loop: asyncio.AbstractEventLoop) -> None:
    asyncio.set_event_loop(loop)
    try:
        loop.run_forever()
    finally:
        for task in asyncio.all_tasks(loop):
            task.cancel()
        loop.run_until_complete(asyncio.sleep(0))
        loop.close()
