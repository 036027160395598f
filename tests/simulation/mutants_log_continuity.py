"""Broken variants of the rule that decides whether a log is the one that was read; its test of made-up logs detects them."""

from __future__ import annotations

from typing import Final

from tests.simulation.mutants import Change, Mutant

RULE = "delivery.log_continuity:continuity_of"
COMPARED = "delivery.log_continuity:_compared"

LOG_CONTINUITY: Final = (
    Mutant(
        "a recreated topic counts as the same",
        "Events of the new topic below the former position are never read.",
        (),
        (
            Change(
                RULE,
                "if is_recreated(stored.topic_id, log.topic_id):",
                "stored = stored._replace(topic_id=log.topic_id)\nif False:",
            ),
        ),
    ),
    Mutant(
        "a truncated log counts as the same",
        "Events that got the offsets of lost ones are never read.",
        (),
        (Change(COMPARED, "return Continuity(LogVerdict.TRUNCATED, ", "return Continuity(LogVerdict.SAME, stored.read_to + 0 * "),),
    ),
    Mutant(
        "a log that went back counts as the same",
        "Without fingerprints, the events that get the offsets of lost ones are never read.",
        (),
        (
            Change(
                RULE,
                "return Continuity(LogVerdict.WENT_BACK if is_same_topic else LogVerdict.RECREATED, log.begin)",
                "return Continuity(LogVerdict.SAME, stored.read_to)",
            ),
        ),
    ),
    Mutant(
        "a log that went back counts as recreated",
        "An operator is advised to reset a fold whose topic was never deleted.",
        (),
        (Change(RULE, "LogVerdict.WENT_BACK if is_same_topic else LogVerdict.RECREATED", "LogVerdict.RECREATED"),),
    ),
    Mutant(
        "lost offsets without a record are ignored",
        "If only transaction markers were lost, the events that get their offsets are never read.",
        (),
        (Change(COMPARED, "common = common if max(log.begin, common) < stored.read_to else None", "common = None"),),
    ),
    Mutant(
        "a truncated log is read again from its end",
        "Events between the common end and the end are never read.",
        (),
        (Change(COMPARED, "max(log.begin, min(common, log.end))", "log.end"),),
    ),
    Mutant(
        "a reset reader is trusted",
        "A log that has grown since the reset counts as the one that was read, although nothing identifies it.",
        (),
        (
            Change(
                RULE,
                "return Continuity(LogVerdict.UNCOMPARED if is_same_topic else LogVerdict.UNIDENTIFIED, stored.read_to)",
                "return Continuity(LogVerdict.SAME, stored.read_to)",
            ),
        ),
    ),
)
