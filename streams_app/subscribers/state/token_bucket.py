"""How many attempts may begin now, where a subscriber has a rate: a bucket that time fills (pure).

``lua/lease.lua`` does the same by the clock of Redis for all workers together.
"""

from __future__ import annotations

from math import floor
from typing import Final, NamedTuple

from streams_app.subscribers.declaration.subscriber import Rate

FULL_US: Final = 1_000_000
"""A bucket holds what a second brings, and one lease at least: so many may begin at once after a pause."""

ROUNDED: Final = 1e-6
"""What a quotient of two doubles may lack of a whole number."""


class TokenBucket(NamedTuple):
    """How a bucket fills.

    Attributes:
        every_us: Time that brings one lease.
        full_us: Time after which no more are added.
    """

    every_us: float
    full_us: float


class Leased(NamedTuple):
    """What a bucket gave.

    Attributes:
        granted: So many attempts may begin.
        wait_us: Time until there is another lease; 0: there is one.
        empty_us: When the bucket would have been empty: all that is kept of it.
    """

    granted: int
    wait_us: int
    empty_us: float


def pace_of(rate: Rate, workers: int = 1) -> TokenBucket:
    """How the bucket of a rate fills, or that of the share which one of several workers has in it."""
    every_us = rate.period_ms * 1_000 * workers / rate.count
    return TokenBucket(every_us, max(every_us, FULL_US))


def leased(pace: TokenBucket, empty_us: float | None, wanted: int, now_us: int) -> Leased:
    """Takes leases.

    Args:
        pace: Of the bucket.
        empty_us: What is kept of it; None: it is full.
        wanted: So many at most.
        now_us: By the clock of the bucket. One that went back makes the bucket empty, not full.
    """
    full_us = now_us - pace.full_us
    empty_us = full_us if empty_us is None else min(max(empty_us, full_us), now_us)
    granted = min(wanted, floor((now_us - empty_us) / pace.every_us + ROUNDED))
    after_us = empty_us + granted * pace.every_us
    return Leased(granted, max(0, floor(after_us + pace.every_us - now_us)), after_us)
