"""The replies of the scripts, see :mod:`streams_app.folding.store.shard_store`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Final

from streams_app.delivery import ranges
from streams_app.delivery.fingerprints import Fingerprint
from streams_app.folding.core.model import OpenGroup
from streams_app.folding.core.record import Sealed
from streams_app.folding.core.shard_clock import Clocks, RangeTime

CAUSES: Final = {
    "no-state": "Redis has lost its state",
    "token": "another worker has claimed the partition",
    "fence": "the fence in Redis is not the one this worker expects: Redis was rolled back, or a reply was lost",
    "range": "the range in progress is not in Redis: it was rolled back",
    "open-groups": "groups are open although the log has lost events",
    "not-drained": "groups are still open under the former definition",
    "detail": "Redis found a bound inside a run of events that was already cut at the bounds",
    "lost-reply": "a reply of Redis was lost, so its effect has to be read again",
    "released": "a reply of Redis was lost, so its effect has to be read again",
} | ranges.CAUSES
"""Why a partition is claimed again, for people."""


@dataclass(slots=True)
class RangeInProgress:
    """A range of which some groups are folded.

    Attributes:
        to: Its end: the fence once it is folded.
        cursor: Member of the last group taken; groups up to it in the order of bytes are done.
        time: The time with which the scores of its events are made.
        digest: Which events its groups have, where functions of the user say that: they may say something else to the next owner.
            Empty: fields of the events say it.
    """

    to: int
    cursor: bytes
    time: RangeTime
    digest: bytes = b""


@dataclass(frozen=True, slots=True)
class ClaimReply:
    """What a claim found or created."""

    created: bool
    fence: int
    clocks: Clocks
    epoch: bytes
    definition: str
    open_groups: int
    outbox_records: int
    in_progress: RangeInProgress | None
    log: tuple[Fingerprint, ...] = ()
    lost: int = 0


class FoldOutcome(Enum):
    """What became of a call of the script that folds."""

    DONE = "done"
    """The range is folded, the fence is at its end."""
    MORE = "more"
    """The groups up to the cursor are folded."""
    ALREADY = "already"
    """Nothing was done: the reply of a script was lost, which got as far as the cursor says; an empty one: to the end."""
    DETAIL = "detail"
    """Nothing was done: bounds fall inside the runs of some groups, which are to be taken apart there."""
    FULL = "full"
    """Nothing was done: the outbox is to be sent first."""


@dataclass(frozen=True, slots=True)
class FoldReply:
    """The reply of one script.

    Attributes:
        outcome: What became of it.
        cursor: Member of the last group taken; empty: the range is folded.
        clock_ms: Partition clock.
        sealed: What went into the outbox, in the order of first offsets.
        taken: Groups.
        work: Microseconds of Redis, as the script reckons them.
        detail: Groups whose runs are to be taken apart, each as it is stored; None: it is not open.
    """

    outcome: FoldOutcome
    cursor: bytes = b""
    clock_ms: int = 0
    sealed: list[Sealed] = field(default_factory=list)
    taken: int = 0
    work: int = 0
    detail: Mapping[bytes, OpenGroup | None] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class SealedGroups:
    """What a seal did; times in ms, None where no group is open."""

    clock_ms: int
    more: bool
    open_groups: int
    outbox_records: int
    oldest_score_ms: int | None
    oldest_opened_ms: int | None
    sealed: list[Sealed]

    def next_due_ms(self, quiet_ms: int, hold_ms: int) -> int | None:
        """When the first of the open groups is due, by what was folded until then; None where no group is open."""
        if self.oldest_score_ms is None or self.oldest_opened_ms is None:
            return None
        return min(self.oldest_score_ms + quiet_ms, self.oldest_opened_ms + hold_ms)
