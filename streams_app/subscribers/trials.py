"""Whether an event that is suspected of killing its process may begin, and how long it is watched (pure).

Events of several partitions and subscribers run in one process, and die with it. So a last trial, whose event becomes a dead letter
if the process dies once more, has no other trial beside it: two events never become letters for one death.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

FIRST_WATCH_MS: Final = 50
"""So long a suspect is watched that was never seen running: what runs for longer than some 20 ms is known to Redis."""

WATCHED_MS: Final = 2
"""In the place of the time when an attempt is due: it is under way, and its event is a suspect that was watched long enough."""

LONGER: Final = 5
"""With each attempt a suspect is watched so many times longer: one that kills its process late is found in the end."""

MOST_TIMES: Final = 7
"""So often that is done at most: more than an hour, and no attempt may take longer."""


def watched_ms(attempts: int) -> int:
    """How long nothing else of its partition begins after a suspect.

    Args:
        attempts: How many have begun, with the one that is watched.
    """
    return FIRST_WATCH_MS * LONGER ** min(max(0, attempts - 1), MOST_TIMES)


class Trials:
    """The suspects of a process that are watched at this moment, at most one of each partition."""

    def __init__(self) -> None:
        """None is watched."""
        self._is_last: dict[object, bool] = {}
        self._waiting: dict[object, Callable[[], None]] = {}

    def may_begin(self, who: object, *, is_last: bool, kick: Callable[[], None]) -> bool:
        """Whether a trial may begin.

        Args:
            who: Has one trial at a time.
            is_last: Whether the event becomes a letter if the process dies once more.
            kick: Called once it may be worth asking again, where it may not.
        """
        if any(self._is_last.values()) or (is_last and self._is_last):
            self._waiting[who] = kick
            return False
        return True

    def begin(self, who: object, *, is_last: bool) -> None:
        """A trial begins."""
        self._is_last[who] = is_last

    def end(self, who: object) -> None:
        """The trial has ended, if there was one."""
        self._waiting.pop(who, None)
        if self._is_last.pop(who, None) is None:
            return
        waiting, self._waiting = self._waiting, {}
        for kick in waiting.values():
            kick()
