"""Token bucket of a subscriber with a rate limit: how many attempts may start now (pure).

``lua/lease.lua`` does the same calculation for all workers together, with the clock of Redis.
"""

from __future__ import annotations

from math import floor
from typing import Final, NamedTuple

from streams_app.subscribers.declaration.subscriber import Rate

FULL_US: Final = 1_000_000
"""Time in us in which an empty bucket becomes full, unless a single lease takes longer. So a bucket has room for the leases of one
second, and for at least one lease. After a pause, all of them may be used at once."""

ROUNDED: Final = 1e-6
"""Tolerance for rounding errors in a quotient of doubles that should be a whole number."""


class TokenBucket(NamedTuple):
    """Fill rate and capacity of a bucket.

    Attributes:
        every_us: Time in us after which one lease is added.
        full_us: Time after which an empty bucket is full.
    """

    every_us: float
    full_us: float


class LeaseGrant(NamedTuple):
    """Leases that were taken from a bucket.

    Attributes:
        granted: Number of attempts that may start.
        wait_us: Time in us until the next lease is available; 0: one is available now.
        empty_us: State of the bucket, as a time in us: a bucket that was empty at this time, and from which no lease has been taken
            since, would hold as many leases now. Nothing else is stored of a bucket.
    """

    granted: int
    wait_us: int
    empty_us: float


def bucket_of(rate: Rate, workers: int = 1) -> TokenBucket:
    """Return the fill rate and the capacity of the token bucket of one of the workers that share a rate equally."""
    every_us = rate.period_ms * 1_000 * workers / rate.count
    return TokenBucket(every_us, max(every_us, FULL_US))


def leased(bucket: TokenBucket, empty_us: float | None, wanted: int, now_us: int) -> LeaseGrant:
    """Take as many of the wanted leases as a token bucket has; return their number with the new state of the bucket.

    Args:
        empty_us: State of the bucket, see :class:`LeaseGrant`; None: the bucket is full.
        now_us: Present time in us. If the clock was set back, the bucket counts as empty, not as full.
    """
    full_us = now_us - bucket.full_us
    empty_us = full_us if empty_us is None else min(max(empty_us, full_us), now_us)
    granted = min(wanted, floor((now_us - empty_us) / bucket.every_us + ROUNDED))
    after_us = empty_us + granted * bucket.every_us
    return LeaseGrant(granted, max(0, floor(after_us + bucket.every_us - now_us)), after_us)
