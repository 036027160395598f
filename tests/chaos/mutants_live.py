"""Broken variants of live views: of their state, and of the states that hubs show."""

from __future__ import annotations

from typing import Final

from tests.chaos.mutants import Change, Mutant

PROCESSOR = "live.agents.processor:ViewProcessor"
PUSH = "live.hub.connection:Connection.push"
BEGINNING = "live.agents.processor:view_start"
CHANGE = "live.core.operations:PageChange"
SHARD = "live.hub.polling:_Shard"
STREAM = "live.hub.stream:EventStream"
ANYTHING = ("", "history", "lossy crash rebalance")
LOSSES = ("wipe:4", "wipe:4 history", "wipe:3 rollback:2 crash")

VIEWS: Final = (
    Mutant(
        "a new state has a clock of 0",
        "What has expired long ago is shown as what is behind.",
        ("", "wipe:4"),
        (Change(BEGINNING, "bounds.asked_ms, ViewMetadata(", "0, ViewMetadata("),),
    ),
    Mutant(
        "a lost view is read from the commit on",
        "What was put before is missing until it would have expired.",
        LOSSES,
        (Change(f"{PROCESSOR}._claim_state", "start = await", "start = claim.committed.offset if claim.committed else await"),),
    ),
    Mutant(
        "a view is shown while it is read",
        "A page counts up from 0 after a loss.",
        ("wipe:4 history", "freeze:3 wipe:4 history"),
        (Change(BEGINNING, "bounds.end if bounds.end > begin else None", "None"),),
    ),
    Mutant(
        "a view is shown before it is read to its end",
        "A page counts up from 0 after a loss.",
        ("freeze:3 wipe:4 history", "wipe:4 history"),
        (Change(f"{PROCESSOR}._metadata_at", "reading is None or fence + 1 < reading", "reading is None"),),
    ),
    Mutant(
        "the first put of a part wins",
        "An item that was put twice shows what it was before.",
        ANYTHING,
        (Change(f"{CHANGE}.put", "present.time_ms <= item.time_ms", "False"),),
    ),
    Mutant(
        "the wall clock expires",
        "What is unread would have prolonged an item: it goes, and comes back.",
        ("history", "freeze:3 history", "behind freeze:3"),
        (Change(f"{PROCESSOR}._expire_once", "caught_up=is_known", "caught_up=True"),),
    ),
    Mutant(
        "refused records are sent after the fence",
        "A crash in between loses them.",
        ("lossy crash:4 rebalance:4", "crash:6 history"),
        (
            Change(f"{PROCESSOR}._apply", "if part.rejected:", "if False:"),
            Change(
                f"{PROCESSOR}._apply",
                "claim.on_progress()",
                "await self._letters.send(part.rejected)\nclaim.on_progress()",
            ),
        ),
    ),
    Mutant(
        "what retention took is not said",
        "A view that lacks items says that it is whole.",
        ("retention:9 freeze:3", "retention:9 crash:3 history", "retention:9 wipe:3 history"),
        (
            Change(f"{PROCESSOR}._skip_removed", "whole_ms=max(self._metadata.whole_ms, whole_ms)", "whole_ms=0"),
            Change(BEGINNING, "if is_cut else 0", "if False else 0"),
        ),
    ),
    Mutant(
        "what is left of a lost state is kept",
        "Items that have been removed since are back.",
        LOSSES,
        (Change("live/claim.lua", "call('UNLINK', items_of .. page, data_of .. page)", "local unchanged"),),
    ),
    Mutant(
        "a put takes an item back in time",
        "A late copy of an event makes an item go too early.",
        ANYTHING,
        (Change("live/apply.lua", "{'GT'}", "{}"), Change("live/apply.lua", "not known or tonumber(known) <= time", "true")),
    ),
    Mutant(
        "versions count under any owner",
        "Hubs take the state of a new owner for that of the former one.",
        ("crash:4 rebalance:4", "wipe:3 rollback:2 crash"),
        (Change("live/poll.lua", "state.token == arg.known", "true"),),
    ),
    Mutant(
        "what one view says is lost with the poll of another",
        "Whoever has its page open sees it with the next change.",
        ("fragile:hub", "fragile:hub crash:4"),
        (Change("live.hub.polling:ViewSnapshot.update", "changed |=", "lost ="),),
    ),
    Mutant(
        "the clock says nothing",
        "A page whose worker is gone shows as true what has expired.",
        ("freeze:9",),
        (Change("live.core.state:state_of", "now_ms - oldest_ms > BEHIND_MS", "False"),),
    ),
    Mutant(
        "older states are written after newer ones",
        "A slow browser goes back.",
        ("", "lossy"),
        (
            Change(
                "live.hub.connection:Connection.push", "self._pending[view] = message", "self._pending.setdefault(view, message)"
            ),
        ),
    ),
    Mutant(
        "a tab that has closed is kept",
        "Who left is counted.",
        ("", "lossy"),
        (Change("live.hub.presence:Presence.leave", "del tabs[tab]", "pass"),),
    ),
    Mutant(
        "the definition of a state is ignored",
        "A view shows what it was once declared to show.",
        ("redefined", "redefined history"),
        (Change("live/claim.lua", "state.definition == arg.definition", "state.definition"),),
    ),
    Mutant(
        "who leaves one hub is gone from all",
        "A page that was reloaded by way of another hub is not counted.",
        ("",),
        (Change("live/present.lua", "score and tonumber(score) == closed[i]", "score"),),
    ),
    Mutant(
        "hubs do not see that Redis has lost who is there",
        "Too few are counted for most of an expiry.",
        ("tabs",),
        (Change("live/present.lua", "call('GET', marker) or arg.marker", "'marker'"),),
    ),
)

