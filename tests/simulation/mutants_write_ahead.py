"""Broken variants of deduplicated and at-most-once subscribers: the rules that prevent a second call for one event."""

from __future__ import annotations

from typing import Final

from tests.simulation.mutants import Change, Mutant

PROCESSOR = "subscribers.running.processor:SubscriberProcessor"
GUARANTEE = "subscribers.guarantees.deduplicated:DeduplicatedGuarantee"
BEGIN_COMMITS = "subscribers.guarantees.at_most_once:BeginCommits"
READBACK = "subscribers.guarantees.id_readback:IdReadback"
BEGIN_LOG = "subscribers.guarantees.begin_log:BeginLog"
CRASHES = ("lossy crash:4 rebalance:4", "lossy crash zombie rebalance drops history")

FINISHED_WITHOUT_DEAD_LETTER: Final = Change(
    "subscribers.execution.dead_letter_writer:DeadLetterWriter.put",
    "self._has_some.set()",
    "self._on_acknowledged([event])\nself._has_some.set()",
)

DEDUPLICATED: Final = (
    Mutant(
        "runs before the begin is recorded",
        "If the process dies, the next one does not know which events were running.",
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
        "a claim ignores recorded begins",
        "An event that was running when its process died runs again.",
        CRASHES,
        (Change(f"{GUARANTEE}.dead_letter_of", "if not event.is_interrupted:", "if True:"),),
    ),
    Mutant(
        "the event id is recorded at the end",
        "An event that is published twice runs twice at the same time.",
        ("history", *CRASHES),
        (
            Change(f"{GUARANTEE}.before_start", "Entry(event.attempts), made.own_id", "Entry(event.attempts), ''"),
            Change(
                f"{BEGIN_LOG}._write_ends",
                "self.done.pop(offset, None)",
                "self._ids.append((offset, self.done[offset].event_id))\nself.done.pop(offset)",
            ),
        ),
    ),
    Mutant(
        "an event counts as a duplicate of itself",
        "An event that was postponed is never called again, without a report.",
        ("",),
        (Change("subscribers/begin.lua", "if first == offset then first = '' end", ""),),
    ),
    Mutant(
        "a claim ignores events that finished since the commit",
        "Events that have succeeded since the last commit run again.",
        CRASHES,
        (Change(f"{GUARANTEE}._claim", "tracker.also_finished((Interval(0, kept.fence), *metadata.above.finished))", "pass"),),
    ),
    Mutant(
        "deduplicated: finished before the dead letter is acknowledged",
        "A dead letter that is lost with its process is never sent.",
        CRASHES,
        (FINISHED_WITHOUT_DEAD_LETTER,),
    ),
    Mutant(
        "deduplicated: the commit metadata omits finished events",
        "If Redis loses its data, they run again, although the commit could have prevented it.",
        CRASHES,
        (Change(f"{GUARANTEE}.position_to_commit", "partition.tracker.above().finished", "()"),),
    ),
    Mutant(
        "the commit metadata is unreadable",
        "If Redis loses its data, everything above the watermark runs again.",
        ("",),
        (Change(f"{GUARANTEE}.position_to_commit", "fitted(low", '"1" + fitted(low'),),
    ),
    Mutant(
        "a failed attempt is retried",
        "The effect of the failed attempt is unknown.",
        ("",),
        (Change(f"{PROCESSOR}._failed", "is_repeatable=is_repeatable", "is_repeatable=True"),),
    ),
)

LOSSES = ("history wipe:2 rollback:2", "lossy wipe rollback crash zombie rebalance drops")

