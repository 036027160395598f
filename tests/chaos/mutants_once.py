"""The broken variants of what keeps a subscriber from being called twice for one event."""

from __future__ import annotations

from typing import Final

from tests.chaos.mutants import Change, Mutant

PROCESSOR = "subscribers.processor:SubscriberProcessor"
ONCE = "subscribers.once:OnceProcessor"
NOTING = "subscribers.noting:Noting"
CRASHES = ("lossy crash:4 rebalance:4", "lossy crash zombie rebalance drops history")

UNKNOWN: Final = (
    Mutant(
        "runs before it is noted",
        "What runs when its process dies is unknown to the next one.",
        CRASHES,
        (
            Change(
                f"{NOTING}.begin", "self._changed.set()", "call.is_unnoted = False\nself._slots.noted([call])\nself._changed.set()"
            ),
            Change(f"{NOTING}._begin", "self._slots.noted(begun)", "pass"),
        ),
    ),
    Mutant(
        "begun is forgotten at the claim",
        "What was running when its process died runs again.",
        CRASHES,
        (Change(f"{ONCE}._instead", "if not work.is_interrupted:", "if True:"),),
    ),
    Mutant(
        "the id is written at the end",
        "An event that is published twice runs twice, side by side.",
        ("history", *CRASHES),
        (
            Change(f"{ONCE}._begins", "Entry(work.attempts), made.own_id", "Entry(work.attempts), ''"),
            Change(
                f"{NOTING}._end",
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
        (Change(f"{ONCE}._take_over", "window.also_finished([Run(0, kept.fence), *note.above.finished])", "pass"),),
    ),
    Mutant(
        "a late end counts",
        "An end that was on its way takes back what a later one has said.",
        ("fragile:end lossy crash:6", "fragile:end crash:6 history"),
        (Change("subscribers/end.lua", "if arg.told <= tonumber(state.told or 0) then return {'ok'} end", ""),),
    ),
    Mutant(
        "finished before the letter is acknowledged",
        "A letter that is lost with its process is nowhere.",
        CRASHES,
        (
            Change(
                "subscribers.letters:Letters.put",
                "self._has_some.set()",
                "self._on_acknowledged([work])\nself._has_some.set()",
            ),
        ),
    ),
    Mutant(
        "a failure is tried again",
        "Nobody knows what the attempt has done.",
        ("",),
        (Change(f"{PROCESSOR}._failed", "is_repeatable=self.is_repeatable", "is_repeatable=True"),),
    ),
    Mutant(
        "own running ones are taken for interrupted",
        "A partition that is claimed again by the same process makes letters of what runs in it.",
        ("drops:9 rebalance:2",),
        (Change(f"{PROCESSOR}.revoke", "max(0.0, seconds - LEAVE_SECONDS)", "0.0"),),
    ),
)
