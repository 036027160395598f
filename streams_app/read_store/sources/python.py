"""Current values from a function of the user's."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from streams_app.errors import TryAgainError
from streams_app.read_store.core.asking import BadAnswerError, Pair, calls_for, with_answer
from streams_app.read_store.core.merge import Change
from streams_app.read_store.sources.own_loop import OwnLoop
from streams_app.read_store.sources.port import by_fold
from streams_app.settings import ReadStoreSettings


class PythonSource:
    """``current(fold, pairs)`` of the settings, async or not; one call for all changed names of all groups of a fold and batch."""

    carries_values = False

    def __init__(self, function: Callable[..., Any], settings: ReadStoreSettings) -> None:
        """Calls nothing yet."""
        self._function = function
        self._folds = settings.folds
        self._what = f"{settings.section}.current ({getattr(function, '__qualname__', type(function).__name__)})"
        self._loop = OwnLoop(self._what, settings.timeout_ms / 1000)

    async def current(self, changes: Sequence[Change]) -> list[Change]:
        """Asks once for each fold among the changes.

        Raises:
            TryAgainError: The function raises, returns something else, or does not come back in time.
        """
        found: list[Change] = []
        for mentioned in by_fold(changes):
            values: dict[Change, Change] = {}
            for asked in calls_for(mentioned):
                answered = await self._answer(mentioned[0].cell.fold, asked)
                values.update(zip(asked.values(), answered, strict=True))
            found += [values[change] for change in mentioned]
        return found

    async def check(self) -> None:
        """Calls the function without pairs, for each fold.

        Raises:
            TryAgainError: It does not return an empty dict.
        """
        for fold in self._folds:
            await self._answer(fold, {})

    async def close(self) -> None:
        """Leaves a call that is under way, and ends the loop of the function."""
        await self._loop.close()

    async def _answer(self, fold: str, asked: Mapping[Pair, Change]) -> list[Change]:
        outcome = await self._loop.call(self._function, fold, list(asked))
        if outcome.error is not None:
            raise TryAgainError(f"{self._what} raised {_told(outcome.error)}") from outcome.error
        try:
            return with_answer(asked, outcome.result)
        except BadAnswerError as error:
            raise TryAgainError(f"{self._what} {error}") from error


def _told(error: BaseException) -> str:
    """What was raised, and where in the user's code."""
    place = traceback.extract_tb(error.__traceback__)[-1:]
    return f"{type(error).__name__}: {error}" + "".join(f" ({each.filename}:{each.lineno})" for each in place)
