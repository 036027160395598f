"""Broken variants of the delivery that schedules of the toy processor detect, without folding."""

from __future__ import annotations

from typing import Final

from tests.simulation.mutants import Change, Mutant
from tests.simulation.mutants_commits import CURRENT_GENERATION
from tests.simulation.mutants_delivery import COMMIT_AT_CLAIM
from tests.simulation.mutants_protocol import (
    ACCEPTS_OLD_FETCHES,
    CHAIN_RULE,
    COMMITS_HIGHEST_POSITION,
    DELIVER,
    DROPS,
    IDLE_READER_NOT_CHECKED,
    INCLUDES_EVENT_AT_FENCE,
    WIPE,
    ZOMBIE,
)

TOY: Final = (
    Mutant(
        "toy: no chain rule",
        "A rebalance dropped a range with the buffers, and the next range moves the fence over the gap.",
        DROPS,
        (Change(DELIVER, CHAIN_RULE, "if False:"),),
    ),
    Mutant(
        "toy: batches fetched before a seek are delivered",
        "They look as if the client had reset the reader to an older position. The fence of folds usually hides it.",
        ("lossy rebalance:6", "drops:6 rebalance:9"),
        (ACCEPTS_OLD_FETCHES,),
    ),
    Mutant(
        "toy: an idle reader is not checked",
        "The last range before a silence was dropped, and no later range reveals the gap.",
        ("drops:3", "lossy drops:3"),
        (IDLE_READER_NOT_CHECKED,),
    ),
    Mutant(
        "toy: an overlapping range includes the event at the fence",
        "If one reader serves several processors, the event below a processor's range is counted twice.",
        WIPE,
        (INCLUDES_EVENT_AT_FENCE,),
    ),
    Mutant(
        "toy: the delivered position is committed",
        "Delivered events may never be applied.",
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
        "toy: a dead letter counts as sent without acknowledgement",
        "The broker has rejected it, and the fence passes its event.",
        ("lossy:3",),
        (Change("delivery.dead_letters:DeadLetterSender._send", "if outcome is None:", "if True:"),),
    ),
    Mutant(
        "toy: the fence does not wait for dead letters",
        "The fence passes an event whose dead letter is not sent yet, and a crash loses it.",
        ("lossy:3",),
        (Change("delivery.dead_letters:DeadLetterSender.send", "if failed is not None:", "if False:"),),
    ),
    Mutant(
        "toy: the highest position of all processors is committed",
        "The other processors may be behind it.",
        WIPE,
        (COMMITS_HIGHEST_POSITION,),
    ),
    Mutant(
        "toy: a commit is not bound to its claim",
        "A member with an outdated generation commits without one, which a group without members accepts: an outdated claim then"
        " takes the state in Redis from the owner.",
        ("stale:3 crash:6 zombie:6 rebalance:6", "stale:6 crash:9 zombie:9"),
        (CURRENT_GENERATION,),
    ),
    Mutant(
        "toy: a claim does not ask Kafka",
        "A member with an outdated generation takes the state from the owner.",
        ZOMBIE,
        (
            Change(
                "delivery.claimer:Claimer._ask_kafka",
                COMMIT_AT_CLAIM,
                "pass",
            ),
        ),
    ),
)
