"""What the scripts say, see :mod:`streams_app.folding.store.shard_store`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, NamedTuple

from streams_app.delivery import ranges
from streams_app.folding.core.record import Sealed


class RefusedError(Exception):
    """A script did not find the marks it was called with; nothing was written.

    Attributes:
        script: Which one.
        cause: ``no-state``, ``token``, ``fence``, ``staged``, ``open-groups`` or ``not-drained``.
    """

    def __init__(self, script: str, cause: str) -> None:
        super().__init__(f"{script} refused: {cause}")
        self.script = script
        self.cause = cause


CAUSES: Final = {
    "no-state": "Redis has lost its state",
    "token": "another worker has claimed it",
    "fence": "Redis does not stand where this worker had folded to; it was rolled back, or a reply was lost",
    "staged": "Redis has lost a part of the range that is being folded",
    "open-groups": "groups are open where retention has removed events",
    "not-drained": "groups are open under the former definition",
    "detail": "Redis asks for the same events again",
    "lost-reply": "a reply of Redis was lost, and what it did is to be read again",
    "released": "a reply of Redis was lost, and what it did is to be read again",
} | ranges.CAUSES
"""Why a partition is claimed again, for people."""


class OutboxFullError(Exception):
    """Nothing is folded until the outbox has been sent; nothing was written."""


class StagingNeededError(Exception):
    """Groups end that have too many names for one script; nothing was written."""


class DetailNeededError(Exception):
    """Bounds fall inside runs of some groups; nothing was written.

    Attributes:
        groups: Members of those groups.
    """

    def __init__(self, groups: frozenset[bytes]) -> None:
        super().__init__(f"{len(groups)} groups need one run an event")
        self.groups = groups


@dataclass(frozen=True, slots=True)
class Claimed:
    """What a claim found or created; times in ms."""

    created: bool
    fence: int
    clock_ms: int
    record_clock_ms: int
    definition: str
    open_groups: int
    outbox_records: int
    epoch: bytes
    late_ms: int


@dataclass(frozen=True, slots=True)
class Folded:
    """What a fold did.

    Attributes:
        repeated: The range had been folded by this owner before, and the reply was lost.
        clock_ms: Partition clock afterwards.
        sealed: Entries that bounds or gaps put into the outbox; without those that were staged.
        held: Groups that ended or were otherwise looked at one by one.
    """

    repeated: bool
    clock_ms: int
    sealed: list[Sealed]
    held: int = 0


class FoldStep(NamedTuple):
    """What folding one chunk did."""

    events: int
    sealed: int


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
