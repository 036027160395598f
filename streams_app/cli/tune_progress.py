"""How far a read for tuning is: a bar with events a second and the time left on a terminal, else a line now and then; on stderr."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from streams_app.cli.showing import Show, showing
from streams_app.clock import Clock
from streams_app.tuning.read_counts import ReadCounts

LEAST_MS: Final = 200
"""Before that a rate says nothing."""


class Telling:
    """Tells somebody how far it is."""

    def __init__(self, clock: Clock, unit: str, show: Show) -> None:
        """The read begins now.

        Args:
            clock: Of this machine.
            unit: What is read: ``events`` or ``lines``.
            show: Takes words, what is done, and of how much; None: nobody knows.
        """
        self._clock = clock
        self._began_ms = clock.monotonic_ms()
        self._unit = unit
        self._show = show

    def reading(self, tally: ReadCounts) -> None:
        """While a range is read."""
        elapsed_ms = self._clock.monotonic_ms() - self._began_ms
        rate = f", {tally.read * 1000 / elapsed_ms:,.0f} a second" if elapsed_ms >= LEAST_MS else ""
        self._show(f"{tally.read:,} {self._unit} read{rate}", tally.done, tally.total)

    def replaying(self, done: int, total: int) -> None:
        """While candidates are replayed."""
        self._show(f"candidates replayed: {max(0, done - 1)} of {total - 1}", done, total)


@contextmanager
def telling(clock: Clock, unit: str) -> Iterator[Telling]:
    """Shows progress while the block lasts; nothing of a bar stays."""
    with showing(clock, "reading") as show:
        yield Telling(clock, unit, show)
