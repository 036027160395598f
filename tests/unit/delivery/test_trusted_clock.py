"""A wrong wall clock does not affect partition clocks: it is compared with Redis, and jumps are detected at once."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from streams_app.delivery.clocks import SKEW_MS, TrustedClock

NOW = 1_700_000_000_000
TEN_MINUTES = 600_000


@dataclass
class SkewedMachine:
    """A machine whose wall clock is off, or is set while it runs."""

    off_ms: int = 0
    at_ms: int = 0

    def now_ms(self) -> int:
        return NOW + self.at_ms + self.off_ms

    def monotonic_ms(self) -> int:
        return 77_000 + self.at_ms


def compared(machine: SkewedMachine, clock: TrustedClock, latency_ms: int = 0) -> TrustedClock:
    """Compare with Redis, whose clock is right and which answers in the middle of the latency."""
    asked = clock.read()
    machine.at_ms += latency_ms // 2
    redis_ms = NOW + machine.at_ms
    machine.at_ms += latency_ms - latency_ms // 2
    clock.compare(asked, redis_ms)
    return clock


@pytest.mark.parametrize(
    ("off_ms", "latency_ms", "is_trusted"),
    [
        pytest.param(0, 0, True, id="right"),
        pytest.param(SKEW_MS, 0, True, id="ahead by as much as may be"),
        pytest.param(-SKEW_MS, 0, True, id="behind by as much as may be"),
        pytest.param(SKEW_MS + 1, 0, False, id="ahead"),
        pytest.param(-SKEW_MS - 1, 0, False, id="behind"),
        pytest.param(0, 60_000, True, id="right, and Redis takes its time"),
        pytest.param(TEN_MINUTES, 1_000, False, id="ten minutes ahead"),
        pytest.param(-TEN_MINUTES, 1_000, False, id="ten minutes behind"),
    ],
)
def test_clock_is_trusted_while_it_agrees_with_redis(off_ms: int, latency_ms: int, is_trusted: bool) -> None:
    machine = SkewedMachine(off_ms)
    clock = compared(machine, TrustedClock(machine), latency_ms)
    machine.at_ms += 3_000

    assert is_trusted == clock.is_trusted()
    assert clock.now_ms() == (machine.now_ms() if is_trusted else NOW + machine.at_ms - latency_ms // 2)


@pytest.mark.parametrize("jump_ms", [TEN_MINUTES, -TEN_MINUTES])
def test_clock_jump_is_detected_at_once_and_time_continues_from_redis(jump_ms: int) -> None:
    machine = SkewedMachine()
    clock = compared(machine, TrustedClock(machine))
    machine.off_ms = jump_ms
    machine.at_ms += 4_000
    jumped = clock.is_trusted(), clock.now_ms()
    compared(machine, clock)
    machine.at_ms += 4_000
    still = clock.is_trusted(), clock.now_ms()
    machine.off_ms = 0
    set_right = clock.is_trusted(), clock.now_ms()
    compared(machine, clock)

    assert [(False, NOW + 4_000), (False, NOW + 8_000), (False, NOW + 8_000)] == [jumped, still, set_right]
    assert (True, machine.now_ms()) == (clock.is_trusted(), clock.now_ms())


def test_unverified_clock_is_trusted_until_it_jumps() -> None:
    machine = SkewedMachine()
    clock = TrustedClock(machine)
    before = clock.is_trusted()
    machine.off_ms = TEN_MINUTES

    assert (True, False, NOW) == (before, clock.is_trusted(), clock.now_ms())
