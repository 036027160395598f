"""Broken variants of sealing, sending, claiming and the clock, each with the schedules that detect it."""

from __future__ import annotations

from typing import Final

from tests.chaos.mutants import Change, Mutant
from tests.chaos.mutants_protocol import CHAIN_RULE, DELIVER, FINISH, FOLD, FOLD_ONCE, LOSSY, SEAL, ZOMBIE

FOLD_ALL = "folding.agents.processor:FoldProcessor._fold_all"

CLAIM_ONCE = "delivery.claim:Claimer.claim_once"
ASK_KAFKA = "delivery.claim:Claimer._ask_kafka"
SEND_PENDING = "folding.agents.emitter:Emitter._send_pending"
PRODUCE = "folding.agents.emitter:Emitter._produce"
SKIP_LOST = "folding.agents.claim:_skip_lost"
BEGINNING = "folding.agents.claim:initial_position"
SHARD = "folding.shard.shard:Shard"
IS_OPENED = "if plan.opens or not plan.is_stored then"
COMMIT_AT_CLAIM = "await self._commits.send({tp: partition.offsets.committed or committed}, partition.member)"
CLAIM_ALL = "bounds = await self._claim_all(partition, was_reset=was_reset)"

NOT_COMPARED = Change("folding.shard.shard:Shard._compare_outbox", "if records != len(self.outbox):", "if False:")
"""Disables the comparison of the outbox size, which would repair these variants."""

DYING = ("lossy crash rebalance dying:fold", "lossy crash:2 zombie rebalance dying:fold")
RETENTION = ("lossy retention:3 drops crash:2", "lossy retention:3 crash:2 rollback zombie")
SPLIT = ("rollback:3 rebalance", "lossy crash:2 rebalance:2 foldset", "lossy rollback:2 rebalance:2")

SCRIPTS: Final = (
    Mutant(
        "fence written first",
        "A script that dies half-way leaves a fence above what was written.",
        DYING,
        (
            Change(
                FOLD,
                "in_pages('ZADD', outbox, sent_sessions)",
                "call('HSET', meta, 'fence', arg.to)\nin_pages('ZADD', outbox, sent_sessions)",
            ),
        ),
    ),
    Mutant(
        "fold does not skip what a group holds already",
        "A script that died half-way is repeated and counts its events twice.",
        DYING,
        (Change(FOLD, "if g and r.first <= g.last then", "if false then"),),
    ),
    Mutant(
        "seal pops first",
        "A group has left the open state and is in no outbox.",
        LOSSY,
        (Change(SEAL, "in_pages('ZADD', outbox, sent)", ""),),
    ),
    Mutant(
        "fold pops first",
        "A group closed by a bound while folding is in no outbox.",
        LOSSY,
        (Change(FOLD, "in_pages('ZADD', outbox, sealed_entries)", ""),),
    ),
    Mutant(
        "finish removes everything up to an offset",
        "A record below it that the broker has not acknowledged goes, too.",
        ("lossy:3", "lossy:2 crash:2"),
        (Change(FINISH, "'ZREMRANGEBYSCORE', outbox, from, to)", "'ZREMRANGEBYSCORE', outbox, '-inf', to)"),),
    ),
    Mutant(
        "finish by ranges although a reply is missing",
        "A record the lost reply told of lies between two that were acknowledged, and goes with them.",
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
        "first offset moves with the group",
        "The watermark passes the events a group began with.",
        ("lossy",),
        (Change(FOLD, IS_OPENED, "if true then opens(plan.group, g.last, timer)\nelseif plan.opens then"),),
    ),
)

DELIVERY: Final = (
    Mutant(
        "dead letter after the fence",
        "The position passes an event that is neither folded nor in the dead letters.",
        LOSSY,
        (
            Change(FOLD_ALL, "await self._send_dead_letters(reading)", "pass"),
            Change(FOLD_ONCE, "if reading.misrouted:", "await self._send_dead_letters(reading)\nif reading.misrouted:"),
        ),
    ),
    Mutant(
        "dead letters count without acknowledgement",
        "The broker has refused them and nobody sends them again.",
        ("lossy:3",),
        (Change("delivery.dead_letters:DeadLetters._send", "if outcome is None:", "if True:"),),
    ),
    Mutant(
        "finish before ack",
        "A record that was never acknowledged has left the outbox.",
        LOSSY,
        (Change(SEND_PENDING, "acknowledged, failed =", "await shard.finish(entries)\nacknowledged, failed ="),),
    ),
    Mutant(
        "an error of the producer counts as an acknowledgement",
        "Lost with the first request that is lost.",
        LOSSY,
        (Change(PRODUCE, "if fault is not None:", "if False:"),),
    ),
    Mutant(
        "outbox not loaded at claim",
        "What a former owner sealed is never sent.",
        ("lossy crash:2", *ZOMBIE),
        (Change(f"{SHARD}.claim", "await self._load_outbox()", "self.outbox.clear()"), NOT_COMPARED),
    ),
    Mutant(
        "outbox not read again after a lost reply of fold",
        "What bounds closed in that fold is never sent.",
        ("fragile:fold", "lossy:0.3"),
        (
            Change(f"{SHARD}.fold_once", "if reply.outcome is FoldOutcome.ALREADY:", "if False:"),
            Change(f"{SHARD}.finish", "await self._load_outbox()", "pass"),
            NOT_COMPARED,
        ),
    ),
    Mutant(
        "a lost reply of seal is taken for a failure",
        "What it sealed is never sent.",
        ("fragile:seal", "lossy:3"),
        (Change(f"{SHARD}.seal", "self.is_claimed = False", "pass"), NOT_COMPARED),
    ),
    Mutant(
        "a group may be sealed twice under one id",
        "The id must be derived from the source alone.",
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
        "version from the first offset",
        "Records of one group come in no order.",
        ("",),
        (Change("folding.core.record:Renderer.records", "VERSION_SHIFT + last", "VERSION_SHIFT + first"),),
    ),
)

