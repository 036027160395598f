"""Clocks: the system's in integer milliseconds, and a manual one."""

from __future__ import annotations

import time

from streams_app.clock import SystemClock
from tests.helpers.manual_clock import ManualClock


def test_system_clock_reads_milliseconds_since_1970() -> None:
    before_ms = int(time.time() * 1000)
    now_ms = SystemClock().now_ms()
    after_ms = int(time.time() * 1000) + 1

    assert type(now_ms) is int
    assert before_ms - 1 <= now_ms <= after_ms


def test_system_clock_reads_monotonic_milliseconds() -> None:
    before_ms = int(time.monotonic() * 1000)
    monotonic_ms = SystemClock().monotonic_ms()
    after_ms = int(time.monotonic() * 1000) + 1

    assert type(monotonic_ms) is int
    assert before_ms - 1 <= monotonic_ms <= after_ms


def test_manual_clock_stands_still_until_advanced() -> None:
    clock = ManualClock(1_700_000_000_000)

    assert (1_700_000_000_000, 0) == (clock.now_ms(), clock.monotonic_ms())
    assert (1_700_000_000_000, 0) == (clock.now_ms(), clock.monotonic_ms())


def test_manual_clock_moves_both_clocks_by_the_same_step() -> None:
    clock = ManualClock(100)
    clock.advance_ms(7)
    clock.advance_ms(5)

    assert (112, 12) == (clock.now_ms(), clock.monotonic_ms())
