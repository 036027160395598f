"""Reads the clocks of the machine. All other modules take ``now_ms`` or a :class:`Clock` as an argument."""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """Wall clock and monotonic clock, both in integer milliseconds."""

    def now_ms(self) -> int:
        """Return milliseconds since 1970-01-01 UTC; may jump, for example when the clock is set."""

    def monotonic_ms(self) -> int:
        """Return milliseconds since an arbitrary moment; never jumps."""


class SystemClock:
    """Implements :class:`Clock` with the clocks of this machine."""

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def monotonic_ms(self) -> int:
        return time.monotonic_ns() // 1_000_000
