"""A folding ratio over the last hour, minute by minute (pure)."""

from __future__ import annotations

import math
from typing import Final

MINUTE_MS: Final = 60_000
MINUTES: Final = 60


class LastHour:
    """Records, and the events folded into them, of the present minute and the 59 before it."""

    def __init__(self) -> None:
        """Nothing has been counted yet."""
        self._minutes: dict[int, tuple[int, int]] = {}

    def add(self, monotonic_ms: int, records: int, events: int) -> None:
        """Counts records of now."""
        minute = monotonic_ms // MINUTE_MS
        if minute not in self._minutes:
            self._forget(minute)
        had_records, had_events = self._minutes.get(minute, (0, 0))
        self._minutes[minute] = had_records + records, had_events + events

    def ratio(self, monotonic_ms: int) -> float:
        """1 - records / events; NaN where there were none, as 0 would say that nothing is folded."""
        self._forget(monotonic_ms // MINUTE_MS)
        records, events = (sum(counted) for counted in zip(*self._minutes.values(), strict=True)) if self._minutes else (0, 0)
        return 1 - records / events if events else math.nan

    def _forget(self, present: int) -> None:
        """Forgets the minutes that lie an hour or more before the present one."""
        self._minutes = {minute: counted for minute, counted in self._minutes.items() if minute > present - MINUTES}
