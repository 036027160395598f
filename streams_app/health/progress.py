"""Whether everything that ought to move moves; what stands still without a known pause ends the process.

A client can stop consuming without a word, and a loop can hang. So somebody who does not depend on them asks again and again how
far everything is: the partitions of a group, and what processors do by themselves.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from streams_app.health.status import Status

STUCK_MS: Final = 60_000
SUSPENDED_MS: Final = 3_000
"""Between two looks: the process itself stood still, and nothing may be held against anybody."""

UNCLAIMED: Final = -1
"""Position of a partition that the group has assigned and nobody has claimed."""


class Progress(NamedTuple):
    """How far something is that ought to move while there is more to do.

    Attributes:
        position: It changes with whatever is done.
        end: How far it could get: it ought to move while its position is below.
        what: Its names, for the log.
        why: What stands still, as a sentence for people.
    """

    position: int
    end: int
    what: str
    why: str


@dataclass(slots=True)
class StallDetector:
    """Since when each of several things has stood still although there is more to do.

    Attributes:
        stuck_ms: What stands still for so long is stuck.
    """

    stuck_ms: int = STUCK_MS
    _still: dict[Hashable, tuple[Progress, int]] = field(default_factory=dict)

    def observe(self, now_ms: int, moves: Mapping[Hashable, Progress]) -> Progress | None:
        """Notes one look, at this moment of the monotonic clock; what is missing begins anew.

        Returns:
            Something that is stuck; None where nothing is.
        """
        before, self._still = self._still, {}
        for key, one in moves.items():
            known, since_ms = before.get(key, (one, now_ms))
            is_still = one.position == known.position and one.position < one.end
            self._still[key] = one, since_ms if is_still else now_ms
        return self._still_for(self.stuck_ms, now_ms)

    def slow(self, now_ms: int) -> Progress | None:
        """Something that has stood still for half of :attr:`stuck_ms`, so that it can be told before it is too late."""
        return self._still_for(self.stuck_ms // 2, now_ms)

    def _still_for(self, least_ms: int, now_ms: int) -> Progress | None:
        return next((one for one, since_ms in self._still.values() if now_ms - since_ms >= least_ms), None)


class ProgressWatchdog:
    """Tells what has stood still for half a minute, and ends the process after a whole one."""

    def __init__(self, status: Status, end: Callable[[str], None], stuck_ms: int = STUCK_MS) -> None:
        """Has seen nothing yet; ``end`` ends the process and is told why."""
        self._status = status
        self._end = end
        self._progress = StallDetector(stuck_ms)
        self._looked_ms: int | None = None

    def look(self, moves: Mapping[Hashable, Progress], monotonic_ms: int) -> None:
        """Judges how far everything is; several times a second."""
        if self._looked_ms is not None and monotonic_ms - self._looked_ms > SUSPENDED_MS:
            # This process stood still, and everything with it.
            self._progress = StallDetector(self._progress.stuck_ms)
        self._looked_ms = monotonic_ms
        if stuck := self._progress.observe(monotonic_ms, moves):
            self._end(f"no progress {stuck.what} position={stuck.position} end={stuck.end} why={stuck.why!r}")
        if slow := self._progress.slow(monotonic_ms):
            self._status.set_not_ready("stuck", slow.why)
        else:
            self._status.clear("stuck")
