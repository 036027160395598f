"""Number of calls of the function under test for each event: bytes of a file that processes share in memory.

Counting a call takes a tenth of a microsecond, reading does not slow it down, and the counts of a killed process remain.
"""

from __future__ import annotations

import asyncio
import mmap
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple

POLL_SECONDS: Final = 0.01
DROPPED: Final = 0.1
"""Share of the events that are called before the time begins, so that the start of the process is not measured."""


class Ledger:
    """Counts the calls of each event, by its number, up to 255."""

    def __init__(self, path: Path) -> None:
        """Open a file that :meth:`make` has created."""
        with path.open("r+b") as file:
            self.calls = mmap.mmap(file.fileno(), 0)

    @classmethod
    def make(cls, path: Path, events: int) -> Ledger:
        """Create a ledger for this number of events, without calls."""
        path.write_bytes(bytes(events))
        return cls(path)

    def record(self, number: int) -> None:
        """Count a call. Only one process may count calls of the same event at the same time."""
        self.calls[number] += 1

    def called(self) -> int:
        """Return the number of events that were called at least once."""
        return len(self.calls) - self.calls[:].count(0)

    def repeated(self) -> int:
        """Return the number of calls after the first one of each event."""
        return sum(self.calls[:]) - self.called()


class CallRate(NamedTuple):
    """The rate of calls, without the first tenth of the events.

    Attributes:
        per_second: Events a second.
        seconds: From the first tenth to the last event.
    """

    per_second: float
    seconds: float


@dataclass(slots=True)
class Watch:
    """Reads a ledger from outside.

    Attributes:
        ledger: Ledger that is filled.
        must_live: Raises if the process under test has ended.
        limit_seconds: Maximum time to wait.
    """

    ledger: Ledger
    must_live: Callable[[], None]
    limit_seconds: float = 300.0

    async def call_rate(self) -> CallRate:
        """Wait until each event was called.

        Raises:
            RuntimeError: Some events were not called within the limit.
        """
        events = len(self.ledger.calls)
        began, count = await self.until(round(DROPPED * events))
        ended, last = await self.until(events)
        return CallRate((last - count) / (ended - began), ended - began)

    async def until(self, wanted: int) -> tuple[float, int]:
        """Return the time at which this number of events was called, and the number of calls at that time."""
        deadline = time.monotonic() + self.limit_seconds
        while (count := self.ledger.called()) < wanted:
            self.must_live()
            if time.monotonic() > deadline:
                raise RuntimeError(f"{count:,} of {wanted:,} events were called within {self.limit_seconds:.0f} s")
            await asyncio.sleep(POLL_SECONDS)
        return time.monotonic(), count
