"""Broken variants of the start of folds and the end of groups, each with the schedules that detect it."""

from __future__ import annotations

from typing import Final

from tests.simulation.mutants import Change, Mutant
from tests.simulation.mutants_protocol import FOLD

BEGINNING = "folding.agents.claim:initial_position"

STARTS: Final = (
    Mutant(
        "earliest begins at the end",
        "Events from before the first worker are never folded.",
        ("", "lossy"),
        (Change(BEGINNING, "low = claim.log_bounds.begin", "low = claim.log_bounds.end"),),
    ),
    Mutant(
        "latest begins at the start",
        "Events from before the first worker are folded nevertheless.",
        ("latest", "lossy latest crash"),
        (Change(BEGINNING, "low = claim.log_bounds.end if claim.tp.partition < count else claim.log_bounds.begin", "pass"),),
    ),
)

HISTORY = ("history", "history fragile:fold crash")
OWNERS = ("lossy crash:3 rebalance:3", "history lossy crash zombie rebalance")
CLOSING = "shared/closing.lua"
SHARD_CLOCK = "folding.core.shard_clock"
CUTTER = "folding.core.chunks:ChunkCutter.next"

BACKLOG_STAYS_LATE: Final = Mutant(
    "the lateness of a backlog never decreases",
    "If producers have caught up since, silence depends on who reads when: groups close although their next events wait.",
    (),
    (Change(f"{SHARD_CLOCK}:_late_after", "return min(late_ms, max(0, time.cap_ms - record_clock_ms))", "return late_ms"),),
)
"""Schedules detect it too rarely: producers catch up once in each, and two successive owners must read a backlog at that time."""

LIMITS: Final = (
    Mutant(
        "a session ends after exactly the quiet period",
        "An event exactly one quiet period after the last one still belongs to the group.",
        HISTORY,
        (Change(CLOSING, "score > g.score - g.shorter + quiet_ms", "score >= g.score - g.shorter + quiet_ms"),),
    ),
    Mutant(
        "a run ends after exactly the quiet period",
        "Within a chunk, too, such an event still belongs to the group.",
        HISTORY,
        (Change(CUTTER, "last_score) > pause", "last_score) >= pause"), Change(CUTTER, "since > gap", "since >= gap")),
    ),
    Mutant(
        "a session continues after exactly the maximum hold",
        "A group that has been open for `max_hold` is due.",
        HISTORY,
        (Change(CLOSING, "return score >= g.opened + hold_ms or", "return score > g.opened + hold_ms or"),),
    ),
    Mutant(
        "the record clock is not stored for the next owner",
        "A late event restarts the time of sessions, so two successive owners disagree.",
        OWNERS,
        (Change(FOLD, "'record_clock', arg.record_clock, ", ""),),
    ),
    Mutant(
        "the record clock is zero after a claim",
        "The effect is the same as if the record clock was not stored.",
        OWNERS,
        (
            Change(
                "folding.shard.shard:Shard.claim",
                "take_over(claimed.clocks)",
                "take_over(claimed.clocks._replace(record_clock_ms=0))",
            ),
        ),
    ),
    Mutant(
        "the lateness of producers is ignored",
        "Every group of a producer whose clock is behind by `max_hold` closes at once.",
        ("behind",),
        (Change(f"{SHARD_CLOCK}:_late_after", "return max(0, time.arrived_ms - record_clock_ms)", "return 0"),),
    ),
    Mutant(
        "silence is counted from record time",
        "Every group of a producer whose clock is behind by the quiet period closes at once.",
        ("behind",),
        (Change(f"{SHARD_CLOCK}:ShardClock.silent_from_ms", "return max(arrived_ms, self.stored.clock_ms)", "return 0"),),
    ),
    Mutant(
        "a wrong clock of a worker is trusted",
        "It closes groups whose next events wait, and the next owner inherits a time far in the future.",
        ("clocks rebalance crash",),
        (
            Change(
                "delivery.clocks:TrustedClock._agrees",
                "return abs(self.skew_ms) <= SKEW_MS and abs(now.drift_ms - self._drift_ms) <= SKEW_MS",
                "return True",
            ),
        ),
    ),
    Mutant(
        "a closing event does not close its group",
        "A finished group stays open until silence or a bound closes it.",
        ("",),
        (Change(FOLD, "type(following) == 'string' and following)", "false)"),),
    ),
    Mutant(
        "a run continues after a closing event",
        "A record contains events that came after the end of its group.",
        ("history",),
        (Change("folding.core.detailed_chunks:DetailedChunkCutter._add", "run.closes or (", "("),),
    ),
    Mutant(
        "a later aggregate replaces an earlier one",
        "A sum contains only the events of the last range.",
        ("",),
        (Change("shared/names.lua", "value = combined(former, value)", "local unchanged"),),
    ),
    Mutant(
        "aggregates are written before the counters of their group",
        "A script that fails in between has added its range, and the next one adds it again.",
        ("lossy crash rebalance dying:fold", "lossy crash:2 zombie rebalance dying:fold"),
        (
            Change(
                FOLD,
                "write_fields(plan.key, fields, 1)",
                "write_fields(plan.key, fields, 3) call('HSET', plan.key, INFO, fields[2])",
            ),
        ),
    ),
    Mutant(
        "max_bytes does not limit the events of a group",
        "The record of a busy group is larger than Kafka accepts.",
        ("",),
        (Change(FOLD, "then most, too_much = arg.max_bytes", "then most, too_much = math.huge"),),
    ),
    Mutant(
        "the event of an early record is also folded",
        "The event is in two records.",
        ("",),
        (Change(FOLD, "r.events, r.names = 0, 0", ""),),
    ),
    Mutant(
        "an open group without events emits a record",
        "Each early record is followed by an empty one.",
        ("",),
        (Change("seal.lua", "elseif g.events == 0 then", "elseif false then"),),
    ),
    Mutant(
        "fold ignores the quiet period of a single event",
        "Sessions are longer than their events specify.",
        ("history",),
        (Change("shared/closing.lua", "score > g.score - g.shorter + quiet_ms", "score > g.score + quiet_ms"),),
    ),
    Mutant(
        "groups of a former definition are not emitted first",
        "Open groups are emitted under a definition by which they were not folded.",
        ("settings rebalance crash",),
        (
            Change("folding.agents.emitter:Emitter._adopt_definition", "await self.drain()", "pass"),
            Change("define.lua", "> 0 then return {'refused', 'not-drained'} end", "> 1e9 then return {} end"),
        ),
    ),
)
