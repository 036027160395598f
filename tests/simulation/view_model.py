"""The states that live views must have in a simulation, and that hubs may show."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, cast

from streams_app.delivery.group_consumer import PartitionCommit
from streams_app.delivery.producer import OutgoingRecord
from streams_app.errors import BadEventError
from streams_app.live.core.model import PageContent, contents_by_page
from streams_app.live.core.record_effects import Put, Removal, ViewRule
from streams_app.live.core.state import BEHIND_MS, Item, ViewState
from streams_app.live.store.keys import ViewKeys
from streams_app.settings.live import LiveView
from tests.helpers.virtual_loop import EPOCH_MS, LoopClock
from tests.simulation.kafka import Record
from tests.simulation.ledger import positions_in

if TYPE_CHECKING:
    from tests.simulation.world import World

LATE_MS: Final = 1_500
"""A hub evaluates its data once a second, also while Redis does not answer."""

PAGES: Final = "pqrs"

Pages = dict[str, PageContent]
"""Page → its content."""


@dataclass(frozen=True, slots=True)
class Stored:
    """A state that a view had in Redis.

    Attributes:
        clock_ms: Time for which it is valid.
        whole_ms: Time before which events may be missing.
        is_shown: Whether hubs may show it.
        pages: Contents of the pages.
    """

    clock_ms: int
    whole_ms: int
    is_shown: bool
    pages: Pages

    def shows(self, state: ViewState, page: str) -> bool:
        """Whether a message shows this state."""
        items, has_dropped = self.pages.get(page, PageContent([]))
        shown = None if state.items is None else list(state.items)
        return (state.count, state.more) == (len(items), has_dropped) and (shown is None or shown == items[::-1][: len(shown)])


class ViewModel:
    """One view of a schedule: the meaning of its log, its states in Redis, and the states that were shown.

    Attributes:
        stored: Every state that it had in Redis, in order.
        rejected: Offsets whose dead letter the broker has.
    """

    def __init__(self, world: World, view: LiveView, keys: ViewKeys) -> None:
        self.view = view
        self.stored: list[Stored] = []
        self.rejected: set[int] = set()
        self._world = world
        self._keys = keys
        self._rule = ViewRule(view, 1_000_000)
        self._lost: dict[tuple[bytes, int], frozenset[int]] = {}
        self._commit_end = 0

    # ---- state in Redis

    def meta(self) -> dict[str, bytes]:
        """Return token, fence and clocks."""
        found = cast("Mapping[bytes, bytes]", self._world.server.client.hgetall(self._keys.meta))
        return {name.decode(): value for name, value in found.items()}

    def record_state(self) -> dict[str, bytes]:
        """Store the state in Redis, if it differs from the previous one.

        Returns:
            Token, fence and clocks.
        """
        # One round trip, because this is called before and after each script.
        pipe = self._world.server.client.pipeline(transaction=False)
        pipe.hgetall(self._keys.meta)
        pipe.hkeys(self._keys.pages)
        pipe.zrange(self._keys.dropped, 0, -1)
        for page in PAGES:
            pipe.zrange(self._keys.items_prefix + page, 0, -1, withscores=True)
            pipe.hgetall(self._keys.data_prefix + page)
        found, index, dropped, *contents = pipe.execute()
        meta = {name.decode(): value for name, value in found.items()}
        now = Stored(0, 0, False, {})
        if "fence" in meta:
            pages = self._pages(index, dropped, contents)
            now = Stored(int(meta["clock"]), int(meta["whole_ms"]), meta["reading"] == b"", pages)
        if not self.stored or now != self.stored[-1]:
            self.stored.append(now)
        return meta

    def _pages(self, index: list[bytes], dropped: list[bytes], contents: list[Any]) -> Pages:
        """Return the stored pages, independent of the index."""
        pages = Pages()
        for page, items, data in zip(PAGES, contents[::2], contents[1::2], strict=True):
            if self.view.kind == "list" and {name for name, _ in items} != data.keys():
                self._world.report_fault("state", f"{self.view.name} has payloads of {sorted(data)}, but items {items}")
            if items or page.encode() in dropped:
                stored = [Item(name.decode(), int(time_ms), data.get(name, b"")) for name, time_ms in items]
                pages[page] = PageContent(stored, page.encode() in dropped)
        indexed = {page.decode() for page in index}
        if indexed != pages.keys():
            self._world.report_fault("state", f"{self.view.name} indexes {indexed} as pages with items, but these are {set(pages)}")
        return pages

    # ---- required state

    def _meaning(self, offset: int) -> Put | Removal | None:
        entry = self._world.log.entries[offset]
        try:
            return self._rule.effect_of(0, entry, entry.born_ms) if entry else None
        except BadEventError:
            return None

    def _is_rejected(self, entry: Record) -> bool:
        try:
            self._rule.effect_of(0, entry, entry.born_ms)
        except BadEventError:
            return True
        return False

    def on_script(self, name: str, args: Mapping[str, Any], reply: Any) -> None:
        """Check the state after a script that claims, changes or expires it."""
        meta = self.record_state()
        if "fence" not in meta:
            return
        fence, start = int(meta["fence"]), self._world.log.start
        place = meta["token"], fence
        if name == "claim":
            lost = self._lost.get((b"", fence), frozenset()) if reply[0] == b"ok" else frozenset(range(min(start, fence + 1)))
            self._lost[place] = lost
        elif name == "apply" and reply[0] == b"ok":
            first = int(args["fence"]) + 1
            lost = frozenset(range(first, fence + 1)) if not args["changes"] and fence < start else frozenset()
            self._lost[place] = self._lost.get((meta["token"], first - 1), frozenset()) | lost
            self._check_rejected(first, fence, lost)
        self._lost[b"", fence] = self._lost.get(place, frozenset())
        self._check(fence, self._lost.get(place, frozenset()))

    def _check(self, fence: int, lost: frozenset[int]) -> None:
        now, log = self.stored[-1], self._world.log
        if now.clock_ms < EPOCH_MS:
            self._world.report_fault("clock", f"{self.view.name} has a clock of {now.clock_ms}")
        meant = [self._meaning(offset) for offset in range(fence + 1) if offset not in lost]
        expected = contents_by_page(meant, now.clock_ms, self.view.expiry_ms, self.view.keeps)
        if expected != now.pages:
            self._world.report_fault("state", f"{self.view.name} at {fence}, {now.clock_ms} has {now.pages}, not {expected}")
        until = sum(readable_ms < now.clock_ms for readable_ms in log.readable_ms)
        if now.is_shown and fence + 1 < until:
            self._world.report_fault("unread", f"{self.view.name} is shown as of {now.clock_ms} with fence {fence}, not {until}")
        for offset in lost:
            one = self._meaning(offset)
            if isinstance(one, Put) and one.item.time_ms + self.view.expiry_ms > max(now.whole_ms, now.clock_ms):
                self._world.report_fault("incomplete", f"{self.view.name} lacks {one} without a label: {now.whole_ms}")

    def _check_rejected(self, first: int, last: int, lost: frozenset[int]) -> None:
        entries = self._world.log.entries
        due = {at for at in range(first, last + 1) if (entry := entries[at]) and self._is_rejected(entry)}
        if missing := due - self.rejected - lost:
            self._world.report_fault("fence", f"{self.view.name} has passed {sorted(missing)}, which have no dead letter")

    def on_commit(self, at: int) -> None:
        """Check that a commit is not above the applied offsets."""
        fences = [fence for _, fence in self._lost]
        if at > max([self._world.log.start, *(fence + 1 for fence in fences)]):
            self._world.report_fault("commit", f"{self.view.name} committed {at}, applied are {sorted(set(fences))}")

    # ---- permitted messages

    def on_shown(self, state: ViewState, page: str, since: int) -> int:
        """Check a message of a hub.

        Args:
            state: State in the message.
            page: Page of the browser.
            since: Index in :attr:`stored` of the state that the browser received last: an older state is a violation.

        Returns:
            The index of the state in the message.
        """
        now_ms = LoopClock().now_ms()
        self.record_state()  # Redis may have lost something since the last script
        if state.state == "reading":
            if state.count is not None or state.items is not None:
                self._world.report_fault("reading", f"{self.view.name} shows values while it is rebuilt: {state}")
            return since
        if state.state == "behind":
            until = state.since_ms or 0
            since = 0
        else:
            until = now_ms
        for place in range(since, len(self.stored)):
            stored = self.stored[place]
            is_recent = until - BEHIND_MS - LATE_MS <= stored.clock_ms <= until + LATE_MS
            is_whole = state.state != "ok" or stored.whole_ms <= now_ms + LATE_MS
            if stored.is_shown and is_recent and is_whole and stored.shows(state, page):
                return place
        recent = self.stored[max(since, len(self.stored) - 5) :]
        self._world.report_fault("shown", f"{page} of {self.view.name} shows {state} at {now_ms}, Redis had {recent}")
        return since

    def is_whole(self) -> bool:
        """Whether all readable events are applied, and the view may be shown."""
        meta = self.meta()
        return int(meta.get("fence", b"-1")) + 1 >= self._world.log.end and meta.get("reading") == b""

    def check_end(self) -> None:
        """Check that every rejected event is a dead letter, unless retention removed it."""
        for offset in range(self._world.log.start, self._world.log.end):
            entry = self._world.log.entries[offset]
            if entry and self._is_rejected(entry) and offset not in self.rejected and self._is_recent(entry):
                self._world.report_fault("lost", f"{self.view.name} never rejected {offset}")

    def _is_recent(self, entry: Record) -> bool:
        """Whether an event is read again after any loss."""
        return entry.timestamp + self.view.expiry_ms > LoopClock().now_ms()


class ViewLedger:
    """All views of a schedule; the world reports the events to it.

    Attributes:
        records: Number of scripts that have changed something.
        highest: View → highest offset ever committed.
    """

    def __init__(self, models: Mapping[str, ViewModel]) -> None:
        self.models = models
        self.records = 0
        self.highest: dict[str, int] = {}

    def on_record(self, record: OutgoingRecord) -> None:
        """Handle a dead letter that the broker has appended, acknowledged or not."""
        headers = dict(record.headers)
        self.models[headers["view"].decode()].rejected.add(int(headers["source-offset"]))

    def on_known_loss(self, name: str, first: int, last: int, highest: Mapping[str, int]) -> None:
        """Handle a report that retention removed offsets."""

    def on_loss(self, name: str) -> None:
        """Handle a view that Redis is about to lose."""

    def on_commit(self, before: PartitionCommit | None, commit: PartitionCommit, claimed_at: int) -> None:
        """Check a commit that the coordinator has accepted."""
        for name, at in positions_in(commit).items():
            self.highest[name] = max(at, self.highest.get(name, 0))
            self.models[name].on_commit(at)
