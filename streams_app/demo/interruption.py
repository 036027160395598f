"""Ctrl-C, SIGTERM and a closed terminal: none of them leaves anything of the demo behind.

After each of them the demo stops what it has started and removes its folders, topics and keys. That takes seconds, and further
signals are ignored meanwhile. The first Ctrl-C while the load runs only ends the load: what was produced is folded and checked.
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
        """Within the block a signal that nobody listens to raises ``KeyboardInterrupt``, once."""
        before = {number: signal.signal(number, self._handle) for number in SIGNALS}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def listen(self, listener: Callable[[int], object]) -> None:
        """Hands signals to a listener from now on, between any two steps of the main thread."""
        self._listener = listener

    @property
    def is_leaving(self) -> bool:
        """Whether the demo has begun to end, so that signals are ignored."""
        return self._is_leaving

    def leave(self) -> None:
        """Notes that the demo has begun to end: signals are ignored from now on."""
        self._is_leaving = True

    def _handle(self, number: int, _: FrameType | None) -> None:
        if self._is_leaving:
            return
        if self._listener is not None:
            self._listener(number)
            return
        self._is_leaving = True
        raise KeyboardInterrupt
