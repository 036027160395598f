"""Broken variants of the delivery protocol, each with the schedules that detect it."""

from __future__ import annotations

from typing import Final

from tests.simulation.mutants import Change, Mutant

FOLD, SEAL, FINISH = "fold.lua", "seal.lua", "finish.lua"
WATERMARK, CLAIM = "watermark.lua", "claim.lua"
CHECK, ADOPTS_TOKEN = "local refused = refusal()", "arg.token = state.token"
IS_DONE = "if state.fence and state.token == arg.token"
FOLD_ONCE = "folding.agents.processor:FoldProcessor.fold_once"
DELIVER = "delivery.ranges:Ranges.deliver"
CHAIN_RULE = "if any(batch.begin > served.next for served in self.served.values()):"
RAISED = "delivery.offset_metadata:raised"

ACCEPTS_OLD_FETCHES = Change(DELIVER, "if batch.seek_number != self.seek_number:", "if False:")
IDLE_READER_NOT_CHECKED = Change(
    "delivery.ranges:Ranges.check", "if is_ahead and not self.in_flight and monotonic_ms - self.progress_ms > IDLE_MS:", "if False:"
)
INCLUDES_EVENT_AT_FENCE = Change("delivery.batch:Batch.since", "self.records, offset, key=", "self.records, offset - 1, key=")
COMMITS_HIGHEST_POSITION = Change(
    "delivery.offset_metadata:commit_of", "PartitionCommit(min(offsets.values())", "PartitionCommit(max(offsets.values())"
)

ROLLBACK = ("rollback:3", "lossy rollback:2")
DROPS = ("lossy drops:3 rebalance:2",)
LOSSY = ("lossy:2 crash:2", "lossy:2 crash zombie rebalance")
ZOMBIE = ("lossy crash zombie:3 rebalance",)
WIPE = ("lossy wipe:6",)
FOLDSET = ("lossy crash:2 zombie rebalance:2 foldset wipe:2",)

FENCES_AND_RANGES: Final = (
    Mutant(
        "no fence check in fold",
        "If Redis is restored with an older fence, the owner continues, and the events in between are never read again.",
        ROLLBACK,
        (Change(FOLD, CHECK, f"arg.fence = nil\n{CHECK}"),),
    ),
    Mutant(
        "no fence check in seal",
        "An idle partition never notices that Redis was rolled back.",
        ("late rollback", *ROLLBACK),
        (Change(SEAL, CHECK, f"arg.fence = nil\n{CHECK}"),),
    ),
    Mutant(
        "no token check in fold",
        "A former owner folds into a shard that another one has claimed.",
        ZOMBIE,
        (Change(FOLD, IS_DONE, f"{ADOPTS_TOKEN}\n{IS_DONE}"),),
    ),
    Mutant(
        "no token check in seal",
        "The current owner does not know what a former owner seals, and it stays in the outbox.",
        ZOMBIE,
        (Change(SEAL, CHECK, f"{ADOPTS_TOKEN}\n{CHECK}"),),
    ),
    Mutant(
        "no token check in finish",
        "A former owner removes outbox entries that the current one may have to send with another last offset.",
        ZOMBIE,
        (Change(FINISH, CHECK, f"{ADOPTS_TOKEN}\n{CHECK}"),),
    ),
    Mutant(
        "a claim keeps the former token",
        "Two owners write to one shard in turn.",
        ZOMBIE,
        (Change(CLAIM, "if state.fence and state.epoch then", "if state.fence and state.epoch then arg.token = state.token"),),
    ),
    Mutant(
        "no chain rule",
        "A rebalance dropped a range with the buffers, and folding the next range moves the fence over the gap.",
        DROPS,
        (Change(DELIVER, CHAIN_RULE, "if False:"),),
    ),
    Mutant(
        "a range begins at its first record",
        "If the chain is checked against records instead of ranges, dropped records before the first one go unnoticed.",
        DROPS,
        (
            Change(
                DELIVER,
                CHAIN_RULE,
                "at = batch.records[0].offset if batch.records else batch.begin\n"
                "if any(batch.begin > served.next >= at for served in self.served.values()):",
            ),
        ),
    ),
    Mutant(
        "the fence moves only to the last record",
        "Offsets without a record at the end of a range are a gap for the next one: every transaction marker causes a claim.",
        ("",),
        (
            Change(
                FOLD_ONCE, "self.shard, batch.end - 1", "self.shard, batch.records[-1].offset if batch.records else batch.end - 1"
            ),
        ),
    ),
    Mutant(
        "an idle reader is not checked",
        "The last range before a silence was dropped, and no later range reveals the gap.",
        ("drops:9", "lossy drops:6"),
        (IDLE_READER_NOT_CHECKED,),
    ),
    Mutant(
        "an overlapping range includes the event at the fence",
        "If one reader serves several folds, the event at the fence is folded twice.",
        ("lossy crash:2 rebalance:2 foldset", "lossy:2 rebalance:3"),
        (INCLUDES_EVENT_AT_FENCE,),
    ),
)

