"""Whether something outside answers, since when not, and what is said about it (pure).

A client that retries in silence, or a connection that hangs, looks like a quiet hour. So somebody asks every second, and an
outage begins with the first question that nobody has answered for longer than a limit.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Final, Literal

from streams_app.formatting import time_text
from streams_app.health.progress import SUSPENDED_MS

REDIS_LIMIT_MS: Final = 3_000
LEAST_KAFKA_LIMIT_MS: Final = 2_000
"""The least limit, even with a very short session time-out: a busy machine takes a second now and then."""

Change = Literal["away", "back"]


def kafka_limit_ms(session_timeout_ms: int) -> int:
    """A third of the session time-out: long enough for a hiccup, and the group has not yet thrown anybody out."""
    return max(LEAST_KAFKA_LIMIT_MS, session_timeout_ms // 3)


@dataclass(slots=True)
class DependencyHealth:
    """Whether one thing outside answers.

    Attributes:
        what: Its name and its address, for people.
        limit_ms: How long a question may be without an answer; beyond that the thing is away.
        is_away: Whether it was away at the last look.
        lasted_ms: How long the last outage lasted, once it is over.
    """

    what: str
    limit_ms: int
    is_away: bool = False
    lasted_ms: int = 0
    _asked: tuple[int, int] | None = None
    _looked_ms: int | None = None
    _error: str = "no answer"
    _trouble: str | None = None
    _away_since: tuple[int, int] = field(default=(0, 0))

    def asked(self, monotonic_ms: int, wall_ms: int) -> None:
        """Notes that a question is sent; the first one without an answer counts."""
        self._asked = self._asked or (monotonic_ms, wall_ms)

    def failed(self, error: str, trouble: str | None = None) -> None:
        """Notes that a question failed.

        Args:
            error: Why.
            trouble: What is the case where it does answer, but not as it should: "is read-only".
        """
        self._error, self._trouble = error, trouble

    def answered(self) -> None:
        """Notes that a question was answered."""
        self._asked, self._error, self._trouble = None, "no answer", None

    def look(self, monotonic_ms: int, wall_ms: int) -> Change | None:
        """Decides whether it is away; called several times a second.

        Returns:
            What has changed since the last look; None: nothing.
        """
        was_suspended = self._looked_ms is not None and monotonic_ms - self._looked_ms > SUSPENDED_MS
        self._looked_ms = monotonic_ms
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
        """Why the worker is not ready, while it is away."""
        if self._trouble is not None:
            return f"{self.what} {self._trouble}, since {self.since}"
        return f"{self.what} has not answered since {self.since}: {self._error}"

    @property
    def error(self) -> str:
        """Why the last question failed."""
        return self._error

    @property
    def since(self) -> str:
        """When the last outage began, as text."""
        return time_text(self._away_since[1])


GONE_MS: Final = 30_000
SESSIONS: Final = 3


def gone_ms(session_timeout_ms: int) -> int:
    """How long a worker waits for a source that was deleted: whoever deleted it may be about to make it again."""
    return max(GONE_MS, SESSIONS * session_timeout_ms)


@dataclass(slots=True)
class MissingTopics:
    """Sources that brokers say do not exist.

    Attributes:
        limit_ms: A source that is missing for so long is gone.
    """

    limit_ms: int
    _since_ms: dict[str, int] = field(default_factory=dict)

    def observe(self, now_ms: int, missing: Collection[str]) -> tuple[list[str], list[str]]:
        """Notes one answer of the broker; to be called only while it answers.

        Returns:
            The sources that are there again, and those that are gone.
        """
        again = sorted(self._since_ms.keys() - set(missing))
        self._since_ms = {name: self._since_ms.get(name, now_ms) for name in sorted(missing)}
        return again, [name for name, since_ms in self._since_ms.items() if now_ms - since_ms >= self.limit_ms]
