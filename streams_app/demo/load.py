"""Generates the load of the demo: a few hot accounts, a long tail, bursts and silences. Equal seeds give equal loads (pure).

Post metrics change in bursts: when a crawler runs, or a post goes viral, the posts of one account are updated dozens of times
within a second or two, and then not for a long time. A few accounts are always active.
"""

from __future__ import annotations

import heapq
import math
import random
from dataclasses import dataclass
from typing import Final, Protocol

import orjson

METRICS: Final = ("likes", "shares", "comments", "impressions", "saves", "clicks")
HOT_ACCOUNTS: Final = 3
HOT_SHARE: Final = 0.15
"""Share of all events that belong to hot accounts."""

BURST_MEAN: Final = 28.0
WAVE_MS: Final = 12_000
SILENT_PART: Final = 0.15
"""The load is divided into waves of 12 s. In the last part of each wave no burst begins; this is its share of the wave."""


@dataclass(frozen=True, slots=True)
class Update:
    """A raw event that the demo will produce.

    Attributes:
        at_ms: Time of the event, in ms since the beginning of the load.
        key: Record key, which is the group key; None: the event has no group key.
    """

    at_ms: float
    key: bytes | None
    value: bytes


class LoadEvents(Protocol):
    """Supplies the raw events that the demo produces: generated, or read from a file."""

    def until(self, now_ms: float) -> list[Update]:
        """Return the next updates in order, up to the time ``now_ms`` in ms since the beginning of the load."""

    @property
    def is_exhausted(self) -> bool:
        """Whether there are no more updates."""


class Load:
    """Generates an endless load of updates, each of which reports new metrics of a post of an account.

    ``groups`` is the number of accounts, ``rate`` the mean number of updates per second.
    """

    def __init__(self, *, groups: int, rate: float, seed: int = 20210801) -> None:
        self._random = random.Random(seed)  # not for security
        self._groups = groups
        self._bursts_per_ms = rate * (1 - HOT_SHARE) / BURST_MEAN / (1 - SILENT_PART) / 1000
        self._hot_per_ms = rate * HOT_SHARE / 1000
        self._next_burst_ms = self._wait(self._bursts_per_ms)
        self._next_hot_ms = self._wait(self._hot_per_ms)
        self._coming: list[tuple[float, int, str, str, dict[str, int]]] = []  # time in ms, sequence number, account, post, growth
        self._numbers = 0
        self._levels: dict[tuple[str, str, str], int] = {}

    @property
    def is_exhausted(self) -> bool:
        return False

    def until(self, now_ms: float) -> list[Update]:
        """The updates do not depend on how often this is called."""
        while self._next_burst_ms <= now_ms or self._next_hot_ms <= now_ms:
            if self._next_burst_ms <= self._next_hot_ms:
                self._burst(self._next_burst_ms)
                self._next_burst_ms += self._wait(self._bursts_per_ms)
            else:
                self._add(self._next_hot_ms, self._random.randrange(min(HOT_ACCOUNTS, self._groups)))
                self._next_hot_ms += self._wait(self._hot_per_ms)
        given = []
        while self._coming and self._coming[0][0] <= now_ms:
            given.append(self._happen(*heapq.heappop(self._coming)))
        return given

    def _happen(self, at_ms: float, _: int, account: str, post: str, growth: dict[str, int]) -> Update:
        metrics = {}
        for name, by in growth.items():
            # A metric is an absolute value that only grows, as social networks report it.
            level = self._levels.get((account, post, name), 0) + by
            self._levels[account, post, name] = metrics[name] = level
        return Update(at_ms, account.encode(), orjson.dumps({"account_id": account, "post_id": post, "metrics": metrics}))

    def _burst(self, begin_ms: float) -> None:
        if (begin_ms % WAVE_MS) / WAVE_MS > 1 - SILENT_PART:
            return  # silence
        account = self._account()
        size = max(1, round(self._random.expovariate(1 / BURST_MEAN)))
        length_ms = self._random.uniform(200, 2_500)
        for at in sorted(self._random.uniform(0, length_ms) for _ in range(size)):
            self._add(begin_ms + at, account)

    def _account(self) -> int:
        """Choose an account at random; the probability of number n is roughly proportional to 1 / (n + 1)."""
        return min(self._groups - 1, int(math.exp(self._random.random() * math.log(self._groups + 1))) - 1)

    def _add(self, at_ms: float, number: int) -> None:
        account = f"account_{number + 1}"
        post = f"post_{self._random.randrange(1, 6)}"
        names = self._random.sample(METRICS, k=self._random.choice((1, 1, 2, 2, 3)))
        growth = {name: self._random.randrange(1, 20) for name in names}
        heapq.heappush(self._coming, (at_ms, self._numbers, account, post, growth))
        self._numbers += 1

    def _wait(self, per_ms: float) -> float:
        return self._random.expovariate(per_ms) if per_ms > 0 else math.inf
