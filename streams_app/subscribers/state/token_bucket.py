"""The token bucket of a subscriber with a rate: how many attempts may start now (pure).

``lua/lease.lua`` computes the same for all workers together, by the clock of Redis.
"""

from __future__ import annotations

from math import floor
from typing import Final, NamedTuple

from streams_app.subscribers.declaration.subscriber import Rate

FULL_US: Final = 1_000_000
"""A bucket holds the leases of one second, and at least one lease: that many attempts may start at once after a pause."""

ROUNDED: Final = 1e-6
"""Tolerance for the rounding of a quotient of doubles that should be a whole number."""


class TokenBucket(NamedTuple):
    """How a bucket fills.

    Attributes:
        every_us: Time after which one lease is added.
        full_us: Time after which the bucket is full.
    """

    every_us: float
    full_us: float


class Leased(NamedTuple):
    """Leases that were taken from a bucket.

    Attributes:
        granted: Number of attempts that may start.
        wait_us: Time until there is another lease; 0: there is one now.
        empty_us: When the bucket would have been empty, which is all that is stored of it.
    """

    granted: int
    wait_us: int
    empty_us: float


def bucket_of(rate: Rate, workers: int = 1) -> TokenBucket:
    """Return the bucket of a rate, or that of an equal share of it for one of several workers."""
    every_us = rate.period_ms * 1_000 * workers / rate.count
    return TokenBucket(every_us, max(every_us, FULL_US))


def leased(bucket: TokenBucket, empty_us: float | None, wanted: int, now_us: int) -> Leased:
    """Take leases.

    Args:
        bucket: The bucket.
        empty_us: State of the bucket; None: it is full.
        wanted: Maximum number of leases.
        now_us: Clock of the bucket. If it has gone back, the bucket is empty, not full.
    """
    full_us = now_us - bucket.full_us
    empty_us = full_us if empty_us is None else min(max(empty_us, full_us), now_us)
    granted = min(wanted, floor((now_us - empty_us) / bucket.every_us + ROUNDED))
    after_us = empty_us + granted * bucket.every_us
    return Leased(granted, max(0, floor(after_us + bucket.every_us - now_us)), after_us)
