"""Backoff that also decides which failures of an outage are logged; unlike :mod:`streams_app.backoff`, it reads a clock."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from streams_app.backoff import Backoff
from streams_app.clock import Clock, SystemClock

REPORT_EVERY_MS: Final = 600_000
"""Interval at which an outage is reported again while it lasts; the first report is made when it begins."""


@dataclass(slots=True)
class ReportedBackoff(Backoff):
    """Backoff of a loop that logs the first failure in a row, and then one failure every ten minutes.

    Because of the repetition, today's log shows an outage that began last week.
    """

    clock: Clock = field(default_factory=SystemClock)
    _reported_ms: int = 0

    @property
    def should_report(self) -> bool:
        """Whether to log the next failure; read this property before calling :meth:`failed`."""
        return self.failures == 0 or self.clock.monotonic_ms() - self._reported_ms >= REPORT_EVERY_MS

    def failed(self) -> float:
        if self.should_report:
            self._reported_ms = self.clock.monotonic_ms()
        return Backoff.failed(self)
