"""Broken variants of the delivery that schedules of the toy processor detect, without folding."""

from __future__ import annotations

from typing import Final

from tests.chaos.mutants import Change, Mutant
from tests.chaos.mutants_commits import UNDER_THE_PRESENT_GENERATION
from tests.chaos.mutants_delivery import COMMIT_AT_CLAIM
from tests.chaos.mutants_protocol import (
    CHAIN_RULE,
    COMMITS_THE_HIGHEST,
    DELIVER,
    DROPS,
    NEVER_LOOKS_AT_AN_IDLE_READER,
    TAKES_ONE_TOO_MANY,
    TAKES_WHAT_WAS_FETCHED_BEFORE,
    WIPE,
    ZOMBIE,
)

LAYER: Final = (
    Mutant(
        "toy: no chain rule",
        "A range was dropped with the buffers of a rebalance; with the next one the fence moves over a hole.",
        DROPS,
        (Change(DELIVER, CHAIN_RULE, "if False:"),),
    ),
    Mutant(
        "toy: batches fetched before a seek are delivered",
        "They look as if the client had been thrown back.",
        ("lossy rebalance:6",),
        (TAKES_WHAT_WAS_FETCHED_BEFORE,),
    ),
    Mutant(
        "toy: no look at an idle reader",
        "The last range before a silence was dropped: nothing ever refuses.",
        ("drops:3", "lossy drops:3"),
        (NEVER_LOOKS_AT_AN_IDLE_READER,),
    ),
    Mutant(
        "toy: what a processor has already is delivered once more",
        "The event below its range is counted twice where one reader serves several.",
        WIPE,
        (TAKES_ONE_TOO_MANY,),
    ),
    Mutant(
        "toy: what was delivered is committed",
        "It may never be applied.",
        ("lossy", *WIPE),
        (
            Change(
                "delivery.partition_offsets:PartitionOffsets.low",
                "position = await one.processor.position_to_commit()",
                "position = OffsetAndMetadata(one.next)",
            ),
        ),
    ),
    Mutant(
        "toy: a dead letter counts without acknowledgement",
        "The broker has refused it, and the fence passes what it was about.",
        ("lossy:3",),
        (Change("delivery.dead_letters:DeadLetters._send", "if outcome is None:", "if True:"),),
    ),
    Mutant(
        "toy: the fence does not wait for dead letters",
        "It passes what is in no dead letter yet, and a crash drops it.",
        ("lossy:3",),
        (Change("delivery.dead_letters:DeadLetters.send", "while failed is not None:", "while False:"),),
    ),
    Mutant(
        "toy: the position of one processor is committed for all",
        "The others may be behind it.",
        WIPE,
        (COMMITS_THE_HIGHEST,),
    ),
    Mutant(
        "toy: a commit is not bound to its claim",
        "From a member whose generation is over it goes out under none, which a group without members takes: a claim that is over"
        " robs the owner in Redis.",
        ("stale:3 crash:6 zombie:6 rebalance:6", "stale:6 crash:9 zombie:9"),
        (UNDER_THE_PRESENT_GENERATION,),
    ),
    Mutant(
        "toy: claim without asking Kafka",
        "A member whose generation is over robs the owner.",
        ZOMBIE,
        (
            Change(
                "delivery.claim:Claimer._ask_kafka",
                COMMIT_AT_CLAIM,
                "pass",
            ),
        ),
    ),
)
