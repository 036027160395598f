"""Detects outages of dependencies, with their start, duration and cause (pure).

A client that retries silently, or a hanging connection, looks like a time without events. So the watchdog sends a request every
second, and an outage begins with the first request that remains unanswered for longer than a limit.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Final, Literal

from streams_app.formatting import time_text
from streams_app.health.progress import SUSPENDED_MS

REDIS_LIMIT_MS: Final = 3_000
LEAST_KAFKA_LIMIT_MS: Final = 2_000
"""Minimum of :func:`kafka_limit_ms`, even with a very short session timeout, because a busy machine may be slow."""

Change = Literal["away", "back"]


def kafka_limit_ms(session_timeout_ms: int) -> int:
    """Return the time, in ms, without an answer after which Kafka counts as down."""
    return max(LEAST_KAFKA_LIMIT_MS, session_timeout_ms // 3)


@dataclass(slots=True)
class DependencyHealth:
    """Tracks whether one dependency answers, and since when it does not.

    Attributes:
        is_away: Whether the dependency was down at the last :meth:`check`.
        lasted_ms: Duration of the last outage that is over; 0: there was none.
    """

    what: str
    limit_ms: int
    is_away: bool = False
    lasted_ms: int = 0
    _asked: tuple[int, int] | None = None
    _checked_ms: int | None = None
    _error: str = "no answer"
    _fault: str | None = None
    _away_since: tuple[int, int] = field(default=(0, 0))

    def asked(self, monotonic_ms: int, wall_ms: int) -> None:
        """Record that a request was sent; an outage is measured from the first request without an answer."""
        self._asked = self._asked or (monotonic_ms, wall_ms)

    def failed(self, error: str, fault: str | None = None) -> None:
        """Record that a request has failed.

        Args:
            fault: Fault of a dependency that answers with an error, such as "is read-only"; None if it does not answer.
        """
        self._error, self._fault = error, fault

    def answered(self) -> None:
        """Record that the dependency has answered; the next :meth:`check` ends an outage."""
        self._asked, self._error, self._fault = None, "no answer", None

    def check(self, monotonic_ms: int, wall_ms: int) -> Change | None:
        """Evaluate whether the dependency is down; call it several times a second.

        Returns:
            "away" if an outage has begun since the previous call, "back" if an outage has ended, otherwise None.
        """
        was_suspended = self._checked_ms is not None and monotonic_ms - self._checked_ms > SUSPENDED_MS
        self._checked_ms = monotonic_ms
        if self._asked is None:
            if self.is_away:
                self.is_away = False
                self.lasted_ms = monotonic_ms - self._away_since[0]
                return "back"
            return None
        if self.is_away:
            return None
        if was_suspended:
            self._asked = monotonic_ms, wall_ms
        if monotonic_ms - self._asked[0] > self.limit_ms:
            self.is_away, self._away_since = True, self._asked
            return "away"
        return None

    @property
    def reason(self) -> str:
        """Text for the status during an outage: the name of the dependency, its fault, and the time at which the outage began."""
        if self._fault is not None:
            return f"{self.what} {self._fault}, since {self.since}"
        return f"{self.what} has not answered since {self.since}: {self._error}"

    @property
    def error(self) -> str:
        """Error of the last failed request; "no answer" if none has failed since the last answer."""
        return self._error

    @property
    def since(self) -> str:
        """Wall-clock time at which the last outage began, as text."""
        return time_text(self._away_since[1])


GONE_MS: Final = 30_000
SESSIONS: Final = 3


def gone_ms(session_timeout_ms: int) -> int:
    """Return for how long, in ms, a worker waits for a deleted source topic to be created again."""
    return max(GONE_MS, SESSIONS * session_timeout_ms)


@dataclass(slots=True)
class MissingTopics:
    """Tracks source topics that the broker reports as missing."""

    limit_ms: int
    _since_ms: dict[str, int] = field(default_factory=dict)

    def observe(self, now_ms: int, missing: Collection[str]) -> tuple[list[str], list[str]]:
        """Record which source topics are missing; call this only while the broker answers.

        Returns:
            The topics that exist again, and those that have been missing for ``limit_ms``, which count as deleted for good.
        """
        restored = sorted(self._since_ms.keys() - set(missing))
        self._since_ms = {name: self._since_ms.get(name, now_ms) for name in sorted(missing)}
        return restored, [name for name, since_ms in self._since_ms.items() if now_ms - since_ms >= self.limit_ms]
