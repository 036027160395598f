"""A replay of dead letters with somebody in front of it: progress on stderr, and signals that end it after the page under way."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final, Protocol

import click
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn

from streams_app.clock import Clock
from streams_app.operations.replayed import Replayed

TELL_EVERY_MS: Final = 5_000


class Running(Protocol):
    """A replay of any kind.

    Attributes:
        on_page: Called with what it has done after each page.
    """

    on_page: Callable[[Replayed], None]

    def stop(self) -> None:
        """Ends it after the page under way."""

    async def run(self) -> None:
        """Runs to the end."""


async def run(replay: Running, clock: Clock) -> int | None:
    """Runs a replay to its end, or until a signal.

    The first signal ends it after the page under way, which is then remembered; the second one at once.

    Returns:
        The number of the first signal; None without one.
    """
    loop = asyncio.get_running_loop()
    task = asyncio.ensure_future(replay.run())
    seen: list[int] = []

    def on_signal(number: int) -> None:
        seen.append(number)
        if len(seen) > 1:
            task.cancel()
            return
        replay.stop()
        click.echo("ending after the page under way; once more to end at once", err=True)

    numbers = signal.SIGINT, signal.SIGTERM
    for number in numbers:
        loop.add_signal_handler(number, on_signal, number)
    try:
        with _progress(clock) as replay.on_page:
            await task
    except asyncio.CancelledError:
        if not seen:
            raise
    finally:
        for number in numbers:
            loop.remove_signal_handler(number)
    return seen[0] if seen else None


@contextmanager
def _progress(clock: Clock) -> Iterator[Callable[[Replayed], None]]:
    """Shows how far it is: a bar on a terminal, else a line now and then."""
    console = Console(stderr=True)
    if not console.is_terminal:
        yield _Lines(clock).tell
        return
    with Progress(TextColumn("{task.description}"), BarColumn(), console=console, transient=True) as bar:
        number = bar.add_task("", total=None)
        yield lambda done: bar.update(number, total=2 * done.offsets, completed=done.searched + done.read, description=_words(done))


class _Lines:
    """Lines on stderr, for a log."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._told_ms = clock.monotonic_ms()

    def tell(self, done: Replayed) -> None:
        if self._clock.monotonic_ms() - self._told_ms >= TELL_EVERY_MS:
            self._told_ms = self._clock.monotonic_ms()
            click.echo(_words(done), err=True)


def _words(done: Replayed) -> str:
    if not done.read:
        return f"looking for what was put back before: {done.searched} of {done.offsets}"
    return f"{done.read} of {done.offsets} read, {done.put_back} put back, {done.refused.total()} refused again"
