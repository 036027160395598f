"""Broken variants of the range cursor, each with the schedules that detect it."""

from __future__ import annotations

from typing import Final

from tests.simulation.mutants import Change, Mutant
from tests.simulation.mutants_protocol import FOLD

SHARD = "folding.shard.shard:Shard"
CUTTING = "folding.shard.range_progress:chunks_of"
CLAIM = "folding.store.shard_store:ShardStore.claim"
PROGRESS = "folding.shard.range_progress:ChunkProgress"
IN_PROGRESS = "RangeInProgress(int(to), cursor, _range_time(cap, arrived, quiet), digest) if to else None"

CRASHES = ("history lossy crash:3 zombie rebalance:3", "lossy:2 crash:3 rebalance:3")
LOST_REPLIES = ("history fragile:fold crash", "history fragile:fold rebalance:3")
BACK = ("history rollback:3 rebalance:2", "lossy rollback:3 crash")
QUIET = "folding.shard.quiet_period:ShardQuietPeriod.begin"
AUTO_OWNERS = ("auto history lossy crash:3 zombie rebalance:3", "auto lossy:2 crash:3 rebalance:3")
OWNERS = ("history crash:3 rebalance:4", "history lossy crash:2 rebalance:3", "lossy crash:3 rebalance:3")
RETENTION = ("history lossy retention:3 crash:3", "history retention:4 crash:3 rebalance:2")

CURSOR: Final = (
    Mutant(
        "the fence moves with the first script of a range",
        "Groups that the first script did not fold are never folded.",
        CRASHES,
        (Change(FOLD, "local is_done, cursor, clock = arg.is_last and taken == count,", "local is_done, cursor, clock = true,"),),
    ),
    Mutant(
        "the cursor is not compared",
        "A delayed script, or a worker that lost a reply, folds a group twice.",
        (*LOST_REPLIES, *BACK),
        (Change(FOLD, "if (state.cursor or '') ~= arg.cursor then", "if false then"),),
    ),
    Mutant(
        "a cursor that went back counts as a lost reply",
        "After a rollback of Redis, the groups between the two cursors are never folded.",
        ("rollback:6", "history rollback:4 fragile:fold", *BACK),
        (
            Change(f"{PROGRESS}.advance_to", "if cursor < self.cursor:", "if False:"),
            Change(
                f"{PROGRESS}.advance_to",
                "self._at = bisect_right(self._members, cursor)",
                "self._at = max(self._at, bisect_right(self._members, cursor))",
            ),
            Change(FOLD, "if (state.cursor or '') ~= arg.cursor then", "if state.cursor and arg.cursor == '' then"),
        ),
    ),
    Mutant(
        "a claim does not return the range in progress",
        "The next owner folds groups of the range twice, or ends the range at another offset.",
        OWNERS,
        (
            Change(CLAIM, IN_PROGRESS, "None"),
            Change(FOLD, "if state.to and state.to ~= arg.to", "if false and state.to"),
            Change(FOLD, "if (state.cursor or '') ~= arg.cursor then", "if false then"),
        ),
    ),
    Mutant(
        "a range in progress ends at another offset",
        "Groups that are already folded miss the events beyond the former end, or contain them twice.",
        OWNERS,
        (
            Change(CUTTING, "if begun is not None:", "if False:"),
            Change(f"{SHARD}.waits_for", "return self.in_progress is not None and end < self.in_progress.to", "return False"),
            Change(FOLD, "if state.to and state.to ~= arg.to", "if false and state.to"),
        ),
    ),
    Mutant(
        "groups at or below the cursor are folded again",
        "The next owner folds the groups that the former owner has already folded.",
        OWNERS,
        (Change(f"{PROGRESS}.__init__", "self._at = bisect_right(self._members, cursor)", "self._at = 0"),),
    ),
    Mutant(
        "the record clock is written with each script",
        "The next owner begins the range at a later time, so events get other scores.",
        OWNERS,
        (Change(FOLD, "call('HSET', meta, 'to', arg.to,", "call('HSET', meta, 'record_clock', arg.record_clock, 'to', arg.to,"),),
    ),
    Mutant(
        "the partition clock is written with each script",
        "The next owner begins the range at a later time, so events get other scores.",
        OWNERS,
        (Change(FOLD, "call('HSET', meta, 'to', arg.to,", "call('HSET', meta, 'clock', arg.clock, 'to', arg.to,"),),
    ),
    Mutant(
        "the time of a range depends on its owner",
        "Two owners give an event different scores.",
        OWNERS,
        (Change(CLAIM, IN_PROGRESS, "RangeInProgress(int(to), cursor, RangeTime(int(cap) + 3_000, None)) if to else None"),),
    ),
    Mutant(
        "a range in progress does not store its quiet period",
        "The next owner folds the other groups of the range with another quiet period.",
        AUTO_OWNERS,
        (Change(FOLD, "if arg.quiet ~= '' then call('HSET', meta, 'quiet', arg.quiet) end", ""),),
    ),
    Mutant(
        "the quiet period is that of the owner",
        "The next owner folds the other groups of the range with another quiet period.",
        AUTO_OWNERS,
        (
            Change(
                QUIET,
                "self._range = time if time.quiet_ms else time._replace(quiet_ms=self.quiet_ms)",
                "self._range = time._replace(quiet_ms=self.quiet_ms)",
            ),
        ),
    ),
    Mutant(
        "skipped groups do not advance the clock of a range",
        "The running maximum must include all events of the range, or the other events get other scores.",
        OWNERS,
        (Change(CUTTING, "listed = list(events)", "listed = [event for event in events if event[2] > begun.cursor]"),),
    ),
    Mutant(
        "a partly lost range in progress is dropped",
        "Groups that are already folded are folded twice.",
        RETENTION,
        (
            Change("skip.lua", "if state.to and tonumber(state.to) <= tonumber(arg.to) then", "if state.to then"),
            Change(f"{SHARD}.skip_to", "if self.in_progress is not None and self.in_progress.to <= fence:", "if True:"),
        ),
    ),
)
