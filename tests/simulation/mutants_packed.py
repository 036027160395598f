"""Broken variants of packed groups, each with the schedules that detect it. Some schedules have older workers, see ``world.py``."""

from __future__ import annotations

from typing import Final

from tests.simulation.mutants import Change, Mutant
from tests.simulation.mutants_blocks import HAS_BLOCK
from tests.simulation.mutants_protocol import CLAIM, FOLD, SEAL

USUAL = ("", "history", "lossy crash rebalance")
DYING_SCRIPTS = (
    "history crash rebalance:2 dying:fold dying:seal dying:unpack",
    "crash:2 rebalance:2 dying:fold dying:seal dying:unpack",
)
CALM = ("", "history", "crash rebalance")
UNPACK = "unpack.lua"
LEAVES = "if not plan.is_packed and (plan.was_packed or plan.opens) then"
NAMES = "shared/names.lua"

PACKED: Final = (
    Mutant(
        "a packed group that has grown stays packed, too",
        "The packed group counts, and what the hash has in addition is lost.",
        USUAL,
        (Change(FOLD, LEAVES, "if not plan.is_packed and not g then"),),
    ),
    Mutant(
        "fold does not remove a packed group that closes",
        "Nothing reads it any more, and the shard never becomes readable for older versions.",
        USUAL,
        (Change(FOLD, LEAVES, "if not plan.is_packed and g and plan.was_packed then"),),
    ),
    Mutant(
        "seal does not remove packed groups",
        "Nothing reads them any more, and the shard never becomes readable for older versions.",
        USUAL,
        (Change(SEAL, "in_pages('HDEL', open, gone_packed)", "local unchanged"),),
    ),
    Mutant(
        "names of a run that a packed group lacks are dropped",
        "The record has only the names of the first run.",
        USUAL,
        (Change(NAMES, "elseif run.names ~= plan.packed then", "elseif false then"),),
    ),
    Mutant(
        "names of a packed group that were read are replaced by those of a run",
        "The record lacks names, but only if the counter of names was near its bound.",
        USUAL,
        (Change(NAMES, "if aggregates or plan.names or not run.names then", "if aggregates or not run.names then"),),
    ),
    Mutant(
        "the names of a run are joined as in another group",
        "The record has the names of another group.",
        USUAL,
        (
            Change(NAMES, "local of_group = joined[packed] or {}", "local of_group = joined[1] or {}"),
            Change(NAMES, "joined[packed] = of_group", "joined[1] = of_group"),
        ),
    ),
    Mutant(
        "a packed group whose names stay the same is not written",
        "Its numbers change with each event: the record lacks the last ones.",
        USUAL,
        (Change(FOLD, "if plan.is_changed then write_packed(plan, g) end", "if plan.names then write_packed(plan, g) end"),),
    ),
    Mutant(
        "the counter of names of a packed group is that of its first run",
        "The bound on names does not close the group.",
        USUAL,
        (
            Change(NAMES, "plan.open.names = plan.count", "local unchanged"),
            Change(NAMES, "plan.packed, plan.open.names = joined_with(", "plan.packed = joined_with("),
        ),
    ),
    Mutant(
        "an entry of several records resets the format of packed groups",
        "No script reads them any longer, and their events are lost.",
        USUAL,
        (Change("shared/records.lua", HAS_BLOCK, "if count > 1 and state.format ~= BLOCKS then"),),
    ),
    Mutant(
        "the format is removed while groups are packed",
        "No script reads them any longer, and their events are lost.",
        USUAL,
        (
            Change(
                "shared/shard.lua",
                "if not state.format or call('EXISTS', open) == 1 then return end",
                "if not state.format then return end",
            ),
        ),
    ),
    Mutant(
        "the format is written after the packed groups",
        "If the script fails in between, a worker of an older version takes them for remains, and loses their events.",
        DYING_SCRIPTS,
        (
            Change(FOLD, "if to_open[1] then use_packed_format() end", "local unchanged"),
            Change(
                FOLD,
                "in_pages('HSET', open, to_open)",
                "in_pages('HSET', open, to_open)\nif to_open[1] then use_packed_format() end",
            ),
        ),
    ),
    Mutant(
        "versions without format numbers claim a shard with packed groups",
        "They take the groups for remains of an older state, and their events are lost.",
        USUAL,
        (
            Change(
                "shared/shard.lua",
                "call('HSET', meta, 'format', PACKED, 'lost', offsets_lost() .. TOO_OLD)",
                "call('HSET', meta, 'format', PACKED)",
            ),
        ),
    ),
    Mutant(
        "unpack removes packed groups before it has written their hashes",
        "A script that fails in between loses a group.",
        DYING_SCRIPTS,
        (
            Change(
                UNPACK,
                "local fields = {INFO, packed_of(g, state.epoch)}",
                "call('HDEL', open, group)\nlocal fields = {INFO, packed_of(g, state.epoch)}",
            ),
        ),
    ),
    Mutant(
        "unpack writes no names",
        "The record of the group lacks all names from before.",
        USUAL,
        (Change(UNPACK, "for name, value in pairs(unpacked(packed_names)) do", "for name, value in pairs({}) do"),),
    ),
    Mutant(
        "unpack keeps the hash that it finds",
        "A script that failed half-way has left it: the packed group has events that the hash lacks.",
        DYING_SCRIPTS,
        (
            Change(
                UNPACK,
                "call('HSET', key, unpack(fields))",
                "if call('EXISTS', key) == 0 then call('HSET', key, unpack(fields)) end",
            ),
            Change(UNPACK, "call('DEL', key)", "local unchanged --"),
        ),
    ),
    Mutant(
        "groups are packed while older workers run",
        "An older worker may get the partition at any time, and cannot read them.",
        USUAL,
        (Change("folding.shard.shard:Shard.fold_once", "may_pack=not singly", "may_pack=True"),),
    ),
    Mutant(
        "packed groups stay packed when an older worker is found",
        "It may get the partition at any time, and cannot read them.",
        ("", "history", "rebalance"),
        (Change("folding.shard.shard:Shard.store_singly", "await self.store.unpack(self.token)", "pass"),),
    ),
    Mutant(
        "fold does not compare the first offset of a group",
        "A script that failed half-way has left a group that opened later; its events count as folded, and are in no record.",
        DYING_SCRIPTS,
        (Change(FOLD, "if g and g.first == opened_at then", "if g then"),),
    ),
    Mutant(
        "a new state keeps the packed groups of a lost one",
        "They have no format, so an older version claims the shard; and nothing removes them.",
        ("lossy wipe:6", "wipe:6 crash:2 rebalance:2"),
        (Change(CLAIM, "call('UNLINK', due, first, outbox, open, timers)", "call('UNLINK', due, first, outbox)"),),
    ),
    Mutant(
        "seal does not read the timers of packed groups",
        "They stay open until max hold.",
        CALM,
        (Change(SEAL, "    each_timer(till)", "    local unchanged"),),
    ),
    Mutant(
        "timers of a batch that have not passed are dropped",
        "Their groups stay open until max hold.",
        CALM,
        (Change(SEAL, "due_clock and passed or to_timers", "due_clock and passed or {}"),),
    ),
    Mutant(
        "an early timer of a packed group is not set again",
        "The group stays open until max hold.",
        CALM,
        (Change(SEAL, "to_timers[#to_timers + 1] = {g.silent - g.shorter, g.first}", "local unchanged"),),
    ),
    Mutant(
        "a group that becomes a hash has only its timer of a packed group",
        "It stays open until max hold.",
        CALM,
        (
            Change(
                FOLD, "elseif timer < plan.timer or plan.was_packed and not plan.is_packed then", "elseif timer < plan.timer then"
            ),
        ),
    ),
    Mutant(
        "an unpacked group has no timer",
        "It stays open until max hold.",
        CALM,
        (Change(UNPACK, "call('ZADD', due, g.silent - g.shorter, group)", "local unchanged"),),
    ),
    Mutant(
        "the repetition of a failed script does not set the timers of its groups",
        "The script has failed after it had written a hash, and before it wrote an earlier timer.",
        ("dying:fold", "dying:fold rebalance"),
        (Change(FOLD, "plan.timer = math.huge", "local unchanged"),),
    ),
)

