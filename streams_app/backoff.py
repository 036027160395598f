"""Exponential backoff (pure)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

REPORT_EVERY_SECONDS: Final = 600.0
"""Interval at which an outage is reported again while it lasts; the first report is made when it begins."""


@dataclass(slots=True)
class Backoff:
    """Delays that double with each failure in a row, up to a maximum.

    There is no jitter, so that schedules of the simulation are reproducible. Jitter is not needed: workers have
    different partitions, and a few of them that retry in the same second do no harm.

    Attributes:
        first_seconds: Delay after the first failure.
        longest_seconds: Maximum delay.
        failures: Number of failures in a row; 0 after a success.
    """

    first_seconds: float
    longest_seconds: float
    failures: int = 0
    _unreported_seconds: float = 0.0

    @property
    def should_report(self) -> bool:
        """Whether to log the next failure: it is the first in a row, or the delays since the last logged one add up to ten minutes.

        Read this property before calling :meth:`failed`. Because of the repetition, today's log shows an outage that began last
        week.
        """
        return self.failures == 0 or self._unreported_seconds >= REPORT_EVERY_SECONDS

    def failed(self) -> float:
        """Record a failure; return the seconds to wait before the next attempt."""
        # The exponent is limited, because after a night of failures the power would exceed a double.
        seconds = min(self.first_seconds * 2 ** min(self.failures, 30), self.longest_seconds)
        self._unreported_seconds = seconds + (0.0 if self.should_report else self._unreported_seconds)
        self.failures += 1
        return seconds

    def succeeded(self) -> bool:
        """Record a success; return whether the previous attempt had failed."""
        had_failed = self.failures > 0
        self.failures = 0
        return had_failed