COMMITS: Final = (
    Mutant(
        "the position is committed instead of the watermark",
        "The committed offset passes events that are only in Redis.",
        ("lossy", *WIPE),
        (
            Change(
                "folding.agents.processor:FoldProcessor.position_to_commit",
                "await self.shard.store.watermark()",
                "self.shard.fence + 1",
            ),
        ),
    ),
    Mutant(
        "the watermark ignores the outbox",
        "The commit passes sealed records that are not acknowledged.",
        ("lossy",),
        (Change(WATERMARK, "ipairs({first, outbox})", "ipairs({first})"),),
    ),
    Mutant(
        "the watermark ignores open groups",
        "The commit passes the events of open groups.",
        ("lossy",),
        (Change(WATERMARK, "ipairs({first, outbox})", "ipairs({outbox})"),),
    ),
    Mutant(
        "the watermark is read in several commands",
        "If Redis is wiped between fence and open groups, only the fence is committed.",
        ("wipe:15", *WIPE),
        (
            Change(
                "folding.store.shard_store:ShardStore.watermark",
                'reply = await self._call("watermark")',
                "keys = self.keys\n"
                'reply = fence = await self.redis.hget(keys.meta, "fence")\n'
                "if fence is not None:\n"
                "    reply = min([int(fence) + 1, *await self.redis.lowest(keys.first), *await self.redis.lowest(keys.outbox)])",
            ),
        ),
    ),
    Mutant(
        "the watermark is read in several commands, outbox first",
        "A group that is sealed between two reads is in neither.",
        ("lossy", ""),
        (
            Change(
                "folding.store.shard_store:ShardStore.watermark",
                'reply = await self._call("watermark")',
                "keys = self.keys\n"
                'sent = await self.redis.lowest(keys.outbox)\nreply = fence = await self.redis.hget(keys.meta, "fence")\n'
                "if fence is not None:\n    reply = min([int(fence) + 1, *sent, *await self.redis.lowest(keys.first)])",
            ),
        ),
    ),
    Mutant(
        "positions of unknown folds are dropped",
        "A worker of another version loses the position of a fold, which then starts from the beginning if it has no state.",
        FOLDSET,
        (
            Change(RAISED, "return {**positions, **lows", "return {**lows"),
            Change("folding.agents.processors:FoldProcessors.of", "for name in gone:", "for name in ():"),
        ),
    ),
    Mutant(
        "a position goes back after a rollback",
        "Committed events were delivered, although Redis has lost that.",
        ROLLBACK,
        (Change(RAISED, "lows[name].offset < position.offset", "False"),),
    ),
    Mutant(
        "the highest position of all folds is committed",
        "Without metadata, or for a fold without state, the events of slower folds are skipped.",
        ("lossy",),
        (COMMITS_HIGHEST_POSITION,),
    ),
    Mutant(
        "every fold resumes at the highest position",
        "The position of one fold says nothing about another.",
        FOLDSET,
        (
            Change(
                "delivery.offset_metadata:offsets_of",
                "else in_metadata",
                "else dict.fromkeys(in_metadata, max(in_metadata.values()))",
            ),
        ),
    ),
)

REWINDS: Final = (
    Mutant(
        "rewind checks neither token nor fence",
        "A former owner folds events again that the owner has folded.",
        (),
        (Change("rewind.lua", "if refused then return refused end", "local unchanged"),),
    ),
    Mutant(
        "rewind accepts open groups",
        "New records at or below the last offset of an open group count as folded.",
        (),
        (Change("rewind.lua", "if call('ZCARD', first) > 0 or call('ZCARD', outbox) > 0 then", "if false then"),),
    ),
)
"""The log of a schedule never goes back: the tests of the script fail with these variants."""
