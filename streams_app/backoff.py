"""How long to wait before the next try of something that fails: the one rule for it (pure)."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class Backoff:
    """Waits that double with each failure in a row, up to a longest one.

    There is no jitter: whoever waits here has a partition of its own, and a few workers that ask again in the same second are no
    storm. So a schedule of the simulation can be run again.

    Attributes:
        first_seconds: How long to wait after the first failure.
        longest_seconds: How long to wait at most.
        failures: How many tries in a row have failed; 0 after one that has not.
    """

    first_seconds: float
    longest_seconds: float
    failures: int = 0

    def failed(self) -> float:
        """Notes that a try has failed; returns the seconds to wait before the next."""
        # Without its bound the power of a whole night's failures would be beyond a double.
        seconds = self.first_seconds * 2 ** min(self.failures, 30)
        self.failures += 1
        return min(seconds, self.longest_seconds)

    def succeeded(self) -> bool:
        """Notes that a try has not failed; returns whether the one before it had."""
        had_failed = self.failures > 0
        self.failures = 0
        return had_failed
