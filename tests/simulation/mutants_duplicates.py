"""Broken variants of the ids by which folds ignore duplicates, each with the schedules that detect it."""

from __future__ import annotations

from typing import Final

from tests.simulation.mutants import Change, Mutant
from tests.simulation.mutants_protocol import FOLD, SEAL

IDS = ("dedupe", "dedupe lossy crash rebalance", "dedupe history lossy crash rebalance")
DYING_SCRIPTS = ("dedupe lossy crash rebalance dying:fold", "dedupe history lossy crash:2 zombie rebalance dying:fold")
STORES = "if dedupe then in_pages('HSET', ids_prefix .. plan.group, plan.new_ids) end"

DUPLICATES: Final = (
    Mutant(
        "duplicates are not detected",
        "An event that a producer has sent twice counts twice.",
        IDS,
        (Change("shared/ids.lua", "if known and known ~= offset then return true end", ""),),
    ),
    Mutant(
        "duplicates of earlier scripts are not detected",
        "A retry that is read with a later fetch, or by the next owner, counts twice.",
        IDS,
        (Change(FOLD, STORES, ""),),
    ),
    Mutant(
        "ids are stored after their group",
        "A script that fails in between has added events whose ids nobody knows, so their duplicates count.",
        DYING_SCRIPTS,
        (
            Change(FOLD, STORES, ""),
            Change(
                FOLD,
                "in_pages('ZADD', due, to_due)",
                "for _, plan in ipairs(plans) do\n"
                "  if plan.open then in_pages('HSET', ids_prefix .. plan.group, plan.new_ids) end\n"
                "end\n"
                "in_pages('ZADD', due, to_due)",
            ),
        ),
    ),
    Mutant(
        "an id that is stored makes its own event a duplicate",
        "After a script that failed half-way, its events are ignored, and lost.",
        DYING_SCRIPTS,
        (
            Change("shared/ids.lua", "if known and known ~= offset then return true end", "if known then return true end"),
            Change(
                "folding.core.model:MemoryShard.is_duplicate",
                "stored.ids.get(event.id, event.offset) == event.offset",
                "event.id not in stored.ids",
            ),
        ),
    ),
    Mutant(
        "duplicates are judged once per chunk",
        "An event is left out as the duplicate of one whose group was closed before the next script.",
        ("dedupe history lossy crash rebalance dying:fold", "dedupe history lossy crash rebalance"),
        (Change("folding.shard.shard:Shard.fold_once", "progress.forget_split_runs()", "pass"),),
    ),
    Mutant(
        "ids survive their group within a script",
        "The first event of the next group is ignored, and lost.",
        IDS,
        (
            Change(FOLD, "if dedupe then plan.ids, plan.new_ids = {}, {} end", ""),
            Change(FOLD, "unlink(plan.has_ids and {plan.key, ids_prefix .. plan.group} or {plan.key})", "unlink({plan.key})"),
        ),
    ),
    Mutant(
        "ids survive their group in Redis",
        "Nothing reads them any more, and they stay in Redis forever.",
        IDS,
        (Change(SEAL, "if arg.dedupe or not g or g.ids > 0 then", "if false then"),),
    ),
)
