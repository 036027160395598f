"""Broken variants of the delivery protocol, each with the schedules that detect it."""

from __future__ import annotations

from typing import Final

from tests.chaos.mutants import Change, Mutant

FOLD, SEAL, FINISH = "fold.lua", "seal.lua", "finish.lua"
WATERMARK, CLAIM = "watermark.lua", "claim.lua"
ASKS, NOT_ASKED = "local refused = refusal()", "arg.token = state.token"
IS_DONE = "if state.fence and state.token == arg.token"
FOLD_ONCE = "folding.agents.processor:FoldProcessor.fold_once"
DELIVER = "delivery.ranges:Ranges.deliver"
CHAIN_RULE = "if any(batch.begin > served.next for served in self.served.values()):"
RAISED = "delivery.offset_metadata:raised"

TAKES_WHAT_WAS_FETCHED_BEFORE = Change(DELIVER, "if batch.seek_number != self.seek_number:", "if False:")
NEVER_LOOKS_AT_AN_IDLE_READER = Change(
    "delivery.ranges:Ranges.check", "if is_ahead and not self.in_flight and monotonic_ms - self.progress_ms > IDLE_MS:", "if False:"
)
TAKES_ONE_TOO_MANY = Change("delivery.batch:Batch.since", "self.records, offset, key=", "self.records, offset - 1, key=")
COMMITS_THE_HIGHEST = Change(
    "delivery.offset_metadata:commit_of", "Committed(min(offsets.values())", "Committed(max(offsets.values())"
)

ROLLBACK = ("rollback:3", "lossy rollback:2")
DROPS = ("lossy drops:3 rebalance:2",)
LOSSY = ("lossy:2 crash:2", "lossy:2 crash zombie rebalance")
ZOMBIE = ("lossy crash zombie:3 rebalance",)
WIPE = ("lossy wipe:6",)
FOLDSET = ("lossy crash:2 zombie rebalance:2 foldset wipe:2",)

MARKS: Final = (
    Mutant(
        "no fence check in fold",
        "Redis comes back with an older fence and the owner folds on: what lies between is never read again.",
        ROLLBACK,
        (Change(FOLD, ASKS, f"arg.fence = nil\n{ASKS}"),),
    ),
    Mutant(
        "no fence check in seal",
        "An idle partition never notices that Redis was rolled back.",
        ("late rollback", *ROLLBACK),
        (Change(SEAL, ASKS, f"arg.fence = nil\n{ASKS}"),),
    ),
    Mutant(
        "no token check in fold",
        "A former owner folds into a shard that another one has claimed.",
        ZOMBIE,
        (Change(FOLD, IS_DONE, f"{NOT_ASKED}\n{IS_DONE}"),),
    ),
    Mutant(
        "no token check in seal",
        "What a former owner seals is unknown to the present one and stays in the outbox.",
        ZOMBIE,
        (Change(SEAL, ASKS, f"{NOT_ASKED}\n{ASKS}"),),
    ),
    Mutant(
        "no token check in finish",
        "A former owner removes from the outbox what the present one may have to send under another last offset.",
        ZOMBIE,
        (Change(FINISH, ASKS, f"{NOT_ASKED}\n{ASKS}"),),
    ),
    Mutant(
        "claim keeps the former token",
        "Two owners write to one shard in turn.",
        ZOMBIE,
        (Change(CLAIM, "if state.fence and state.epoch then", "if state.fence and state.epoch then arg.token = state.token"),),
    ),
    Mutant(
        "no chain rule",
        "A range was dropped with the buffers of a rebalance; folding the next one moves the fence over a hole.",
        DROPS,
        (Change(DELIVER, CHAIN_RULE, "if False:"),),
    ),
    Mutant(
        "a range begins at its first record",
        "What was dropped before it is not seen, if the chain is checked against records instead of ranges.",
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
        "the fence moves to the last record, not to the end of the range",
        "What the log skips at the end of a range is a hole for the next one: a claim after every marker.",
        ("",),
        (
            Change(
                FOLD_ONCE, "self.shard, batch.end - 1", "self.shard, batch.records[-1].offset if batch.records else batch.end - 1"
            ),
        ),
    ),
    Mutant(
        "batches fetched before a seek are taken",
        "They look as if the client had been thrown back.",
        ("lossy rebalance:6", "history lossy rebalance:6"),
        (TAKES_WHAT_WAS_FETCHED_BEFORE,),
    ),
    Mutant(
        "no look at an idle reader",
        "The last range before a silence was dropped: nothing ever refuses.",
        ("drops:3", "lossy drops:3"),
        (NEVER_LOOKS_AT_AN_IDLE_READER,),
    ),
    Mutant(
        "an overlapping range is folded from its fence on",
        "The event at the fence is folded twice where one reader serves several folds.",
        ("lossy crash:2 rebalance:2 foldset", "lossy:2 rebalance:3"),
        (TAKES_ONE_TOO_MANY,),
    ),
)

COMMITS: Final = (
    Mutant(
        "commit of the position",
        "The committed offset passes events that are in Redis only.",
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
        "outbox not in the watermark",
        "What is sealed and not acknowledged is committed.",
        ("lossy",),
        (Change(WATERMARK, "ipairs({first, outbox})", "ipairs({first})"),),
    ),
    Mutant(
        "open groups not in the watermark",
        "What is open is committed.",
        ("lossy",),
        (Change(WATERMARK, "ipairs({first, outbox})", "ipairs({outbox})"),),
    ),
    Mutant(
        "watermark read in pieces",
        "Redis is wiped between the fence and the open groups: the fence alone is committed.",
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
        "watermark read in pieces, outbox first",
        "A group that is sealed between the two looks is in neither.",
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
        "A worker of another version forgets where a fold stood; without state it begins anew.",
        FOLDSET,
        (
            Change(RAISED, "return {**positions, **lows", "return {**lows"),
            Change("folding.agents.processors:FoldProcessors.of", "for name in gone:", "for name in ():"),
        ),
    ),
    Mutant(
        "a position goes back after a rollback",
        "What was committed has been delivered all the same.",
        ROLLBACK,
        (Change(RAISED, "lows[name].offset < position.offset", "False"),),
    ),
    Mutant(
        "the commit is the highest position",
        "Without metadata, or for a fold without state, the others' events are passed over.",
        ("lossy",),
        (COMMITS_THE_HIGHEST,),
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
        "whoever likes moves the fence back",
        "A zombie folds once more what the owner has folded.",
        (),
        (Change("rewind.lua", "if refused then return refused end", "local unchanged"),),
    ),
    Mutant(
        "the fence goes back below open groups",
        "Events behind the common end are taken for folded.",
        (),
        (Change("rewind.lua", "if call('ZCARD', first) > 0 or call('ZCARD', outbox) > 0 then", "if false then"),),
    ),
)
"""The log of a schedule never goes back: the tests of the script fail with these variants."""
