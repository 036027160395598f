"""Computes the curve of ``tune`` for the page of a fold: one at a time, in a thread, with its progress and its last result."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import msgspec

from streams_app.clock import Clock
from streams_app.errors import StreamsAppError, TryAgainError
from streams_app.fold import Fold
from streams_app.settings import Settings

if TYPE_CHECKING:
    from streams_app.tuning.candidates import TunedFold
    from streams_app.tuning.read_counts import ReadCounts

logger = logging.getLogger(__name__)

DAY_MS: Final = 86_400_000
CAPACITY: Final = 2_000_000
"""Maximum number of events in memory, about 100 MB; of more, a sample of the groups is used, and its error is shown."""

LIMIT_MS: Final = 180_000
"""A computation that takes longer has failed: the command has no such limit."""


class TuningProgress(msgspec.Struct, frozen=True):
    """How far a computation is.

    Attributes:
        total: Value of ``done`` at the end; None: not known yet.
    """

    fold: str
    began_ms: int
    step: str
    done: int = 0
    total: int | None = None


@dataclass(frozen=True, slots=True)
class TuningResult:
    """What the last computation of a fold has found.

    Attributes:
        fault: Why there is no result; empty if there is one.
    """

    at_ms: int
    took_ms: int
    found: TunedFold | None
    fault: str = ""


class TuningRuns:
    """The computation that is in progress, and the last result of each fold."""

    def __init__(self, settings: Settings, clock: Clock) -> None:
        self._settings = settings
        self._clock = clock
        self._task: asyncio.Task[None] | None = None
        self._is_stopped = False
        self.results: dict[str, TuningResult] = {}
        self.progress: TuningProgress | None = None

    def start(self, fold: Fold) -> None:
        """Begin a computation for a fold.

        Raises:
            TryAgainError: Another one is in progress.
        """
        if self.progress is not None:
            raise TryAgainError(f"the window of fold {self.progress.fold} is being computed: one at a time")
        self.progress = TuningProgress(fold.name, self._clock.now_ms(), "connecting to Kafka")
        self._task = asyncio.create_task(self._run(fold, self.progress))

    async def close(self) -> None:
        """Cancel the computation that is in progress; its thread ends at its next step."""
        self._is_stopped = True
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _run(self, fold: Fold, begun: TuningProgress) -> None:
        found, fault, began_ms = None, "", self._clock.monotonic_ms()
        try:
            found = await asyncio.to_thread(self._compute, fold, begun, began_ms)
        except StreamsAppError as error:
            fault = str(error)
        except Exception as error:  # any error is shown on the page, and the console goes on
            logger.warning("a part of a page failed what=%s", "the window", exc_info=error)
            fault = f"an unexpected error, see the log of the console: {type(error).__name__}"
        finally:
            self.progress = None
        self.results[fold.name] = TuningResult(self._clock.now_ms(), self._clock.monotonic_ms() - began_ms, found, fault)

    def _compute(self, fold: Fold, begun: TuningProgress, began_ms: int) -> TunedFold:
        from streams_app.tuning.candidates import tune_source  # numpy takes a while to import, and a console may never need it

        def report(step: str, done: int, total: int | None) -> None:
            if self._is_stopped or self._clock.monotonic_ms() - began_ms > LIMIT_MS:
                raise TryAgainError(
                    f"the events of a day take longer than {LIMIT_MS // 60_000} minutes: streams-app tune --fold {fold.name}"
                )
            self.progress = msgspec.structs.replace(begun, step=step, done=done, total=total)

        def reading(counts: ReadCounts) -> None:
            report(f"{counts.read:,} events read", counts.done, counts.total)

        def replaying(done: int, total: int) -> None:
            report(f"{max(0, done - 1)} of {total - 1} candidates replayed", done, total)

        now_ms = self._clock.now_ms()
        return tune_source(self._settings, fold, now_ms - DAY_MS, now_ms, CAPACITY, reading, replaying)
