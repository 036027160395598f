"""Broken variants of the rules that keep a read store from going back, and from skipping records."""

from __future__ import annotations

from typing import Final

from tests.simulation.mutants import Change, Mutant

MERGE = "read_store.core.merge:merge"
DECIDE = "read_store.core.merge:decide"

READ_STORE: Final = (
    Mutant(
        "one version per group",
        "Of two records out of order, the older one is dropped whole, including a name that only it has.",
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
        "A record between the two versions is applied, and the cell goes back.",
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
        "the oldest record of a batch wins",
        "Of several records in a batch, the oldest value is written.",
        (),
        (Change("read_store.core.merge:newest", "change.version > former.version", "change.version < former.version"),),
    ),
)

SYNCING: Final = (
    Mutant(
        "a store transaction does not compare its progress",
        "A server that has lost its last transactions accepts the next ones, which leaves a gap.",
        ("failover:3",),
        (Change("read_store.sqlite.store:SqliteStore._apply", "if found not in (step.after, step.to):", "if False:"),),
    ),
    Mutant(
        "the store is not checked while idle",
        "On an idle partition, nothing detects that the server has lost the last transactions.",
        ("failover:3",),
        (Change("read_store.sync.processor:StoreProcessor._check_checkpoint", "if stored != self._stored:", "if False:"),),
    ),
    Mutant(
        "writing continues after the store went back",
        "The records between the progress of the store and that of the worker are skipped.",
        ("failover:3",),
        (
            Change(
                "read_store.sync.processor:StoreProcessor._sync_batch",
                "step = CheckpointStep(self._tp, self._stored, next_offset)",
                "stored = (await self._processors.run_in_turn(self, self._sync.store.checkpoints)).get(self._tp)\n"
                "step = CheckpointStep(self._tp, stored, next_offset)",
            ),
        ),
    ),
    Mutant(
        "the first transaction stores the end of its range",
        "A crash between two transactions loses the rest of the range.",
        ("lossy crash zombie rebalance drops history",),
        (Change("read_store.sync.processor:_parts", "taken[at + 1][0].offset if at + 1 < len(taken) else batch.end", "batch.end"),),
    ),
    Mutant(
        "delivered records are committed before they are written",
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
        "records that the store fails to write are skipped",
        "An unavailable store loses names.",
        ("fragile:store crash",),
        (
            Change(
                "read_store.sync.processor:StoreProcessor._sync_batch",
                "done = await self._processors.run_in_turn(self, partial(self._processors.sync_once, step, left))",
                "try:\n    done = await self._sync.sync_once(step, left)\n"
                "except CheckpointError:\n    raise\n"
                "except Exception:\n    self._next, self.in_flight = next_offset, self.in_flight - len(left)\n    break",
            ),
        ),
    ),
    Mutant(
        "read store: no chain rule",
        "Records that a rebalance drops are skipped.",
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
