"""Detects components that have pending work but make no progress. If no known pause explains such a stall, the process ends.

A client can stop consuming silently, and a loop can hang. So the watchdog, which does not depend on clients and loops, periodically
reads the progress of each partition of a group, and of the processors' own work.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from streams_app.health.status import Status

STUCK_MS: Final = 60_000
SUSPENDED_MS: Final = 3_000
"""If more than this time passes between two observations, the process itself was suspended, and no stall counts."""

UNCLAIMED: Final = -1
"""Position of a partition that is assigned but not claimed."""


class Progress(NamedTuple):
    """How far a component has come with its pending work.

    Attributes:
        position: Value that changes with each unit of work.
        end: Position at which no work is left. While the position is lower, a position that does not change is a stall.
        why: Description of a stall of the component, as a sentence.
    """

    position: int
    end: int
    what: str
    why: str


@dataclass(slots=True)
class StallDetector:
    """Detects stalls: components with pending work whose position does not change."""

    stuck_ms: int = STUCK_MS
    _still: dict[Hashable, tuple[Progress, int]] = field(default_factory=dict)

    def observe(self, now_ms: int, progress: Mapping[Hashable, Progress]) -> Progress | None:
        """Record the progress of all components.

        Args:
            now_ms: Monotonic time.
            progress: Progress of each component, by a key that identifies it. A component that is missing is forgotten.

        Returns:
            Progress of a component that has stalled for :attr:`stuck_ms`; None if none has.
        """
        before, self._still = self._still, {}
        for key, one in progress.items():
            previous, since_ms = before.get(key, (one, now_ms))
            is_still = one.position == previous.position and one.position < one.end
            self._still[key] = one, since_ms if is_still else now_ms
        return self._still_for(self.stuck_ms, now_ms)

    def slow(self, now_ms: int) -> Progress | None:
        """Return the progress of a component that has stalled for half of :attr:`stuck_ms`; None if none has."""
        return self._still_for(self.stuck_ms // 2, now_ms)

    def _still_for(self, least_ms: int, now_ms: int) -> Progress | None:
        return next((one for one, since_ms in self._still.values() if now_ms - since_ms >= least_ms), None)


class ProgressWatchdog:
    """Reports a component that has stalled for half a minute, and ends the process if it has stalled for a minute."""

    def __init__(self, status: Status, end: Callable[[str], None], stuck_ms: int = STUCK_MS) -> None:
        """Create a watchdog; it calls ``end`` with the reason to end the process."""
        self._status = status
        self._end = end
        self._progress = StallDetector(stuck_ms)
        self._checked_ms: int | None = None

    def check(self, progress: Mapping[Hashable, Progress], monotonic_ms: int) -> None:
        """Report a stalled component in the status, or end the process; call this several times a second."""
        if self._checked_ms is not None and monotonic_ms - self._checked_ms > SUSPENDED_MS:
            # The process itself was suspended: discard the history, because no component could progress.
            self._progress = StallDetector(self._progress.stuck_ms)
        self._checked_ms = monotonic_ms
        if stuck := self._progress.observe(monotonic_ms, progress):
            self._end(f"no progress {stuck.what} position={stuck.position} end={stuck.end} why={stuck.why!r}")
        if slow := self._progress.slow(monotonic_ms):
            self._status.set_not_ready("stuck", slow.why)
        else:
            self._status.clear("stuck")
