"""Progress of long work on stderr: a bar with the remaining time on a terminal, otherwise a line at intervals."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final, TypeAlias

import click
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from streams_app.clock import Clock

REPORT_EVERY_MS: Final = 5_000

ReportProgress: TypeAlias = Callable[[str, int, int | None], None]
"""Function that shows progress. Its arguments are a text, the amount of work done, and the total, or None if it is unknown."""


@contextmanager
def show_progress(clock: Clock, words: str) -> Iterator[ReportProgress]:
    """Show progress on stderr during the ``with`` block, by the function that is yielded.

    Until its first call, ``words`` are beside the bar.
    """
    console = Console(stderr=True)
    if not console.is_terminal:
        yield _Lines(clock).show
        return
    columns = TextColumn("{task.description}"), BarColumn(bar_width=None), TimeRemainingColumn(compact=True)
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task(words, total=None)
        totals: list[int | None] = []

        def show(words: str, done: int, total: int | None) -> None:
            if totals[-1:] != [total]:
                # The next step has begun, or the total has changed: the remaining time is that of this step.
                totals.append(total)
                bar.reset(task, total=total)
            bar.update(task, description=words, completed=done)

        yield show


class _Lines:
    """Shows progress as lines on stderr, at most one line every 5 s. Work that takes less time is not shown."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._reported_ms = clock.monotonic_ms()

    def show(self, words: str, done: int, total: int | None) -> None:
        if self._clock.monotonic_ms() - self._reported_ms >= REPORT_EVERY_MS:
            self._reported_ms = self._clock.monotonic_ms()
            click.echo(f"{words}, {done / total:.0%}" if total else words, err=True)
