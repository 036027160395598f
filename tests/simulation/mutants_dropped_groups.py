"""Broken variants of groups that an operator drops, each with the schedules that detect it."""

from __future__ import annotations

from typing import Final

from tests.simulation.mutants import Change, Mutant
from tests.simulation.mutants_protocol import SEAL

OPERATORS = ("operator:4", "lossy operator:4 crash", "history lossy operator:4 crash rebalance")
IS_IN_RANGE = "if not is_seen or everything or not is_held(group, g) then"
REMOVES = "seen[group], taken = true, taken + 1"

DROPS: Final = (
    Mutant(
        "a drop request applies to a group that opened later",
        "The group was emitted and opened again before its owner read the request, so no operator has seen the dropped events.",
        OPERATORS,
        (Change(SEAL, "local is_seen = g and g.first == tonumber(request:match('^%d+'))", "local is_seen = g"),),
    ),
    Mutant(
        "a former owner drops groups",
        "Its script is rejected, but the group is removed: the owner neither logs nor counts it.",
        ("lossy crash zombie:3 rebalance operator:6", "zombie:4 rebalance:4 operator:8"),
        (
            Change(
                SEAL,
                "if refused then return refused end",
                "if refused then\n"
                "  for _, group in ipairs(call('HKEYS', drop)) do\n"
                "    call('UNLINK', prefix .. group)\n"
                "    call('ZREM', due, group)\n"
                "    call('ZREM', first, group)\n"
                "  end\n"
                "  return refused\n"
                "end",
            ),
        ),
    ),
    Mutant(
        "the contents of a dropped group are not removed",
        "Nothing reads them any more, and they stay in Redis forever.",
        OPERATORS,
        (Change(SEAL, REMOVES, f"gone_keys[#gone_keys] = nil\n{REMOVES}"),),
    ),
    Mutant(
        "drop requests are not removed",
        "Every pass reads them again, forever.",
        OPERATORS,
        (Change(SEAL, "in_pages('HDEL', drop, done)", "local unchanged"),),
    ),
)

DROPPED_WITHIN_A_RANGE: Final = (
    Mutant(
        "a group is dropped while a range may still add to it",
        "A script that failed half-way has added a part of the range, and the next one opens the group again with all of it.",
        (),
        (Change(SEAL, IS_IN_RANGE, "if true then"),),
    ),
)
"""Schedules detect it too rarely: a script must fail half-way just before a drop. The test of the script fails with it."""
