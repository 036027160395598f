"""Exponential backoff (pure)."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class Backoff:
    """Delays that double with each failure in a row, up to a maximum.

    There is no jitter, so that schedules of the simulation are reproducible. Jitter is not needed: workers have
    different partitions, and a few of them that retry in the same second do no harm.

    Attributes:
        failures: Number of failures in a row; 0 after a success.
    """

    first_seconds: float
    longest_seconds: float
    failures: int = 0

    def failed(self) -> float:
        """Record a failure; return the seconds to wait before the next attempt."""
        # The exponent is limited, because after a night of failures the power would exceed a double.
        seconds = self.first_seconds * 2 ** min(self.failures, 30)
        self.failures += 1
        return min(seconds, self.longest_seconds)

    def succeeded(self) -> bool:
        """Record a success; return whether the previous attempt had failed."""
        had_failed = self.failures > 0
        self.failures = 0
        return had_failed
