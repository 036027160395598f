"""How often the function under test was called for each event: bytes of a file that processes share in memory.

A call costs it a tenth of a microsecond, whoever looks on costs it nothing, and what a killed process has noted stays.
"""

from __future__ import annotations

import asyncio
import mmap
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple

LOOK_SECONDS: Final = 0.01
DROPPED: Final = 0.1
"""So much of the events is called before the clock starts: a process that starts is not what is measured."""


class Ledger:
    """Counts the calls of each event, by its number, up to 255."""

    def __init__(self, path: Path) -> None:
        """Opens what :meth:`make` has made."""
        with path.open("r+b") as file:
            self.calls = mmap.mmap(file.fileno(), 0)

    @classmethod
    def make(cls, path: Path, events: int) -> Ledger:
        """A ledger of so many events, none of which was called."""
        path.write_bytes(bytes(events))
        return cls(path)

    def note(self, number: int) -> None:
        """Notes a call; of one event at the same time in one process only."""
        self.calls[number] += 1

    def called(self) -> int:
        """How many events were called at least once."""
        return len(self.calls) - self.calls[:].count(0)

    def repeated(self) -> int:
        """How many calls were made beyond the first one of each event."""
        return sum(self.calls[:]) - self.called()


class Pace(NamedTuple):
    """How fast events were called, without the first tenth of them.

    Attributes:
        per_second: Events a second.
        seconds: From the first tenth to the last event.
    """

    per_second: float
    seconds: float


@dataclass(slots=True)
class Watch:
    """Looks at a ledger from outside.

    Attributes:
        ledger: That is filled.
        must_live: Raises where it is not worth waiting any more.
        limit_seconds: For how long at most.
    """

    ledger: Ledger
    must_live: Callable[[], None]
    limit_seconds: float = 300.0

    async def pace(self) -> Pace:
        """Waits until each event was called.

        Raises:
            RuntimeError: They were not, within the limit.
        """
        events = len(self.ledger.calls)
        began, count = await self.until(round(DROPPED * events))
        ended, last = await self.until(events)
        return Pace((last - count) / (ended - began), ended - began)

    async def until(self, wanted: int) -> tuple[float, int]:
        """When so many events were called, and how many were by then."""
        deadline = time.monotonic() + self.limit_seconds
        while (count := self.ledger.called()) < wanted:
            self.must_live()
            if time.monotonic() > deadline:
                raise RuntimeError(f"{count:,} of {wanted:,} events were called within {self.limit_seconds:.0f} s")
            await asyncio.sleep(LOOK_SECONDS)
        return time.monotonic(), count
