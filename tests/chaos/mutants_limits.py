"""The broken variants of where folds begin and of when groups end, each with the schedules that show it."""

from __future__ import annotations

from typing import Final

from tests.chaos.mutants import Change, Mutant
from tests.chaos.mutants_protocol import FOLD

BEGINNING = "folding.agents.claiming:beginning_of"

STARTS: Final = (
    Mutant(
        "earliest begins at the end",
        "What was in the log before the first worker is never folded.",
        ("", "lossy"),
        (Change(BEGINNING, "low = claim.edges.begin", "low = claim.edges.end"),),
    ),
    Mutant(
        "latest begins at the start",
        "What was in the log before the first worker is folded all the same.",
        ("latest", "lossy latest crash"),
        (Change(BEGINNING, "low = claim.edges.end if claim.tp.partition < count else claim.edges.begin", "pass"),),
    ),
)

HISTORY = ("history", "history fragile:stage fragile:fold crash")
OWNERS = ("lossy crash:3 rebalance:3", "history lossy crash zombie rebalance")
JOINING = "joining.lua"
LATE = "folding.core.partition_clock:late_after_ms"

LIMITS: Final = (
    Mutant(
        "a session ends at exactly X where the next one is in another chunk",
        "An event exactly X after the last one still belongs to the group.",
        HISTORY,
        (Change(JOINING, "return at_ms > score + quiet_ms or", "return at_ms >= score + quiet_ms or"),),
    ),
    Mutant(
        "a session ends at exactly X where bounds are looked at",
        "As everywhere else.",
        HISTORY,
        (Change(FOLD, "quiet_ms and first_score > o.score + quiet_ms", "quiet_ms and first_score >= o.score + quiet_ms"),),
    ),
    Mutant(
        "a run ends at exactly X",
        "As between chunks.",
        HISTORY,
        (Change("folding.core.chunks:chunks_of", "clock - runs[-1].last_score > gap", "clock - runs[-1].last_score >= gap"),),
    ),
    Mutant(
        "a session goes on at exactly M",
        "A group that has been open for M is due.",
        HISTORY,
        (
            Change(JOINING, "or at_ms >= i[4] + hold_ms end", "or at_ms > i[4] + hold_ms end"),
            Change(FOLD, "first_score >= o.opened + hold_ms or", "first_score > o.opened + hold_ms or"),
        ),
    ),
    Mutant(
        "record clock not kept for the next owner",
        "A late event begins the time of sessions anew: two owners in turn do not agree.",
        OWNERS,
        (Change(FOLD, "'record_clock', record_clock, ", ""),),
    ),
    Mutant(
        "record clock is zero after a claim",
        "As if it was not kept.",
        OWNERS,
        (Change("folding.shard.shard:Shard.claim", "self.record_clock_ms = claimed.record_clock_ms", "self.record_clock_ms = 0"),),
    ),
    Mutant(
        "lateness of producers dropped",
        "Every group of a producer whose clock is behind by M is closed at once.",
        ("behind",),
        (Change(LATE, "return max(0, arrived_ms - record_clock_ms)", "return 0"),),
    ),
    Mutant(
        "silence counted from record time",
        "Every group of a producer whose clock is behind by X is closed at once.",
        ("behind",),
        (Change(FOLD, "math.max(arrived or 0, tonumber(state[3] or '0')) or 0", "0"),),
    ),
    Mutant(
        "lateness of a backlog stays what it was",
        "Where producers have caught up since, silence is counted by who reads when: groups close whose next events wait.",
        ("history lossy crash zombie rebalance",),
        (Change(LATE, "return min(late_ms, max(0, now_ms - record_clock_ms))", "return late_ms"),),
    ),
    Mutant(
        "a wrong clock of a worker is trusted",
        "Groups are closed by it whose next events wait, and the next owner inherits a time that never comes.",
        ("clocks rebalance crash",),
        (
            Change(
                "delivery.trusted_clock:TrustedClock._agrees",
                "return abs(self.skew_ms) <= SKEW_MS and abs(now.drift_ms - self._drift_ms) <= SKEW_MS",
                "return True",
            ),
        ),
    ),
    Mutant(
        "groups of a former definition are not emitted first",
        "What is open is told by a definition it was not folded by.",
        ("settings rebalance crash",),
        (
            Change("folding.agents.emission:Emitter._adopt_definition", "await self.drain()", "pass"),
            Change("define.lua", "> 0 then return {'refused', 'not-drained'} end", "> 1e9 then return {} end"),
        ),
    ),
)
