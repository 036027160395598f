"""A clock that a test moves."""

from __future__ import annotations


class ManualClock:
    """A clock that only a test moves."""

    def __init__(self, start_ms: int = 0) -> None:
        self._now_ms = start_ms
        self._monotonic_ms = 0

    def now_ms(self) -> int:
        """Return the time to which it is set."""
        return self._now_ms

    def monotonic_ms(self) -> int:
        """Return the time by which it has been moved."""
        return self._monotonic_ms

    def advance_ms(self, step_ms: int) -> None:
        """Move both clocks."""
        self._now_ms += step_ms
        self._monotonic_ms += step_ms
