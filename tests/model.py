"""A fold as a dict, one event at a time: what scripts and batches must agree with."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass
class OpenGroup:
    first: int
    opened: int
    last: int = -1
    score: int = 0
    events: int = 0
    low: int = 2**60
    high: int = -1
    names: dict[str, Any] = field(default_factory=dict)


@dataclass
class Model:
    quiet: int
    hold: int
    max_events: int = 0
    max_changed: int = 10_000
    sessions: bool = False
    clock: int = 0
    open: dict[bytes, OpenGroup] = field(default_factory=dict)
    sealed: list[tuple[Any, ...]] = field(default_factory=list)

    def fold(self, offset: int, stamp: int, group: bytes, names: dict[str, Any]) -> None:
        self.clock = max(self.clock, stamp)
        held = self.open.get(group)
        if held and (self.clock - held.opened >= self.hold or (self.sessions and self.clock - held.score > self.quiet)):
            self.close(group, self.reason(held))
        held = self.open.get(group)
        if held and len(held.names | names) > self.max_changed:
            self.close(group, "max_changed")
        held = self.open.setdefault(group, OpenGroup(offset, self.clock))
        held.last, held.score, held.events = offset, self.clock, held.events + 1
        held.low, held.high = min(held.low, stamp), max(held.high, stamp)
        held.names |= names
        if self.max_events and held.events >= self.max_events:
            self.close(group, "max_events")

    def reason(self, held: OpenGroup) -> str:
        """Whichever bound was reached first; while merging, silence is no bound in the middle of a batch."""
        if not self.sessions:
            return "max_hold"
        return "max_hold" if held.opened + self.hold <= held.score + self.quiet else "quiet"

    def close(self, group: bytes, reason: str) -> None:
        held = self.open.pop(group)
        self.sealed.append((group, held.first, held.last, held.events, held.low, held.high, reason, dict(held.names)))

    def seal(self, clock: int) -> None:
        self.clock = max(self.clock, clock)
        for group, held in sorted(self.open.items(), key=lambda item: item[1].first):
            hold_due, quiet_due = held.opened + self.hold, held.score + self.quiet
            if self.clock >= hold_due or self.clock > quiet_due:
                self.close(group, "max_hold" if hold_due <= quiet_due else "quiet")