AT_MOST_ONCE: Final = (
    Mutant(
        "the commit metadata is truncated",
        "Begun events that do not fit into the metadata run again.",
        ("history", *CRASHES),
        (
            Change(
                f"{BEGIN_COMMITS}.position",
                "whole = partition.offset_metadata(tracker.required())",
                "from streams_app.subscribers.state.offset_metadata import fitted\n"
                "return partition.position(low, fitted(low, whole, MAX_METADATA_BYTES))",
            ),
            Change(
                f"{BEGIN_COMMITS}._fits",
                "return fits(tracker.low, self._partition.offset_metadata(tracker.required()), max_bytes)",
                "return True",
            ),
        ),
    ),
    Mutant(
        "runs before the commit is acknowledged",
        "A process that dies, or has lost its partition, has run events that no commit names.",
        CRASHES,
        (
            Change(
                f"{BEGIN_COMMITS}.commit",
                "await self._partition.claim.commit_now(self.position())",
                "import asyncio\nasyncio.ensure_future(self._partition.claim.commit_now(self.position()))",
            ),
        ),
    ),
    Mutant(
        "a claim ignores the begins in the commit",
        "An event that was running when its process died runs again.",
        CRASHES,
        (Change(f"{GUARANTEE}.take_over", "set(tracker.begun)", "set()"),),
    ),
    Mutant(
        "a claim takes begun events for ended ones",
        "An event that was running when its process died is never reported.",
        CRASHES,
        (Change(f"{GUARANTEE}._claim", "tracker.also_ended((Interval(0, kept.fence)", "tracker.also_ended((Interval(0, 1 << 60)"),),
    ),
    Mutant(
        "the commit is sent before the dead letter",
        "A dead letter that is lost with its process is never sent.",
        CRASHES,
        (
            Change(
                f"{GUARANTEE}.dead_letter_of",
                'return dead_lettering(event, "interrupted", INTERRUPTED)',
                'self._partition.dead_letters._on_acknowledged([event])\nreturn dead_lettering(event, "interrupted", INTERRUPTED)',
            ),
        ),
    ),
    Mutant(
        "lost ids are not read back from the log",
        "An event that was published twice runs twice if Redis lost its data in between.",
        LOSSES,
        (Change(f"{READBACK}._id_of", 'return "" if made is None else made.own_id', 'return ""'),),
    ),
    Mutant(
        "the number of begins is not compared",
        "A Redis that was rolled back during a claim has lost ids, and they are not read back from the log.",
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
        "a release makes no last commit",
        "If the same process claims the partition again, events that have just succeeded become dead letters.",
        ("drops:9", "drops:9 history"),
        (Change("delivery.release:PartitionReleases._end", "if seconds and not is_handed_over:", "if False:"),),
    ),
    Mutant(
        "a release does not wait for running attempts",
        "If the same process claims the partition again, events that are running become dead letters.",
        ("drops:9", "rebalance:6 history"),
        (Change(f"{PROCESSOR}.revoke", "max(0.0, seconds - RELEASE_SECONDS)", "0.0"),),
    ),
)

# Detected only with a special kind of subscriber

ONLY_FRONT_OF_QUEUE: Final = Mutant(
    "only the front of the start queue is searched",
    "An event whose key was unblocked is queued behind later ones, and only its end makes room in full metadata.",
    ("", "history"),
    (
        Change(
            "subscribers.execution.queues:StartQueue.take_offset",
            "next((event for event in fresh if event.offset == offset), None)",
            "next((event for event in [*fresh][:1] if event.offset == offset), None)",
        ),
    ),
)
WAITING_AFTER_BEGIN: Final = Mutant(
    "the waiting entry is written after the begin",
    "The next owner calls the event again, although it was running.",
    ("fragile:end history crash:9",),
    (Change(f"{BEGIN_LOG}._write_begins", "self._entries.pop(begin.offset, None)", "pass"),),
)
ONLY_RECENT_IDS: Final = Mutant(
    "only recent ids are read back",
    "If the event at the watermark is old but has run just now, the ids before it are missing.",
    ("history wipe:4",),
    (Change(f"{READBACK}._remembered_from", "age_ms *= 2", "break"),),
)
OFFSET_NOT_COMMITTED: Final = Mutant(
    "an offset set by hand is not committed at once",
    "The next owner counts it as newly set, and calls events again that have run.",
    ("history crash:4",),
    (Change(f"{GUARANTEE}._claim", "await claim.commit_now(self.position_to_commit())", "pass"),),
)
