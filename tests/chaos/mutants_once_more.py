"""Broken variants that are detected only with a special kind of subscriber that may not be called twice."""

from __future__ import annotations

from typing import Final

from tests.chaos.mutants import Change, Mutant
from tests.chaos.mutants_once import BEGIN_LOG, READBACK, WRITE_AHEAD

NO_FRESH: Final = Mutant(
    "the lowest event is not looked for among fresh ones",
    "An event whose key has become free is behind later ones, and only its end makes room in full metadata.",
    ("", "history"),
    (
        Change(
            "subscribers.execution.queues:StartQueue.take_offset",
            "next((event for event in fresh if event.offset == offset), None)",
            "next((event for event in [*fresh][:1] if event.offset == offset), None)",
        ),
    ),
)
WAIT_AFTER_BEGIN: Final = Mutant(
    "that it waited is told after its begin",
    "Whoever claims next calls it again, though it was running.",
    ("fragile:end history crash:9",),
    (Change(f"{BEGIN_LOG}._write_begins", "self._entries.pop(begin.offset, None)", "pass"),),
)
ONLY_RECENT: Final = Mutant(
    "ids are read back as far as they are recent",
    "What stands below the watermark may be old and have run just now.",
    ("history wipe:4",),
    (Change(f"{READBACK}._remembered_from", "age_ms *= 2", "break"),),
)
KAFKA_UNTOLD: Final = Mutant(
    "a place that was set by hand is not committed at once",
    "The next owner takes it for set anew, and calls again what has run.",
    ("history crash:4",),
    (Change(f"{WRITE_AHEAD}.claim", "await claim.commit_now(self._position_to_commit())", "pass"),),
)
