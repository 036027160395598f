"""Broken variants of the rules that keep a read store from going back, and from skipping records."""

from __future__ import annotations

from typing import Final

from tests.chaos.mutants import Change, Mutant

MERGE = "read_store.core.merge:merge"
DECIDE = "read_store.core.merge:decide"

READ_STORE: Final = (
    Mutant(
        "one version per group",
        "Of two records out of order the older one is dropped whole, with a name that only it carries.",
        (),
        (
            Change(
                MERGE,
                "present = stored.get(change.cell)",
                "present = stored.get(change.cell)\n"
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
        (Change("read_store.core.merge:newest", "change.version > former.version", "change.version < former.version"),),
    ),
)

SYNCING: Final = (
    Mutant(
        "the store does not ask where a transaction goes on",
        "A server that has lost its last transactions takes the next ones, and what lies between is in neither.",
        ("failover:3",),
        (Change("read_store.sqlite.store:SqliteStore._apply", "if found not in (step.after, step.to):", "if False:"),),
    ),
    Mutant(
        "nobody looks at the store in silence",
        "Of a quiet partition nobody notices that the server has lost the last transactions.",
        ("failover:3",),
        (Change("read_store.sync.processor:StoreProcessor._check_progress", "if stored != self._stored:", "if False:"),),
    ),
    Mutant(
        "a store that stands elsewhere is written to from there",
        "What lies between where it stands and where it was left is passed over.",
        ("failover:3",),
        (
            Change(
                "read_store.sync.processor:StoreProcessor._sync_batch",
                "step = ProgressStep(self._tp, self._stored, next_offset)",
                "stored = (await self._processors.run_in_turn(self, self._sync.progress)).get(self._tp)\n"
                "step = ProgressStep(self._tp, stored, next_offset)",
            ),
        ),
    ),
    Mutant(
        "the first transaction of a range notes its end",
        "A crash between two transactions loses what follows.",
        ("lossy crash zombie rebalance drops history",),
        (Change("read_store.sync.processor:_steps", "taken[at + 1][0].offset if at + 1 < len(taken) else batch.end", "batch.end"),),
    ),
    Mutant(
        "what is delivered may be committed",
        "The commit is ahead of the store.",
        ("fragile:store crash",),
        (
            Change(
                "read_store.sync.processor:StoreProcessor.deliver",
                "self._arrived.put_nowait(batch)",
                "self._next = batch.end\nself._arrived.put_nowait(batch)",
            ),
        ),
    ),
    Mutant(
        "what the store refuses is passed over",
        "A store that is away loses names.",
        ("fragile:store crash",),
        (
            Change(
                "read_store.sync.processor:StoreProcessor._sync_batch",
                "done = await self._processors.run_in_turn(self, partial(self._processors.sync_once, step, left))",
                "try:\n    done = await self._sync.sync_once(step, left)\n"
                "except ProgressError:\n    raise\n"
                "except Exception:\n    self._next, self.in_flight = next_offset, self.in_flight - len(left)\n    break",
            ),
        ),
    ),
    Mutant(
        "every range is taken",
        "What a rebalance drops is passed over.",
        ("lossy drops:3 rebalance:2",),
        (
            Change(
                "delivery.ranges:Ranges.deliver",
                "if any(batch.begin > served.next for served in self.served.values()):",
                "if False:",
            ),
        ),
    ),
)
