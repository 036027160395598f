"""Crash isolation: coordinates the suspects of a crash loop in all partitions of a process (pure).

A suspect is an event that may have been running when its process crashed.
:mod:`streams_app.subscribers.guarantees.at_least_once` counts the crashes of each suspect; this module decides when a suspect
may start, and how long it is watched. While suspects are watched, no further event of their partition starts, so that a crash in
this time is attributed to them.

A crash of the process interrupts the events of all its partitions and subscribers. In a solo retry, a suspect starts alone,
and its event becomes a dead letter if the process crashes once more. While a solo retry is watched, no other suspect of the
process is watched, so that one crash never makes dead letters of two events.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

FIRST_WATCH_MS: Final = 50
"""How long a suspect is watched at its first attempt: no further event of its partition starts during this time."""

WATCH_PASSED: Final = 2
"""Due time that is stored for a suspect whose attempt is still running after its watch. It marks the suspect: if the process
crashes from then on, the crash count of the suspect does not increase."""

LONGER: Final = 5
"""Factor by which the watch of a suspect becomes longer with each further attempt. So an event is also found if it crashes its
process late."""

MAX_TIMES: Final = 7
"""Maximum number of times that a watch becomes longer. The longest watch exceeds an hour, the maximum duration of an attempt."""


FEWEST_TOGETHER: Final = 4
MAX_TOGETHER: Final = 32
"""Maximum number of suspects that start together. If the process crashes, each of them has to run alone."""


def next_together(before: int) -> int:
    """Return how many suspects may start together after a batch that has not crashed the process.

    Usually the cause is among the first suspects, so the first batches are small and few events have to run alone. Later batches
    are larger, so that they hardly delay other events.
    """
    return min(2 * before, MAX_TOGETHER)


def watched_ms(attempts: int) -> int:
    """Return how long a suspect is watched, in ms; ``attempts`` includes the one that is watched."""
    return FIRST_WATCH_MS * LONGER ** min(max(0, attempts - 1), MAX_TIMES)


class CrashIsolation:
    """Coordinates the suspects in all partitions of a process.

    A partition starts either some suspects together, or one suspect in a solo retry.
    """

    def __init__(self) -> None:
        self._started: dict[object, bool] = {}
        self._waiting: dict[object, tuple[bool, Callable[[], None]]] = {}

    def may_begin(self, who: object, *, is_solo_retry: bool, kick: Callable[[], None]) -> bool:
        """Return whether a partition may start suspects now: either several together, or a single one in a solo retry.

        Args:
            who: The guarantee of the partition.
            kick: If the answer is False, this function is called as soon as the answer may have changed.
        """
        # A solo retry that waits has priority; otherwise it might wait until the other partitions have no more suspects.
        is_solo_retry_waiting = any(is_solo_retry for other, (is_solo_retry, _) in self._waiting.items() if other is not who)
        if any(self._started.values()) or (self._started if is_solo_retry else is_solo_retry_waiting):
            self._waiting[who] = is_solo_retry, kick
            return False
        return True

    def begin(self, who: object, *, is_solo_retry: bool) -> None:
        self._started[who] = is_solo_retry

    def end(self, who: object) -> None:
        """Record that the suspects of a partition have ended or their watch is over, or that the partition is released.

        The partition no longer waits for :meth:`may_begin`.
        """
        self._waiting.pop(who, None)
        if self._started.pop(who, None) is None:
            return
        waiting, self._waiting = self._waiting, {}
        for _, kick in waiting.values():
            kick()
