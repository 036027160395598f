"""Broken variants that are detected only with a special kind of subscriber that may not be called twice."""

from __future__ import annotations

from typing import Final

from tests.chaos.mutants import Change, Mutant
from tests.chaos.mutants_once import BEGIN_LOG, READBACK, WRITE_AHEAD

NO_FRESH: Final = Mutant(
    "the lowest event is only expected first among fresh ones",
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
WAIT_AFTER_BEGIN: Final = Mutant(
    "the waiting entry is written after the begin",
    "The next owner calls the event again, although it was running.",
    ("fragile:end history crash:9",),
    (Change(f"{BEGIN_LOG}._write_begins", "self._entries.pop(begin.offset, None)", "pass"),),
)
ONLY_RECENT: Final = Mutant(
    "only recent ids are read back",
    "The event at the watermark may be old although it has run just now.",
    ("history wipe:4",),
    (Change(f"{READBACK}._remembered_from", "age_ms *= 2", "break"),),
)
KAFKA_UNTOLD: Final = Mutant(
    "an offset set by hand is not committed at once",
    "The next owner counts it as newly set, and calls events again that have run.",
    ("history crash:4",),
    (Change(f"{WRITE_AHEAD}.claim", "await claim.commit_now(self._position_to_commit())", "pass"),),
)