REMAINS: Final = (
    Mutant(
        "a group that opens as a hash keeps its packed form",
        "A script that failed half-way has left it. It counts, and what the hash has in addition is lost.",
        (),
        (
            Change(FOLD, "if state.format == PACKED then not_packed", "if state.format == PACKED and not is_new then not_packed"),
            Change(FOLD, "local function drops_packed(group)", "local function drops_packed(group, is_new)"),
            Change(FOLD, "    drops_packed(group)", "    drops_packed(group, true)"),
            Change(FOLD, f"{LEAVES} drops_packed(plan.group) end", f"{LEAVES} drops_packed(plan.group, not plan.was_packed) end"),
        ),
    ),
    Mutant(
        "fold closes a packed group and keeps the hash that a failed script has left",
        "If the script fails after it has removed the packed group, the hash counts, which has less of the group.",
        (),
        (Change(FOLD, "unlink(left)", "local unchanged"),),
    ),
    Mutant(
        "seal closes a packed group and keeps the hash that a failed script has left",
        "If the script fails after it has removed the packed group, the hash counts, which has less of the group.",
        (),
        (
            Change(
                SEAL,
                "gone_keys[#gone_keys + 1] = prefix .. group --",
                "if not packed then gone_keys[#gone_keys + 1] = prefix .. group end --",
            ),
        ),
    ),
)
"""Schedules detect them too rarely: two scripts must fail half-way for one group, or it must open in the other form after one.

The tests of the scripts fail with them."""

UNCHANGED_BATCH: Final = (
    Mutant(
        "a batch of timers that is written again as it was is removed",
        "Its groups stay open until max hold.",
        (),
        (Change("shared/timers.lua", "if not batches[batch] then", "if batch then"),),
    ),
)
"""Schedules detect it too rarely: a seal must visit a batch and keep all of its groups. The test of the script fails with it."""
