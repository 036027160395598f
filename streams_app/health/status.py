"""Whether this worker is alive and ready, and why not; written by the event loop, read by the HTTP thread."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Final, TypeAlias

LIVE_MS: Final = 30_000
"""A main loop that has not reported for so long hangs."""

CAUSES: Final = (
    "start", "claim", "kafka", "redis", "redis-memory", "topic", "subscriber", "clock-skew", "stuck", "lifespan", "loop", "poll",
    "end", "other",
)  # fmt: skip
"""Why a worker is not ready, as the metric ``streams_app_not_ready`` has it."""

_CAUSE_OF: Final = {"kafka-away": "kafka", "redis-away": "redis", "source": "topic", "producer": "topic"}

Page: TypeAlias = Callable[[], Any]
"""Makes what a page shows, as JSON can hold it; called from any thread."""

GroupsProvider: TypeAlias = Callable[[str | None, int], Awaitable[list[dict[str, Any]]]]
"""``await provider(fold or None, limit)`` gives rows; runs on the event loop of the worker."""


def cause_of(about: str) -> str:
    """The cause, one of few, by what a reason is about: ``source:orders`` is ``topic``."""
    head = about.partition(":")[0]
    cause = _CAUSE_OF.get(head, head)
    return cause if cause in CAUSES else "other"


class Status:
    """Reasons not to be ready, and what else is worth knowing of a worker that is, by what they are about.

    Each change is one dictionary operation, so that no lock is needed between the threads.

    Attributes:
        groups_provider: Lists open groups; None until the worker has started.
        pages: Path → what is served there, for what only some workers have.
    """

    def __init__(self) -> None:
        self._reasons: dict[str, str] = {"start": "the worker is starting"}
        self._beat_ms: int | None = None
        self._remarks: dict[str, str] = {}
        self.groups_provider: GroupsProvider | None = None
        self.pages: dict[str, Page] = {}

    def set_not_ready(self, about: str, why: str) -> None:
        """Notes a reason not to be ready; a later one about the same thing replaces it."""
        self._reasons[about] = why

    def clear(self, about: str) -> None:
        """Takes back the reason about one thing, if there is one."""
        self._reasons.pop(about, None)

    def remark(self, about: str, text: str | None) -> None:
        """Notes what people want to know though the worker is ready; None: there is nothing any more."""
        if text is None:
            self._remarks.pop(about, None)
        else:
            self._remarks[about] = text

    def remarks(self) -> list[str]:
        """What was noted and still is so."""
        return list(self._remarks.copy().values())

    def set_topic(self, topic: str, why: str | None) -> None:
        """Notes what is wrong with a topic to which records are produced; None: nothing is wrong any more."""
        if why is None:
            self.clear(f"producer:{topic}")
        else:
            self.set_not_ready(f"producer:{topic}", why)

    def ready_reasons(self) -> list[str]:
        """Why the worker is not ready; empty when it is."""
        return list(self._reasons.copy().values())

    def causes(self, monotonic_ms: int) -> set[str]:
        """Why the worker is not ready, each of :data:`CAUSES`; empty when it is."""
        return {cause_of(about) for about in self._reasons.copy()} | (set() if self.is_live(monotonic_ms) else {"loop"})

    def is_waiting_for(self, *about: str) -> bool:
        """Whether there is a reason about one of these things."""
        return any(one in self._reasons for one in about)

    def beat(self, monotonic_ms: int) -> None:
        """Notes that the main loop runs."""
        self._beat_ms = monotonic_ms

    def is_live(self, monotonic_ms: int) -> bool:
        """Whether the main loop has run within the last 30 s; true before its first beat."""
        return self._beat_ms is None or monotonic_ms - self._beat_ms < LIVE_MS