CLAIMS: Final = (
    Mutant(
        "reader at the highest fence of several folds",
        "The folds behind it miss what lies between, or refuse for ever.",
        SPLIT,
        (Change(CLAIM_ONCE, "min(served.next for served", "max(served.next for served"),),
    ),
    Mutant(
        "reader at the highest fence, no chain rule",
        "The folds behind it lose what lies between.",
        SPLIT,
        (
            Change(CLAIM_ONCE, "min(served.next for served", "max(served.next for served"),
            Change(DELIVER, CHAIN_RULE, "if False:"),
        ),
    ),
    Mutant(
        "claim without asking Kafka",
        "A member whose generation is over robs the owner.",
        ZOMBIE,
        (Change(ASK_KAFKA, COMMIT_AT_CLAIM, "pass"),),
    ),
    Mutant(
        "claim in Redis before asking Kafka",
        "A member whose generation is over robs the owner, and is refused afterwards.",
        ZOMBIE,
        (
            Change(ASK_KAFKA, COMMIT_AT_CLAIM, "pass"),
            Change(
                CLAIM_ONCE,
                CLAIM_ALL,
                f"{CLAIM_ALL}\nif partition.offsets.committed:\n"
                "    await self._host.commit({tp: partition.offsets.committed}, partition.member)",
            ),
        ),
    ),
    Mutant(
        "start position not committed",
        "With `latest` a loss of Redis before the first commit begins again at the end.",
        ("lossy latest wipe:8", "latest wipe:15"),
        (Change(BEGINNING, "await claim.commit_now(begin)", "pass"),),
    ),
    Mutant(
        "start rule applied over state",
        "Kafka forgot the offset, Redis did not: with `latest` open groups are committed.",
        ("lossy latest forget:3 crash", "lossy crash zombie rebalance forget:2 latest"),
        (Change(BEGINNING, "low = await shard.store.watermark()", "low = None"),),
    ),
    Mutant(
        "state begins above the position",
        "The event at the position is never read.",
        ("", "lossy wipe:4"),
        (Change(f"{SHARD}.claim", "position - 1", "position"),),
    ),
    Mutant(
        "known loss not reported",
        "Retention overtook the worker and nobody knows.",
        RETENTION,
        (Change(SKIP_LOST, "if lost_from < begin:", "if False:"),),
    ),
    Mutant(
        "known loss reported from the fence",
        "After a roll-back, events are reported lost that have long been delivered.",
        ("lossy retention:3 rollback:3", "lossy retention:3 crash wipe rollback:3"),
        (Change(SKIP_LOST, "max(shard.fence + 1, position)", "shard.fence + 1"),),
    ),
    Mutant(
        "groups stay open over known loss",
        "A record spans offsets that are lost.",
        RETENTION,
        (
            Change(SKIP_LOST, "await emitter.drain()", "pass"),
            Change("skip.lua", "if call('ZCARD', first) > 0 then return {'refused', 'open-groups'} end", ""),
        ),
    ),
    Mutant(
        "known loss skipped with open groups",
        "The script refuses for ever.",
        RETENTION,
        (Change(SKIP_LOST, "await emitter.drain()", "pass"),),
    ),
    Mutant(
        "a lost lock",
        "Seal and fold of one shard overlap in the process: each undoes what the other expects.",
        ("lossy", "lossy crash zombie rebalance", ""),
        (Change(f"{SHARD}.__init__", "self.lock = asyncio.Lock()", "import contextlib\nself.lock = contextlib.nullcontext()"),),
    ),
    Mutant(
        "caught up by an old fetch",
        "After a suspension the wall clock closes groups whose next events are in the log.",
        ("freeze", "lossy freeze zombie"),
        (
            Change("delivery.clocks:is_caught_up", "and is_close(view.fetched_at_ms, now_ms)", ""),
            Change("folding.agents.emitter:Emitter._folded_until_ms", "min(folded_until_ms, now_ms)", "now_ms"),
        ),
    ),
    Mutant(
        "always caught up",
        "A worker that lags closes groups whose next events are in the log.",
        ("freeze", "zombie:4"),
        (Change("delivery.clocks:is_caught_up", "return fence + 1 >= view.stable_offset and", "return"),),
    ),
)
