"""Liveness and readiness of a worker, with reasons; written by the event loop, read by the HTTP thread."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Final, TypeAlias

LIVE_MS: Final = 30_000
"""Time without a heartbeat after which the main loop counts as hanging."""

NOT_READY_CAUSES: Final = (
    "start", "claim", "kafka", "redis", "redis-memory", "schema-registry", "topic", "subscriber", "clock-skew", "stuck", "lifespan",
    "loop", "poll", "end", "other",
)  # fmt: skip
"""Causes for which a worker is not ready; values of the label ``cause`` of the metric ``streams_app_not_ready``."""

_CAUSE_OF: Final = {"kafka-away": "kafka", "redis-away": "redis", "source": "topic", "producer": "topic"}

Page: TypeAlias = Callable[[], Any]
"""Returns the JSON content of a page; may be called from any thread."""

GroupsProvider: TypeAlias = Callable[[str | None, int], Awaitable[list[dict[str, Any]]]]
"""Lists open groups, on the event loop of the worker. The first argument is the name of a fold, or None for all folds; the second
one is the maximum number of groups."""


def cause_of(about: str) -> str:
    """Return the category, one of :data:`NOT_READY_CAUSES`, of a subject for which a worker is not ready.

    A subject is the key of a reason in :class:`Status`. That of ``source:orders``, for example, is ``topic``; that of an unknown
    subject is ``other``.
    """
    head = about.partition(":")[0]
    cause = _CAUSE_OF.get(head, head)
    return cause if cause in NOT_READY_CAUSES else "other"


class Status:
    """Stores reasons why a worker is not ready, and remarks about a ready one, each by its subject.

    A subject is a text that names what the reason is about, such as ``kafka-away`` or ``source:orders``. Each change is one
    dictionary operation, so no lock is needed between the threads.

    Attributes:
        groups_provider: Lists open groups; None if the worker runs no folds, or has not started yet.
        pages: Functions that return the content of HTTP pages that only some workers have, by path.
    """

    def __init__(self) -> None:
        self._reasons: dict[str, str] = {"start": "the worker is starting"}
        self._beat_ms: int | None = None
        self._remarks: dict[str, str] = {}
        self.groups_provider: GroupsProvider | None = None
        self.pages: dict[str, Page] = {}

    def set_not_ready(self, about: str, why: str) -> None:
        """Set why the worker is not ready, for a subject such as ``kafka-away``; a later reason for the subject replaces it."""
        self._reasons[about] = why

    def clear(self, about: str) -> None:
        """Remove the reason for a subject, which then no longer prevents the worker from being ready."""
        self._reasons.pop(about, None)

    def remark(self, about: str, text: str | None) -> None:
        """Set a remark about a subject, which does not prevent the worker from being ready; None removes the remark."""
        if text is None:
            self._remarks.pop(about, None)
        else:
            self._remarks[about] = text

    def remarks(self) -> list[str]:
        """Return the texts of all remarks, for example that an open transaction hides records."""
        return list(self._remarks.copy().values())

    def set_topic(self, topic: str, why: str | None) -> None:
        """Set the fault of a topic to which records are produced; None removes it."""
        if why is None:
            self.clear(f"producer:{topic}")
        else:
            self.set_not_ready(f"producer:{topic}", why)

    def ready_reasons(self) -> list[str]:
        """Return the stored reasons why the worker is not ready; a main loop that hangs is not among them."""
        return list(self._reasons.copy().values())

    def causes(self, monotonic_ms: int) -> set[str]:
        """Return which of :data:`NOT_READY_CAUSES` prevent the worker from being ready; empty if it is ready."""
        return {cause_of(about) for about in self._reasons.copy()} | (set() if self.is_live(monotonic_ms) else {"loop"})

    def is_waiting_for(self, *about: str) -> bool:
        """Return whether any of these subjects prevents the worker from being ready."""
        return any(one in self._reasons for one in about)

    def beat(self, monotonic_ms: int) -> None:
        self._beat_ms = monotonic_ms

    def is_live(self, monotonic_ms: int) -> bool:
        """Return whether the main loop has run within the last 30 s; True also before its first heartbeat."""
        return self._beat_ms is None or monotonic_ms - self._beat_ms < LIVE_MS
