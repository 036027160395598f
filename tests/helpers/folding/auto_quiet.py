"""A fold whose quiet period sets itself, and events for which its default is too short."""

from __future__ import annotations

from streams_app.fold import Fold
from streams_app.folding.core.auto_quiet import AutoQuietGoal
from streams_app.folding.core.event import DetailedEvent

AUTO_FOLD = Fold(
    name="f", source="t", group_key="a", changed="m",
    quiet_period={"auto": "knee", "at_least": "10s", "default": "1m", "at_most": "30m"},
)  # fmt: skip
AUTO_GOAL = AutoQuietGoal(10_000, 1_800_000, 60_000)

GROUPS = 300
GAP_MS = 100_000
"""Time between two events of a group."""


def regular_events(from_ms: int, to_ms: int) -> list[DetailedEvent]:
    """Return events of :data:`GROUPS` groups in turn, one every third of a second; each group has one every :data:`GAP_MS`."""
    step_ms = GAP_MS // GROUPS
    first, last = -(-from_ms // step_ms), -(-to_ms // step_ms)
    return [DetailedEvent(at - first, at * step_ms, b"sg%d" % (at % GROUPS), {"u": None}) for at in range(first, last)]
