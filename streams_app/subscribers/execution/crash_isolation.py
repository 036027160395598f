"""Crash isolation: coordinates the suspects of a crash loop in all partitions of a process (pure).

A suspect is an event that was running when its process died. :mod:`streams_app.subscribers.guarantees.at_least_once` counts the
crashes of each suspect; this module decides when one may start, and how long it is watched.

The events of several partitions and subscribers run in one process, and die with it. So a last trial, whose event becomes a dead
letter if the process dies once more, runs without any other trial: two events never become dead letters for one crash.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

FIRST_WATCH_MS: Final = 50
"""How long a suspect is watched at its first attempt."""

WATCHED_MS: Final = 2
"""In place of a due time: an attempt is running, and its event is a suspect that was watched for long enough."""

LONGER: Final = 5
"""Each further attempt of a suspect is watched this many times longer, so that an event that kills its process late is found in the
end."""

MAX_TIMES: Final = 7
"""Maximum number of such extensions: the last one is longer than an hour, which no attempt may exceed."""


FEWEST_TOGETHER: Final = 4
MAX_TOGETHER: Final = 32
"""Maximum number of suspects that start together. If their process dies, each of them has to run alone."""


def next_together(before: int) -> int:
    """Return how many suspects may start together after a batch that has not killed the process.

    Usually the cause is among the first ones, so that few have to run alone. Later batches are larger, to hardly delay the others.

    Args:
        before: Maximum size of the last batch.
    """
    return min(2 * before, MAX_TOGETHER)


def watched_ms(attempts: int) -> int:
    """Return how long no other event of its partition starts after a suspect.

    Args:
        attempts: Number of attempts of the suspect, including the one that is watched.
    """
    return FIRST_WATCH_MS * LONGER ** min(max(0, attempts - 1), MAX_TIMES)


class CrashIsolation:
    """Coordinates the trials of suspects in all partitions of a process."""

    def __init__(self) -> None:
        self._is_last: dict[object, bool] = {}
        self._waiting: dict[object, tuple[bool, Callable[[], None]]] = {}

    def may_begin(self, who: object, *, is_last: bool, kick: Callable[[], None]) -> bool:
        """Return whether a suspect may run on trial.

        Args:
            who: The partition, which has one trial at a time.
            is_last: Whether the event becomes a dead letter if the process dies once more.
            kick: Called when it may be worth asking again, if the trial may not start.
        """
        # A last trial that waits has priority; otherwise the others would take turns for as long as they have suspects.
        a_last_waits = any(is_last for other, (is_last, _) in self._waiting.items() if other is not who)
        if any(self._is_last.values()) or (self._is_last if is_last else a_last_waits):
            self._waiting[who] = is_last, kick
            return False
        return True

    def begin(self, who: object, *, is_last: bool) -> None:
        """Record that a trial starts."""
        self._is_last[who] = is_last

    def end(self, who: object) -> None:
        """Record that a trial has ended, if there was one."""
        self._waiting.pop(who, None)
        if self._is_last.pop(who, None) is None:
            return
        waiting, self._waiting = self._waiting, {}
        for _, kick in waiting.values():
            kick()
