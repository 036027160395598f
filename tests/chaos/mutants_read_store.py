"""The broken variants of what keeps the read store from going back."""

from __future__ import annotations

from typing import Final

from tests.chaos.mutants import Change, Mutant

MERGE = "read_store.merge:merge"
DECIDE = "read_store.merge:decide"

READ_STORE: Final = (
    Mutant(
        "one version per group",
        "Of two records out of order the older one is dropped whole, with a name that only it carries.",
        (),
        (
            Change(
                MERGE,
                "known = stored.get(change.cell)",
                "known = stored.get(change.cell)\n"
                "highest = max((held.version for cell, held in stored.items() if cell[:2] == change.cell[:2]), default=-1)\n"
                "if highest > change.version:\n"
                "    merged.stale += 1\n"
                "    continue",
            ),
        ),
    ),
    Mutant(
        "an equal value keeps its old version",
        "A record between the two versions gets through, and the cell goes back.",
        (),
        (Change(MERGE, "merged.confirmed.append(change)", "pass"),),
    ),
    Mutant(
        "no version guard",
        "The last writer wins, however old its record is.",
        (),
        (Change(DECIDE, "if change.version < stored.version:", "if False:"),),
    ),
    Mutant(
        "the first record wins",
        "Of several records in one batch the oldest one is taken.",
        (),
        (Change("read_store.merge:newest", "change.version > known.version", "change.version < known.version"),),
    ),
)
