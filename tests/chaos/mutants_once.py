"""Broken variants of the rules that prevent a second call of a subscriber for one event."""

from __future__ import annotations

from typing import Final

from tests.chaos.mutants import Change, Mutant

PROCESSOR = "subscribers.running.processor:SubscriberProcessor"
DEDUPLICATED = "subscribers.guarantees.deduplicated:DeduplicatedGuarantee"
WRITE_AHEAD = "subscribers.guarantees.write_ahead:WriteAhead"
READBACK = "subscribers.guarantees.write_ahead:IdReadback"
BEGIN_LOG = "subscribers.guarantees.begin_log:BeginLog"
CRASHES = ("lossy crash:4 rebalance:4", "lossy crash zombie rebalance drops history")

FINISHED_WITHOUT_ITS_LETTER: Final = Change(
    "subscribers.execution.dead_letter_writer:DeadLetterWriter.put",
    "self._has_some.set()",
    "self._on_acknowledged([work])\nself._has_some.set()",
)

UNKNOWN: Final = (
    Mutant(
        "runs before it is noted",
        "What runs when its process dies is unknown to the next one.",
        CRASHES,
        (
            Change(
                f"{BEGIN_LOG}._write_begins",
                "firsts = await",
                "early = [attempt for attempt, _ in self._sending]\nfor one in early:\n    one.is_unrecorded = False\n"
                "self._starter.start(early)\nfirsts = await",
            ),
            Change(f"{BEGIN_LOG}._write_begins", "self._starter.start(begun)", "pass"),
        ),
    ),
    Mutant(
        "begun is forgotten at the claim",
        "What was running when its process died runs again.",
        CRASHES,
        (Change(f"{WRITE_AHEAD}.dead_letter_of", "if not event.is_interrupted:", "if True:"),),
    ),
    Mutant(
        "the id is written at the end",
        "An event that is published twice runs twice, side by side.",
        ("history", *CRASHES),
        (
            Change(f"{WRITE_AHEAD}.before_start", "Entry(event.attempts), made.own_id", "Entry(event.attempts), ''"),
            Change(
                f"{BEGIN_LOG}._write_ends",
                "self.done.pop(offset, None)",
                "self._ids.append((offset, self.done[offset].event_id))\nself.done.pop(offset)",
            ),
        ),
    ),
    Mutant(
        "an id at its own offset is that of a duplicate",
        "What was put off is never called again, and nobody says so.",
        ("",),
        (Change("subscribers/begin.lua", "if first == offset then first = '' end", ""),),
    ),
    Mutant(
        "what ended is not kept",
        "What has ended well since the last commit runs again.",
        CRASHES,
        (Change(f"{WRITE_AHEAD}.claim", "tracker.also_finished((Interval(0, kept.fence), *metadata.above.finished))", "pass"),),
    ),
    Mutant(
        "finished before the letter is acknowledged",
        "A letter that is lost with its process is nowhere.",
        CRASHES,
        (FINISHED_WITHOUT_ITS_LETTER,),
    ),
    Mutant(
        "the commit says nothing of what has ended",
        "Where Redis loses its data it runs again, though the commit could have said so.",
        CRASHES,
        (Change(f"{DEDUPLICATED}.position_to_commit", "partition.tracker.above().finished", "()"),),
    ),
    Mutant(
        "the metadata of the commit cannot be read",
        "Where Redis loses its data all above the watermark runs again.",
        ("",),
        (Change(f"{DEDUPLICATED}.position_to_commit", "fitted(low", '"1" + fitted(low'),),
    ),
    Mutant(
        "a failure is tried again",
        "Nobody knows what the attempt has done.",
        ("",),
        (Change(f"{PROCESSOR}._failed", "is_repeatable=is_repeatable", "is_repeatable=True"),),
    ),
)

NO = "subscribers.guarantees.at_most_once:AtMostOnceGuarantee"
LOSSES = ("history wipe:2 rollback:2", "lossy wipe rollback crash zombie rebalance drops")

AT_MOST_ONCE: Final = (
    Mutant(
        "the metadata is cut",
        "What was begun and has no room in the metadata runs again.",
        ("history", *CRASHES),
        (
            Change(
                f"{NO}.position_to_commit",
                "whole = partition.offset_metadata(tracker.required())",
                "from streams_app.subscribers.state.offset_metadata import fitted\n"
                "return partition.position(low, fitted(low, whole, MAX_METADATA_BYTES))",
            ),
            Change(
                f"{NO}._fits",
                "return fits(tracker.low, self._partition.offset_metadata(tracker.required()), max_bytes)",
                "return True",
            ),
        ),
    ),
    Mutant(
        "runs before the commit is answered",
        "A process that dies, or has lost its partition, has run what nobody knows of.",
        CRASHES,
        (
            Change(
                f"{NO}._commit",
                "await self._partition.claim.commit_now(self.position_to_commit())",
                "import asyncio\nasyncio.ensure_future(self._partition.claim.commit_now(self.position_to_commit()))",
            ),
        ),
    ),
    Mutant(
        "what the commit calls begun is forgotten",
        "What was running when its process died runs again.",
        CRASHES,
        (Change(f"{NO}.take_over", "interrupted = set(tracker.begun)", "interrupted: set[int] = set()"),),
    ),
    Mutant(
        "the commit goes before the letter",
        "A letter that is lost with its process is nowhere.",
        CRASHES,
        (
            Change(
                f"{WRITE_AHEAD}.dead_letter_of",
                'return dead_lettering(event, "interrupted", INTERRUPTED)',
                'self._partition.dead_letters._on_acknowledged([event])\nreturn dead_lettering(event, "interrupted", INTERRUPTED)',
            ),
        ),
    ),
    Mutant(
        "ids are not read back",
        "An event that was published twice runs twice when Redis was lost in between.",
        LOSSES,
        (Change(f"{READBACK}._id_of", 'return "" if made is None else made.own_id', 'return ""'),),
    ),
    Mutant(
        "the number of begins is not checked",
        "A Redis that was rolled back under its owner has forgotten ids, and nobody asks the log for them.",
        ("rollback:6", "history rollback:6"),
        (
            Change(
                "subscribers/begin.lua",
                "if state.number ~= arg.number and state.number ~= after then return {'refused', 'number'} end",
                "",
            ),
            Change("subscribers/end.lua", "if state.number ~= arg.number then return {'refused', 'number'} end", ""),
        ),
    ),
    Mutant(
        "own running ones are taken for interrupted",
        "A partition that is claimed again by the same process makes letters of what has just ended well in it.",
        ("drops:9", "drops:9 history"),
        (Change("delivery.release:PartitionReleases._end", "if seconds and not is_last:", "if False:"),),
    ),
    Mutant(
        "what runs is not waited for",
        "A partition that is claimed again by the same process makes letters of what runs in it.",
        ("drops:9", "rebalance:6 history"),
        (Change(f"{PROCESSOR}.revoke", "max(0.0, seconds - RELEASE_SECONDS)", "0.0"),),
    ),
)
