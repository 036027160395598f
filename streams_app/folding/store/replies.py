"""The replies of the Lua scripts of shards, as :class:`.ShardStore` returns them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Final, NamedTuple

from streams_app.delivery import ranges
from streams_app.delivery.fingerprints import Fingerprint
from streams_app.folding.core.model import OpenGroup
from streams_app.folding.core.record import SealedGroup
from streams_app.folding.core.shard_clock import Clocks, RangeTime
from streams_app.folding.store.drop_request import DroppedGroup

RESYNC_CAUSES: Final = {
    "no-state": "Redis has lost its state",
    "token": "another worker has claimed the partition",
    "fence": "the fence in Redis is not the one this worker expects: Redis was rolled back, or a reply was lost",
    "range": "the range in progress is not in Redis: it was rolled back",
    "open-groups": "groups are open although the log has lost events",
    "not-drained": "groups are still open under the former definition",
    "detail": "Redis found a bound inside a run of events that was already cut at the bounds",
    "lost-reply": "a reply of Redis was lost, so its effect has to be read again",
    "released": "a reply of Redis was lost, so its effect has to be read again",
} | ranges.RESYNC_CAUSES
"""Texts that explain to operators why a partition is claimed again, by cause."""


@dataclass(slots=True)
class RangeInProgress:
    """A range of offsets that is partly folded: some of its groups are done.

    Attributes:
        to: Last offset of the range, where the fence is once the range is folded.
        cursor: Last group that was folded; all groups up to it, in the order of their bytes, are done.
        digest: Digest of its groups, see :func:`.digest_of`. By it, the next owner detects that it reads other events from the
            same records, because functions of the user or known schemas differ. Empty if this cannot happen with the fold.
    """

    to: int
    cursor: bytes
    time: RangeTime
    digest: bytes = b""


@dataclass(frozen=True, slots=True)
class ClaimReply:
    """The state of a shard that a claim has found in Redis, or created.

    Attributes:
        epoch: Four bytes that distinguish the groups of this state in Redis from leftovers of an older state.
        definition: Definition under which the stored groups were folded, as JSON.
        in_progress: The range of which only some groups are folded; None if there is none.
        lost: Number of offsets by which the broker has truncated the log so far.
        learned: What was learned of the quiet period, if that sets itself; otherwise empty.
    """

    created: bool
    fence: int
    clocks: Clocks
    epoch: bytes
    definition: str
    open_groups: int
    in_progress: RangeInProgress | None
    log: tuple[Fingerprint, ...] = ()
    lost: int = 0
    learned: bytes = b""


class OutboxEntry(NamedTuple):
    """An entry of the outbox: the records that one script has sealed.

    Attributes:
        first_offset: Lowest first offset of the records when the entry was added, which is its score; 0 if there are no records.
    """

    records: list[SealedGroup]
    first_offset: int

    def singles(self) -> list[OutboxEntry]:
        """Return an entry for each record."""
        return [OutboxEntry([record], record.first_offset) for record in self.records]


class FoldOutcome(Enum):
    """What one call of ``fold.lua`` has done, and whether to call it again."""

    DONE = "done"
    """The range is folded; the fence is at its end."""
    MORE = "more"
    """The groups up to the cursor are folded; the others need further calls."""
    ALREADY = "already"
    """Nothing was done, because an earlier call, whose reply was lost, has already folded the groups up to the cursor. If the
    cursor is empty, it has folded the whole range.
    """
    DETAIL = "detail"
    """Nothing was done, because bounds close some groups in the middle of a run, which must be split, or a run has duplicates."""
    FULL = "full"
    """Nothing was done, because the outbox is full and must be sent first."""


@dataclass(frozen=True, slots=True)
class FoldReply:
    """The reply of one call of ``fold.lua``.

    Attributes:
        cursor: Last group that was folded; empty if the whole range is folded. Also empty if this call has folded nothing, with the
            outcome ``DETAIL`` (a run must be split first) or ``FULL`` (the outbox must be sent first).
        clock_ms: Partition clock; 0 if the outcome is ``DETAIL`` or ``FULL``.
        entry: What this call has added to the outbox.
        work: Time that Redis needed for these groups, in microseconds, as estimated by the script.
        detail: The stored open group of each group whose runs must be split, by group key; None for a group that is not open.
        duplicates: Number of events that were left out, because their group had their id.
    """

    outcome: FoldOutcome
    cursor: bytes = b""
    clock_ms: int = 0
    entry: OutboxEntry = field(default_factory=lambda: OutboxEntry([], 0))
    taken: int = 0
    work: int = 0
    detail: Mapping[bytes, OpenGroup | None] = field(default_factory=dict)
    duplicates: int = 0

    @property
    def sealed(self) -> list[SealedGroup]:
        return self.entry.records


@dataclass(frozen=True, slots=True)
class SealedGroups:
    """The reply of ``seal.lua``: the sealed and dropped groups, and the state of the shard after the call.

    Attributes:
        more: Whether more groups are due, so that the script should be called again.
        outbox_entries: Number of entries of the outbox, see :class:`OutboxEntry`.
        oldest_score_ms: Time from which the longest quiet period of the fold has to pass until silence closes the first open group;
            None if no group is open. It is approximate if the script reached its limit.
        oldest_opened_ms: Score of the first event of the group that was opened first; None if no group is open.
        first_offset: Lowest first offset of the sealed groups.
    """

    clock_ms: int
    more: bool
    open_groups: int
    outbox_entries: int
    oldest_score_ms: int | None
    oldest_opened_ms: int | None
    sealed: list[SealedGroup]
    dropped: list[DroppedGroup] = field(default_factory=list)
    first_offset: int = 0

    def next_due_ms(self, quiet_ms: int, hold_ms: int) -> int | None:
        """Return the partition clock, in ms, at which the first open group is due without more events; None if no group is open."""
        if self.oldest_score_ms is None or self.oldest_opened_ms is None:
            return None
        return min(self.oldest_score_ms + quiet_ms, self.oldest_opened_ms + hold_ms)


class ForgetReply(NamedTuple):
    """What ``forget.lua`` has removed: open groups, the events in them, requests and answers of operators, and sealed records.

    Attributes:
        has_changed: Whether what was learned of the quiet period has changed since it was read; it was not replaced then.
    """

    groups: int
    events: int
    requests: int
    records: int
    has_changed: bool = False
