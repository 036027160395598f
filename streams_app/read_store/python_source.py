"""Current values from a function of the user's."""

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
"""What a function raises for a value that it does not like."""

OUTAGES: Final = (OSError, json.JSONDecodeError, UnicodeError)
"""Of them, what clients raise where a service does not answer, or answers with something else."""

MOST_STUCK: Final = 4
"""Threads that are left behind with a call that has not come back; with so many, nothing is called any more."""

GRACE_SECONDS: Final = 1.0
"""How long a call that was cancelled may take to end before its thread is left behind."""


class PythonSource:
    """``current(fold, pairs)`` of the settings, async or not; one call for all changed names of all groups of a fold and batch."""

    carries_values = False

    def __init__(self, function: Callable[..., Any], settings: ReadStoreSettings) -> None:
        """Calls nothing yet."""
        self._function = function
        self._folds = settings.folds
        self._what = f"{settings.section}.current ({getattr(function, '__qualname__', type(function).__name__)})"
        self._loop = FunctionLoop(self._what, settings.timeout_ms / 1000)

    async def current(self, changes: Sequence[CellChange]) -> list[CellChange]:
        """Asks once for each fold among the changes.

        Raises:
            TooSlowError: The function does not come back in time.
            SourceFailedError: The function raises, or returns something else.
        """
        found: list[CellChange] = []
        for mentioned in by_fold(changes):
            values: dict[CellChange, CellChange] = {}
            for asked in calls_for(mentioned):
                answered = await self._answer(mentioned[0].cell.fold, asked)
                values.update(zip(asked.values(), answered, strict=True))
            found += [values[change] for change in mentioned]
        return found

    async def check(self) -> None:
        """Calls the function without pairs, for each fold.

        Raises:
            SourceFailedError: It does not return an empty dict.
        """
        for fold in self._folds:
            await self._answer(fold, {})

    async def close(self) -> None:
        """Leaves a call that is under way, and ends the loop of the function."""
        await self._loop.close()

    async def _answer(self, fold: str, asked: Mapping[Pair, CellChange]) -> list[CellChange]:
        outcome = await self._loop.call(self._function, fold, list(asked))
        if outcome.error is not None:
            why = f"raised {_told(outcome.error)}"
            is_data_error = isinstance(outcome.error, DATA_ERRORS) and not isinstance(outcome.error, OUTAGES)
            raise SourceFailedError(f"{self._what} {why}", why, is_data_error=is_data_error) from outcome.error
        try:
            return with_answer(asked, outcome.result)
        except BadAnswerError as error:
            is_data_error = isinstance(error, BadValueError)
            raise SourceFailedError(f"{self._what} {error}", str(error), is_data_error=is_data_error) from error


def _told(error: BaseException) -> str:
    """What was raised, and where in the user's code."""
    place = traceback.extract_tb(error.__traceback__)[-1:]
    return f"{type(error).__name__}: {error}" + "".join(f" ({each.filename}:{each.lineno})" for each in place)


@dataclass(frozen=True, slots=True)
class CallOutcome:
    """What became of a call: handed over as a value, as an exception of the user's would be taken for one of ours."""

    result: Any = None
    error: BaseException | None = None


class FunctionLoop:
    """Calls functions one after the other, each for a limited time."""

    def __init__(self, what: str, seconds: float) -> None:
        """Starts no thread yet.

        Args:
            what: Whose functions, for messages and the name of the thread.
            seconds: How long a call may take.
        """
        self._what = what
        self._seconds = seconds
        self._running: tuple[threading.Thread, asyncio.AbstractEventLoop] | None = None
        self._stuck: list[threading.Thread] = []

    async def call(self, function: Callable[..., Any], *arguments: Any) -> CallOutcome:
        """Calls a function, and awaits what it returns if that can be awaited.

        Raises:
            TooSlowError: It has not come back in time.
            TryAgainError: Too many calls have not come back at all.
        """
        self._stuck = [thread for thread in self._stuck if thread.is_alive()]
        if len(self._stuck) >= MOST_STUCK:
            raise TryAgainError(f"{self._what}: {len(self._stuck)} calls have never come back, it waits for one of them")
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
        raise TooSlowError(f"{self._what} has not come back within {self._seconds:g} s")

    async def close(self) -> None:
        """Ends the thread, or leaves it to its call."""
        running, self._running = self._running, None
        if running is not None:
            running[1].call_soon_threadsafe(running[1].stop)

    def _started(self) -> tuple[threading.Thread, asyncio.AbstractEventLoop]:
        if self._running is None:
            loop = asyncio.new_event_loop()
            # A daemon: a call that never comes back must not keep the process.
            thread = threading.Thread(target=_run, args=(loop,), name=self._what, daemon=True)
            thread.start()
            self._running = thread, loop
        return self._running

    async def _cancelled(self, call: asyncio.Future[CallOutcome], loop: asyncio.AbstractEventLoop) -> None:
        """Cancels a call; a thread that cannot even take that is left behind, and the next call has a new one."""
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
    except BaseException as error:  # noqa: BLE001  # SystemExit would end the loop, and a CancelledError may be the user's own
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
