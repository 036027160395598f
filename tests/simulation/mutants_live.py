"""Broken variants of live views: of their state, and of the states that hubs show."""

from __future__ import annotations

from typing import Final

from tests.simulation.mutants import Change, Mutant

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
        "Items that expired long ago are shown, and the view is only labelled as behind.",
        ("", "wipe:4"),
        (Change(BEGINNING, "bounds.asked_ms, ViewMetadata(", "0, ViewMetadata("),),
    ),
    Mutant(
        "a lost view is restored only from the commit on",
        "Items that were put before are missing until they would have expired.",
        LOSSES,
        (Change(f"{PROCESSOR}._claim_state", "start = await", "start = claim.committed.offset if claim.committed else await"),),
    ),
    Mutant(
        "a view is shown while it is rebuilt",
        "A page counts up from 0 after a loss.",
        ("wipe:4 history", "freeze:3 wipe:4 history"),
        (Change(BEGINNING, "bounds.end if bounds.end > begin else None", "None"),),
    ),
    Mutant(
        "a rebuild ends before the end of the log",
        "A page counts up from 0 after a loss.",
        ("freeze:3 wipe:4 history", "wipe:4 history"),
        (Change(f"{PROCESSOR}._metadata_at", "reading is None or fence + 1 < reading", "reading is None"),),
    ),
    Mutant(
        "the first put of a batch wins",
        "An item that was put twice shows its older state.",
        ANYTHING,
        (Change(f"{CHANGE}.put", "present.time_ms <= item.time_ms", "False"),),
    ),
    Mutant(
        "items expire although the view lags",
        "An unread event would have prolonged the item: it disappears and returns.",
        ("history", "freeze:3 history", "behind freeze:3"),
        (Change(f"{PROCESSOR}._expire_once", "caught_up=is_known", "caught_up=True"),),
    ),
    Mutant(
        "a view sends dead letters after the fence moves",
        "A crash in between loses them.",
        ("lossy crash:4 rebalance:4", "crash:6 history"),
        (
            Change(f"{PROCESSOR}._apply", "if part.rejected:", "if False:"),
            Change(
                f"{PROCESSOR}._apply",
                "claim.on_progress()",
                "await self._dead_letters.send(part.rejected, self._on_unsent)\nclaim.on_progress()",
            ),
        ),
    ),
    Mutant(
        "loss by retention is not shown",
        "A view that lacks items is shown as complete.",
        ("retention:9 freeze:3", "retention:9 crash:3 history", "retention:9 wipe:3 history"),
        (
            Change(f"{PROCESSOR}._skip_removed", "whole_ms=max(self._metadata.whole_ms, whole_ms)", "whole_ms=0"),
            Change(BEGINNING, "if is_cut else 0", "if False else 0"),
        ),
    ),
    Mutant(
        "remains of a lost state are kept",
        "Items that have been removed since then return.",
        LOSSES,
        (Change("live/claim.lua", "call('UNLINK', items_of .. page, data_of .. page)", "local unchanged"),),
    ),
    Mutant(
        "dropped items of a former state are kept",
        "A page that is complete is shown with more items than it has.",
        ("redefined", "redefined history"),
        (Change("live/claim.lua", "call('UNLINK', due, dropped)", "call('UNLINK', due)"),),
    ),
    Mutant(
        "dropped items are not recorded",
        "A page shows the number that it keeps as the number that there are.",
        ("", "history"),
        (Change("live/apply.lua", "call('ZADD', dropped, 'GT',", "local unchanged = tostring("),),
    ),
    Mutant(
        "an older put sets the time of an item back",
        "A delayed copy of an event makes an item expire too early.",
        ANYTHING,
        (
            Change("live/apply.lua", "{'GT'}", "{}"),
            Change("live/apply.lua", "not stored_ms or tonumber(stored_ms) <= time", "true"),
        ),
    ),
    Mutant(
        "versions are compared across owners",
        "Hubs mistake the state of a new owner for that of the former one.",
        ("crash:4 rebalance:4", "wipe:3 rollback:2 crash"),
        (Change("live/poll.lua", "state.token == arg.known", "true"),),
    ),
    Mutant(
        "a poll does not report the pages that changed",
        "An open page keeps outdated values.",
        ("fragile:hub", "fragile:hub crash:4"),
        (Change("live.hub.polling:ViewSnapshot.update", "changed |=", "lost ="),),
    ),
    Mutant(
        "the clock of a view is not checked",
        "A page whose worker is gone shows expired items as current.",
        ("freeze:9",),
        (Change("live.core.state:state_of", "now_ms - oldest_ms > BEHIND_MS", "False"),),
    ),
    Mutant(
        "an unwritten state is not replaced by a newer one",
        "A slow browser goes back to an older state.",
        ("", "lossy"),
        (
            Change(
                "live.hub.connection:Connection.push", "self._pending[view] = message", "self._pending.setdefault(view, message)"
            ),
        ),
    ),
    Mutant(
        "a closed tab is kept",
        "Visitors who have left are counted.",
        ("", "lossy"),
        (Change("live.hub.presence:Presence.leave", "del tabs[tab]", "pass"),),
    ),
    Mutant(
        "the definition of a state is ignored",
        "A view shows items that its former definition selected.",
        ("redefined", "redefined history"),
        (Change("live/claim.lua", "state.definition == arg.definition", "state.definition"),),
    ),
    Mutant(
        "leaving one hub removes a tab from all hubs",
        "A page that was reloaded through another hub is not counted.",
        ("",),
        (Change("live/present.lua", "score and tonumber(score) == closed[i]", "score"),),
    ),
    Mutant(
        "hubs do not detect that Redis has lost the tabs",
        "Too few visitors are counted for most of an expiry.",
        ("tabs",),
        (Change("live/present.lua", "call('GET', marker) or arg.marker", "'marker'"),),
    ),
)

SHOWN_BY_TESTS: Final = (
    Mutant(
        "a missing partition counts as empty",
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
        "A page is shown as current although one of its partitions is stuck.",
        (),
        (Change("live.core.state:state_of", "min(head.clock_ms for head in present)", "max(head.clock_ms for head in present)"),),
    ),
    Mutant(
        "open transactions are ignored",
        "A page that lacks events acknowledged long ago is shown as current.",
        (),
        (Change("delivery.clocks:AcknowledgedUntil.at", "end <= fence + 1:", "True:"),),
    ),
    Mutant(
        "a token is checked only when a page connects",
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
        "a put discards the removal before it",
        "An item that was removed and put again has its former time.",
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
        "a failed poll counts as done",
        "The data that it would have returned is never requested again.",
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
        "a removal does not discard the put before it",
        "A removed item is shown.",
        (),
        (Change(f"{CHANGE}.remove", "self.puts.pop(item, None)", "pass"),),
    ),
    Mutant(
        "two states have the same number",
        "Hubs do not notice the second one.",
        (),
        (Change("live.store.view_store:ViewStore.apply", "self._seq += 1", "self._seq = 1"),),
    ),
    Mutant(
        "expiry does not change the version",
        "Hubs do not notice that items have expired.",
        (),
        (Change("live/expire.lua", "call('HSET', pages, page, arg.seq)", "local unchanged"),),
    ),
)
"""Variants that schedules cannot detect, or detect too rarely: a separate test fails with each."""
