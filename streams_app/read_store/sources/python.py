"""Current values from a function of the user's."""

from __future__ import annotations

import json
import traceback
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from streams_app.read_store.core.asking import BadAnswerError, BadValueError, Pair, calls_for, with_answer
from streams_app.read_store.core.failures import SourceFailedError
from streams_app.read_store.core.merge import CellChange
from streams_app.read_store.sources.own_loop import FunctionLoop
from streams_app.read_store.sources.port import by_fold
from streams_app.settings import ReadStoreSettings

DATA_ERRORS: Final = (ValueError, TypeError, LookupError, ArithmeticError)
"""What a function raises for a value that it does not like."""

OUTAGES: Final = (OSError, json.JSONDecodeError, UnicodeError)
"""Of them, what clients raise where a service does not answer, or answers with something else."""


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
