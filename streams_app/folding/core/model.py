"""A shard in memory (pure): the same decisions as the scripts, one event at a time.

For the test kit, for tuning, and as the model the scripts are compared with on a real server. It promises nothing to a crash.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import orjson

from streams_app.folding.core.chunks import FoldEvent
from streams_app.folding.core.record import Sealed


@dataclass(slots=True)
class OpenGroup:
    """A group that is not yet emitted; offsets of the source, times in ms."""

    first_offset: int
    opened_ms: int
    last_offset: int
    score_ms: int
    silent_from_ms: int
    events: int = 0
    low_ms: int = 2**62
    high_ms: int = -1
    names: dict[str, bytes] = field(default_factory=dict)


@dataclass(slots=True)
class MemoryShard:
    """The open groups of one (fold, topic, partition).

    Attributes:
        quiet_ms: Quiet period.
        hold_ms: Max hold.
        max_events: 0 = no bound.
        max_changed: Names in one group.
        sessions: An event more than the quiet period after its group's last one closes the group first.
        partitions: Of the source, for the version of the records.
        clock_ms: Partition clock.
        open: Group → its open fold.
    """

    quiet_ms: int
    hold_ms: int
    max_events: int = 0
    max_changed: int = 10_000
    sessions: bool = False
    partitions: int = 1
    clock_ms: int = 0
    open: dict[bytes, OpenGroup] = field(default_factory=dict)

    def fold(self, event: FoldEvent, score_ms: int, arrived_ms: int = 0) -> list[Sealed]:
        """Adds one event.

        Args:
            event: Above every offset folded before.
            score_ms: Partition clock at the event; never below the one before. With ``sessions`` the record clock.
            arrived_ms: With ``sessions``: when it arrived, if it had not been waiting; silence is counted from then.

        Returns:
            The folds of its group that it closed.
        """
        silent_from_ms = max(score_ms, arrived_ms, self.clock_ms) if self.sessions else score_ms
        self.clock_ms = max(self.clock_ms, score_ms, arrived_ms)
        group, sealed = event.group, []
        held = self.open.get(group)
        if held is not None and self._is_over(held, score_ms):
            sealed.append(self._close(group, self._reason(held)))
        elif held is not None and len(held.names.keys() | event.changed.keys()) > self.max_changed:
            sealed.append(self._close(group, "max_changed"))
        held = self.open.get(group)
        if held is None:
            held = self.open[group] = OpenGroup(event.offset, score_ms, event.offset, score_ms, silent_from_ms)
        stamp_ms = event.timestamp_ms if event.timestamp_ms >= 0 else score_ms
        held.last_offset, held.score_ms, held.silent_from_ms = event.offset, score_ms, silent_from_ms
        held.events += 1
        held.low_ms, held.high_ms = min(held.low_ms, stamp_ms), max(held.high_ms, stamp_ms)
        masked = isinstance(event.names, int)
        held.names |= event.changed if masked else {name: orjson.dumps(value) for name, value in event.changed.items()}
        if self.max_events and held.events >= self.max_events:
            sealed.append(self._close(group, "max_events"))
        return sealed

    def seal(self, clock_ms: int, *, quiet: bool = True, everything: bool = False, late_ms: int = 0) -> list[Sealed]:
        """Closes what is due, in the order of first offsets.

        Args:
            clock_ms: Partition clock.
            quiet: Whether silence closes groups now.
            everything: Close all of them, as ``flush``.
            late_ms: By how much record time is behind that of the clock.
        """
        self.clock_ms = max(self.clock_ms, clock_ms)
        hold_ms = self.hold_ms + late_ms
        sealed = []
        for group, held in sorted(self.open.items(), key=lambda item: item[1].first_offset):
            held_too_long = self.clock_ms >= held.opened_ms + hold_ms
            if everything:
                sealed.append(self._close(group, "flush"))
            elif held_too_long or (quiet and self.clock_ms > held.silent_from_ms + self.quiet_ms):
                reason = "max_hold" if not quiet or held.opened_ms + hold_ms <= held.silent_from_ms + self.quiet_ms else "quiet"
                sealed.append(self._close(group, reason))
        return sealed

    def next_due_ms(self) -> int | None:
        """When the next group is due by silence or hold at the earliest; None where no group is open."""
        times = (min(held.opened_ms + self.hold_ms, held.silent_from_ms + self.quiet_ms + 1) for held in self.open.values())
        return min(times, default=None)

    def _is_over(self, held: OpenGroup, score_ms: int) -> bool:
        return score_ms >= held.opened_ms + self.hold_ms or (self.sessions and score_ms > held.score_ms + self.quiet_ms)

    def _reason(self, held: OpenGroup) -> str:
        """Whichever bound was reached first; while merging, silence is no bound in the middle of a batch."""
        if not self.sessions:
            return "max_hold"
        return "max_hold" if held.opened_ms + self.hold_ms <= held.score_ms + self.quiet_ms else "quiet"

    def _close(self, group: bytes, reason: str) -> Sealed:
        held = self.open.pop(group)
        due_ms = {"max_hold": held.opened_ms + self.hold_ms, "quiet": held.score_ms + self.quiet_ms}.get(reason, self.clock_ms)
        return Sealed(
            group, held.first_offset, held.last_offset, held.events, held.low_ms, held.high_ms, reason, due_ms,
            self.partitions, held.names,
        )  # fmt: skip
