"""Which events that are suspected of killing their process may begin, and how long they are watched (pure).

Events of several partitions and subscribers run in one process, and die with it. So a last trial, whose event becomes a dead letter
if the process dies once more, has no other trial beside it: two events never become letters for one death.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

FIRST_WATCH_MS: Final = 50
"""So long a suspect is watched at its first attempt."""

WATCHED_MS: Final = 2
"""In the place of the time when an attempt is due: it is under way, and its event is a suspect that was watched long enough."""

LONGER: Final = 5
"""With each attempt a suspect is watched so many times longer: one that kills its process late is found in the end."""

MOST_TIMES: Final = 7
"""So often that is done at most: more than an hour, and no attempt may take longer."""


FEWEST_TOGETHER: Final = 4
MOST_TOGETHER: Final = 32
"""So many suspects begin at once. If their process dies, each of them must be tried alone."""


def next_together(before: int) -> int:
    """How many suspects may begin at once after some others, which had so many at most and have not killed their process.

    What has killed it is among the first, most of the time: few are to be tried alone then. Later the functions are hardly held up.
    """
    return min(2 * before, MOST_TOGETHER)


def watched_ms(attempts: int) -> int:
    """How long nothing else of its partition begins after a suspect.

    Args:
        attempts: How many have begun, with the one that is watched.
    """
    return FIRST_WATCH_MS * LONGER ** min(max(0, attempts - 1), MOST_TIMES)


class CrashIsolation:
    """The partitions of a process that watch suspects at this moment."""

    def __init__(self) -> None:
        """None is watched."""
        self._is_last: dict[object, bool] = {}
        self._waiting: dict[object, tuple[bool, Callable[[], None]]] = {}

    def may_begin(self, who: object, *, is_last: bool, kick: Callable[[], None]) -> bool:
        """Whether a trial may begin.

        Args:
            who: Has one trial at a time.
            is_last: Whether the event becomes a letter if the process dies once more.
            kick: Called once it may be worth asking again, where it may not.
        """
        # A last one that waits goes first, or the others would take turns for as long as they have suspects.
        a_last_waits = any(is_last for other, (is_last, _) in self._waiting.items() if other is not who)
        if any(self._is_last.values()) or (self._is_last if is_last else a_last_waits):
            self._waiting[who] = is_last, kick
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
        for _, kick in waiting.values():
            kick()
