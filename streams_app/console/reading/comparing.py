"""Compares read stores with their sources for their pages: one at a time, with its progress and its last result."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

import msgspec

from streams_app.clock import Clock
from streams_app.errors import StreamsAppError, TryAgainError
from streams_app.settings import ReadStoreSettings, Settings

if TYPE_CHECKING:
    from streams_app.operations.verify_result import VerifyResult
    from streams_app.read_store.core.comparing import Difference

logger = logging.getLogger(__name__)

SHOWN: Final = 100
"""Maximum number of differences that are kept."""

LIMIT_SECONDS: Final = 1_800
"""A comparison that takes longer is given up: the command has no such limit."""


class ComparisonProgress(msgspec.Struct, frozen=True):
    """How far a comparison is.

    Attributes:
        total: Value of ``done`` at the end; None: not known yet.
    """

    store: str
    began_ms: int
    step: str
    done: int = 0
    total: int | None = None


@dataclass(slots=True)
class ComparisonResult:
    """What the last comparison of a store has found.

    Attributes:
        differences: The first ones.
        kinds: Number of differences by kind.
        fault: Why there is no result; empty if there is one.
    """

    at_ms: int
    took_ms: int = 0
    differences: list[Difference] = field(default_factory=list)
    kinds: dict[str, int] = field(default_factory=dict)
    done: VerifyResult | None = None
    fault: str = ""


class StoreComparisons:
    """The comparison that is in progress, and the last result of each read store."""

    def __init__(self, settings: Settings, clock: Clock) -> None:
        self._settings = settings
        self._clock = clock
        self._task: asyncio.Task[None] | None = None
        self.results: dict[str, ComparisonResult] = {}
        self.progress: ComparisonProgress | None = None

    def start(self, store: ReadStoreSettings) -> None:
        """Begin to compare a store.

        Raises:
            TryAgainError: Another comparison is in progress.
        """
        if self.progress is not None:
            raise TryAgainError(f"read store {self.progress.store} is being compared: one at a time")
        self.progress = ComparisonProgress(store.name, self._clock.now_ms(), "connecting")
        self._task = asyncio.create_task(self._run(store, self.progress))

    async def close(self) -> None:
        """Cancel the comparison that is in progress."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _run(self, store: ReadStoreSettings, begun: ComparisonProgress) -> None:
        result, began_ms = ComparisonResult(begun.began_ms), self._clock.monotonic_ms()
        try:
            async with asyncio.timeout(LIMIT_SECONDS):
                await self._compare(store, begun, result)
        except TimeoutError:
            result.fault = f"not at its end after {LIMIT_SECONDS // 60} minutes: streams-app read-store verify --store {store.name}"
        except StreamsAppError as error:
            result.fault = str(error)
        except Exception as error:  # any error is shown on the page, and the console goes on
            logger.warning("a part of a page failed what=%s", "the comparison", exc_info=error)
            result.fault = f"an unexpected error, see the log of the console: {type(error).__name__}"
        finally:
            self.progress = None
        result.took_ms = self._clock.monotonic_ms() - began_ms
        self.results[store.name] = result

    async def _compare(self, store: ReadStoreSettings, begun: ComparisonProgress, result: ComparisonResult) -> None:
        from streams_app.operations.verify import Verification  # a console may never need it

        def found(one: Difference) -> None:
            result.kinds[one.kind.value] = result.kinds.get(one.kind.value, 0) + 1
            if len(result.differences) < SHOWN:
                result.differences.append(one)

        def report(step: str, done: int, total: int | None) -> None:
            self.progress = msgspec.structs.replace(begun, step=step, done=done, total=total)

        comparing = Verification(self._settings, store, self._clock, on_difference=found, on_progress=report)
        result.done = await comparing.run()
