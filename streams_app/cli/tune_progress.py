"""How far a read for tuning is: a bar with events a second and the time left on a terminal, else a line now and then; on stderr."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

import click
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from streams_app.clock import Clock
from streams_app.tuning.tally import Tally

TELL_EVERY_MS: Final = 5_000
LEAST_MS: Final = 200
"""Before that a rate says nothing."""


class Telling:
    """Tells somebody how far it is."""

    def __init__(self, clock: Clock, unit: str, show: Callable[[str, int, int | None], None]) -> None:
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

    def reading(self, tally: Tally) -> None:
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
    console = Console(stderr=True)
    if not console.is_terminal:
        yield Telling(clock, unit, _Lines(clock).show)
        return
    columns = TextColumn("{task.description}"), BarColumn(bar_width=None), TimeRemainingColumn(compact=True)
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task("reading", total=None)
        totals: list[int | None] = []

        def show(words: str, done: int, total: int | None) -> None:
            if totals[-1:] != [total]:
                # Another step, or one that turned out shorter: the time left is that of this one.
                totals.append(total)
                bar.reset(task, total=total)
            bar.update(task, description=words, completed=done)

        yield Telling(clock, unit, show)


class _Lines:
    """Lines on stderr, for a log; nothing of what is done within seconds."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._told_ms = clock.monotonic_ms()

    def show(self, words: str, done: int, total: int | None) -> None:
        if self._clock.monotonic_ms() - self._told_ms >= TELL_EVERY_MS:
            self._told_ms = self._clock.monotonic_ms()
            click.echo(f"{words}, {done / total:.0%}" if total else words, err=True)
