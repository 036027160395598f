"""Broken variants of sealing, sending, claiming and the clock, each with the schedules that detect it."""

from __future__ import annotations

from typing import Final

from tests.simulation.mutants import Change, Mutant
from tests.simulation.mutants_protocol import CHAIN_RULE, DELIVER, FINISH, FOLD, FOLD_ONCE, LOSSY, SEAL, ZOMBIE

FOLD_ALL = "folding.agents.processor:FoldProcessor._fold_all"

CLAIM_ONCE = "delivery.claimer:Claimer.claim_once"
ASK_KAFKA = "delivery.claimer:Claimer._ask_kafka"
SEND_PENDING = "folding.agents.emitter:Emitter._send_pending"
PRODUCE = "folding.agents.emitter:Emitter._produce"
SKIP_LOST = "folding.agents.claim:_skip_lost"
BEGINNING = "folding.agents.claim:initial_position"
SHARD = "folding.shard.shard:Shard"
IS_OPENED = "if plan.opens or not plan.is_stored then"
COMMIT_AT_CLAIM = "await self._commits.send({tp: partition.offsets.committed or committed}, partition.member)"
CLAIM_ALL = "bounds = await self._claim_all(partition, was_reset=was_reset)"

NOT_COMPARED = Change("folding.shard.shard:Shard._compare_outbox", "if entries != self.outbox.entries:", "if False:")
"""Disables the comparison of the outbox size, which would repair these variants."""

DYING = ("lossy crash rebalance dying:fold", "lossy crash:2 zombie rebalance dying:fold")
RETENTION = ("lossy retention:3 drops crash:2", "lossy retention:3 crash:2 rollback zombie")
SPLIT = ("rollback:3 rebalance", "lossy crash:2 rebalance:2 foldset", "lossy rollback:2 rebalance:2")

SCRIPTS: Final = (
    Mutant(
        "the fence is written first",
        "A script that fails half-way leaves a fence above the folded events.",
        DYING,
        (
            Change(
                FOLD,
                "add_block(lowest, records",
                "call('HSET', meta, 'fence', arg.to)\nadd_block(lowest, records",
            ),
        ),
    ),
    Mutant(
        "fold does not skip offsets that a group contains",
        "A script that failed half-way is repeated and counts its events twice.",
        DYING,
        (Change(FOLD, "if g and r.first <= g.last then", "if false then"),),
    ),
    Mutant(
        "seal does not add groups to the outbox",
        "A sealed group is neither open nor in the outbox, so its record is never sent.",
        LOSSY,
        (Change(SEAL, "add_block(lowest, records, #sealed)", ""),),
    ),
    Mutant(
        "fold does not add closed groups to the outbox",
        "A group that a bound closes during a fold is neither open nor in the outbox.",
        LOSSY,
        (Change(FOLD, "records .. sealed_records, session_records + #sealed)", "records, session_records)"),),
    ),
    Mutant(
        "finish removes everything up to an offset",
        "It also removes records with lower offsets that the broker has not acknowledged.",
        ("lossy:3", "lossy:2 crash:2"),
        (Change(FINISH, "'ZREMRANGEBYSCORE', outbox, from, to)", "'ZREMRANGEBYSCORE', outbox, '-inf', to)"),),
    ),
    Mutant(
        "finish removes ranges although a reply was lost",
        "A record from the lost reply lies between two acknowledged ones and is removed with them.",
        (
            "history fragile:finish fragile:fold",
            "history fragile:fold",
        ),
        (
            Change("folding.shard.outbox:Outbox.ranges", "if not self.is_exact:", "if False:"),
            Change(FINISH, "if ends and call('ZCOUNT', outbox, from, to) == ranges[i + 2] then", "if true then"),
        ),
    ),
    Mutant(
        "the first offset of a group moves with each fold",
        "The watermark passes the first events of a group.",
        ("lossy",),
        (Change(FOLD, IS_OPENED, "if true then opens(plan.group, g.last, timer, plan.is_packed)\nelseif plan.opens then"),),
    ),
)

DELIVERY: Final = (
    Mutant(
        "dead letters are sent after the fence moves",
        "A crash loses an event that is neither folded nor in the dead-letter topic.",
        LOSSY,
        (
            Change(FOLD_ALL, "await self._send_dead_letters(faults)", "pass"),
            Change(FOLD_ONCE, "if faults.misrouted:", "await self._send_dead_letters(faults)\nif faults.misrouted:"),
        ),
    ),
    Mutant(
        "dead letters count as sent without acknowledgement",
        "Dead letters that the broker has rejected are not sent again.",
        ("lossy:3",),
        (Change("delivery.dead_letters:DeadLetterSender._send", "if outcome is None:", "if True:"),),
    ),
    Mutant(
        "finish before the acknowledgement",
        "A record that was never acknowledged has left the outbox.",
        LOSSY,
        (Change(SEND_PENDING, "acknowledged, failed =", "await shard.finish(groups)\nacknowledged, failed ="),),
    ),
    Mutant(
        "an error of the producer counts as an acknowledgement",
        "The record is lost with the first failed request.",
        LOSSY,
        (Change(PRODUCE, "if fault is not None:", "if False:"),),
    ),
    Mutant(
        "the outbox is not loaded at the claim",
        "Records that a former owner sealed are never sent.",
        ("lossy crash:2", *ZOMBIE),
        (Change(f"{SHARD}.claim", "await self._load_outbox()", "self.outbox.load([])"), NOT_COMPARED),
    ),
    Mutant(
        "the outbox is not reloaded after a lost fold reply",
        "Records of groups that a bound closed in that fold are never sent.",
        ("fragile:fold", "lossy:0.3"),
        (
            Change(f"{SHARD}.fold_once", "if reply.outcome is FoldOutcome.ALREADY:", "if False:"),
            Change(f"{SHARD}.finish", "await self._load_outbox()", "pass"),
            NOT_COMPARED,
        ),
    ),
    Mutant(
        "a lost reply of seal counts as a failure",
        "The records that it sealed are never sent.",
        ("fragile:seal", "lossy:3"),
        (Change(f"{SHARD}.seal", "self.is_claimed = False", "pass"), NOT_COMPARED),
    ),
    Mutant(
        "a fold id is derived from the due time",
        "The id must be derived from source offsets only, or a record that is sent again has another id.",
        ("lossy crash:2",),
        (
            Change(
                "folding.core.record:render",
                "sealed.last_offset, lost)",
                "sealed.due_ms, lost)",
            ),
        ),
    ),
    Mutant(
        "the version is derived from the first offset",
        "The records of one group have no order.",
        ("",),
        (Change("folding.core.record:Renderer.records", "VERSION_SHIFT + last", "VERSION_SHIFT + first"),),
    ),
)

