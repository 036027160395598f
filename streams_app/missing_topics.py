"""Since when a source does not exist any more (pure)."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Final

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