NAMED: Final = (
    Mutant(
        "a missing partition holds nothing",
        "A page shows 0 after a loss.",
        (),
        (
            Change(
                "live.core.state:state_of",
                "not present or len(present) < len(heads) or any(head.is_reading for head in present)",
                "not present",
            ),
        ),
    ),
    Mutant(
        "the newest clock decides whether a view is behind",
        "A page is shown as true while one of its partitions stands still.",
        (),
        (Change("live.core.state:state_of", "min(head.clock_ms for head in present)", "max(head.clock_ms for head in present)"),),
    ),
    Mutant(
        "an open transaction hides nothing",
        "A page is shown as true that lacks what was acknowledged long ago.",
        (),
        (Change("delivery.clocks:AcknowledgedUntil.at", "end <= fence + 1:", "True:"),),
    ),
    Mutant(
        "a token is seen when a page connects, and no more",
        "A page stays open after its token has expired, or its secret was withdrawn.",
        (),
        (
            Change(
                "live.hub.stream:EventStream._due", "self._allowed is not None and self._allowed[2]", "False and self._allowed[2]"
            ),
            Change(
                "live.hub.stream:EventStream.check", "self._allowed is not None and self._allowed[2]", "False and self._allowed[2]"
            ),
            Change("live.hub.stream:EventStream._is_allowed", "if self._allowed is None", "if True"),
        ),
    ),
    Mutant(
        "a removal before a put is forgotten",
        "An item that was removed and came back has the time it had before.",
        (),
        (
            Change(
                f"{CHANGE}.put",
                "present = self.puts.get(item.item)",
                "present = self.puts.get(item.item)\nself.removed.pop(item.item, None)",
            ),
        ),
    ),
    Mutant(
        "a poll that failed counts",
        "What it would have said is never asked for again.",
        (),
        (
            Change(
                f"{SHARD}.update",
                "return await self._poll(reader, pages)",
                "self._polled = (head.token, head.seq)\nreturn await self._poll(reader, pages)",
            ),
        ),
    ),
    Mutant(
        "a put before a removal stays",
        "What was removed is shown.",
        (),
        (Change(f"{CHANGE}.remove", "self.puts.pop(item, None)", "pass"),),
    ),
    Mutant(
        "two states have one number",
        "Hubs do not see the second one.",
        (),
        (Change("live.store.view_store:ViewStore.apply", "self._seq += 1", "self._seq = 1"),),
    ),
    Mutant(
        "expiry leaves the version",
        "Hubs do not see that items have left.",
        (),
        (Change("live/expire.lua", "call('HSET', pages, page, arg.seq)", "local unchanged"),),
    ),
)
"""Variants that schedules cannot detect, or detect too rarely: a separate test fails with each."""