CLAIMS: Final = (
    Mutant(
        "the reader starts at the highest fence of all folds",
        "Folds with a lower fence miss the events in between, or reject every range forever.",
        SPLIT,
        (Change(CLAIM_ONCE, "min(served.next for served", "max(served.next for served"),),
    ),
    Mutant(
        "the reader starts at the highest fence, no chain rule",
        "Folds with a lower fence lose the events in between.",
        SPLIT,
        (
            Change(CLAIM_ONCE, "min(served.next for served", "max(served.next for served"),
            Change(DELIVER, CHAIN_RULE, "if False:"),
        ),
    ),
    Mutant(
        "a claim does not ask Kafka",
        "A member with an outdated generation takes the state from the owner.",
        ZOMBIE,
        (Change(ASK_KAFKA, COMMIT_AT_CLAIM, "pass"),),
    ),
    Mutant(
        "a claim writes to Redis before it asks Kafka",
        "A member with an outdated generation takes the state from the owner, and is rejected afterwards.",
        ZOMBIE,
        (
            Change(ASK_KAFKA, COMMIT_AT_CLAIM, "pass"),
            Change(
                CLAIM_ONCE,
                CLAIM_ALL,
                f"{CLAIM_ALL}\nif partition.offsets.committed:\n"
                "    await self._group_consumer.commit({tp: partition.offsets.committed}, partition.member)",
            ),
        ),
    ),
    Mutant(
        "the initial position is not committed",
        "With `latest`, if Redis is lost before the first commit, the fold begins at the new end.",
        ("lossy latest wipe:8", "latest wipe:15"),
        (Change(BEGINNING, "await claim.commit_now(begin)", "pass"),),
    ),
    Mutant(
        "the start rule applies although state exists",
        "If Kafka has deleted the commit and Redis has state, `latest` commits past open groups.",
        ("lossy latest forget:3 crash", "lossy crash zombie rebalance forget:2 latest"),
        (Change(BEGINNING, "low = await shard.store.watermark()", "low = None"),),
    ),
    Mutant(
        "new state begins above the committed position",
        "The event at the committed position is never read.",
        ("", "lossy wipe:4"),
        (Change(f"{SHARD}.claim", "position - 1", "position"),),
    ),
    Mutant(
        "known loss is not reported",
        "Retention removes unread events without a report.",
        RETENTION,
        (Change(SKIP_LOST, "if lost_from < begin:", "if False:"),),
    ),
    Mutant(
        "known loss is reported from the fence on",
        "After a rollback, events that were delivered long ago are reported as lost.",
        ("lossy retention:3 rollback:3", "lossy retention:3 crash wipe rollback:3"),
        (Change(SKIP_LOST, "max(shard.fence + 1, position)", "shard.fence + 1"),),
    ),
    Mutant(
        "groups stay open across known loss",
        "A record spans lost offsets.",
        RETENTION,
        (
            Change(SKIP_LOST, "await emitter.drain()", "pass"),
            Change("skip.lua", "if call('ZCARD', first) > 0 then return {'refused', 'open-groups'} end", ""),
        ),
    ),
    Mutant(
        "known loss is skipped while groups are open",
        "The script rejects every attempt, and the partition is stuck.",
        RETENTION,
        (Change(SKIP_LOST, "await emitter.drain()", "pass"),),
    ),
    Mutant(
        "no lock per shard",
        "Seal and fold of one shard overlap in the process, and each invalidates the assumptions of the other.",
        ("lossy", "lossy crash zombie rebalance", ""),
        (Change(f"{SHARD}.__init__", "self.lock = asyncio.Lock()", "import contextlib\nself.lock = contextlib.nullcontext()"),),
    ),
    Mutant(
        "an old fetch counts as caught up",
        "After a suspension, the wall clock closes groups whose next events are in the log.",
        ("freeze", "lossy freeze zombie"),
        (
            Change("delivery.clocks:is_caught_up", "and is_close(view.fetched_at_ms, now_ms)", ""),
            Change("folding.agents.emitter:Emitter._folded_until_ms", "min(folded_until_ms, now_ms)", "now_ms"),
        ),
    ),
    Mutant(
        "the reader always counts as caught up",
        "A worker with lag closes groups whose next events are in the log.",
        ("freeze", "zombie:4"),
        (Change("delivery.clocks:is_caught_up", "return fence + 1 >= view.stable_offset and", "return"),),
    ),
)
