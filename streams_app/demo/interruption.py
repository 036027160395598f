"""Ctrl-C, SIGTERM and a closed terminal: none of them leaves anything of the demo behind.

Each ends in an orderly way: what was started is stopped, folders, topics and keys are removed. While that is going on, which takes
seconds, further signals are ignored. The first Ctrl-C of a running load is a wish to end it: the rest is folded and checked.
"""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Final

SIGNALS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Interruption:
    """What the signals of this process do while the demo runs; used by the main thread only."""

    def __init__(self) -> None:
        self._listener: Callable[[int], object] | None = None
        self._is_leaving = False

    @contextmanager
    def handled(self) -> Iterator[None]:
        """As long as this lasts, a signal that nobody listens to raises ``KeyboardInterrupt``, once."""
        before = {number: signal.signal(number, self._handle) for number in SIGNALS}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def listen(self, listener: Callable[[int], object]) -> None:
        """From now on signals are told to somebody, between any two steps of the main thread."""
        self._listener = listener

    @property
    def is_leaving(self) -> bool:
        """Whether the end has begun."""
        return self._is_leaving

    def leave(self) -> None:
        """The end has begun: signals are ignored from now on."""
        self._is_leaving = True

    def _handle(self, number: int, _: FrameType | None) -> None:
        if self._is_leaving:
            return
        if self._listener is not None:
            self._listener(number)
            return
        self._is_leaving = True
        raise KeyboardInterrupt
