"""Broken variants of entries of the outbox that have several records."""

from __future__ import annotations

from typing import Final

from tests.simulation.mutants import Change, Mutant
from tests.simulation.mutants_protocol import FINISH, FOLD, SEAL

OUTBOX = "folding.shard.outbox:Outbox"
HAS_BLOCK = "if count > 1 and not state.format then"
ADDS = "if count > 0 then call('ZADD', outbox, lowest, records) end"

BLOCKS: Final = (
    Mutant(
        "an entry is removed with the first of its records that is acknowledged",
        "The other records are lost with the process.",
        ("lossy:3", "lossy:2 crash:2"),
        (
            Change(
                f"{OUTBOX}.finished", "if gone.issuperset(map(_ID, block.records))", "if gone.intersection(map(_ID, block.records))"
            ),
        ),
    ),
    Mutant(
        "the first offset of an entry is that of its last record",
        "The watermark passes events whose records are not delivered.",
        ("lossy crash:2 wipe:2", "lossy:2 wipe:3"),
        (
            Change(SEAL, "lowest = math.min(lowest, g.first)", "lowest = g.first"),
            Change(FOLD, "lowest_sealed = math.min(lowest_sealed, plan.open.first)", "lowest_sealed = plan.open.first"),
        ),
    ),
)

FORMATS_OF_BLOCKS: Final = (
    Mutant(
        "the format is written after the entry",
        "If the script fails in between, a worker of an older version claims the shard, and ends when it reads the entry.",
        (),
        (Change("shared/records.lua", HAS_BLOCK, f"{ADDS}\n{HAS_BLOCK}"),),
    ),
    Mutant(
        "the format is removed while entries of several records remain",
        "A worker of an older version claims the shard, and ends when it reads one.",
        (),
        (
            Change(
                "shared/shard.lua",
                "if has_singles or call('ZCARD', outbox) == 0 then",
                "if state.format then",
            ),
        ),
    ),
    Mutant(
        "the format stays when the outbox is empty",
        "Older workers can never claim the shard again, as in a rolling upgrade.",
        (),
        (Change(FINISH, "drop_format()", ""),),
    ),
)
"""No schedule has an older version: the tests of the scripts fail with these variants."""
