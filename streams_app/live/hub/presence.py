"""Presence: stores in Redis which browser tabs are connected to this hub, and counts the tabs of all hubs."""

from __future__ import annotations

import logging
import random
from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple

from streams_app.live.core.state import BEHIND_MS, ViewState, reading
from streams_app.live.store.view_store import ClosedTab, PagePresence, PageTabs, PresenceStore
from streams_app.settings.live import LiveView

logger = logging.getLogger(__name__)

LAPSE_MS: Final = 5_000
"""Time in ms for which a closed tab still counts, so that a tab that is reloaded does not appear to leave."""

SETTLE_MS: Final = 2_000
"""Time in ms for which the state is ``reading`` after Redis has lost data or was not reached for a while.

Each hub writes its tabs once a second. So the tabs of all hubs are stored again when pages get a count.
"""

WARN_MS: Final = 60_000
"""Minimum time between two log messages about a client with too many tabs."""

MAX_NAMED: Final = 200
PAGES_A_SCRIPT: Final = 500


@dataclass(slots=True)
class _Tab:
    """A browser tab that is connected to this hub.

    Attributes:
        client: The address or user that has opened the tab; "": the number of tabs is not limited.
        connections: Number of its connections; a reload may open the new one before the old one is closed.
        until_ms: Expiry time of the tab, as this hub last tried to write it; 0 if the tab is not counted, or not yet.
        is_due: Whether the tab must be written even if its stored expiry is far enough in the future.
    """

    client: str
    connections: int = 1
    until_ms: float = 0
    is_due: bool = True


class _ClosedTab(NamedTuple):
    """A counted tab without connections: Redis contains it until it expires, or it is to be written that it has closed."""

    client: str
    until_ms: float


class Presence:
    """Writes this hub's open tabs of one presence view to Redis, and counts the tabs of all hubs.

    For a page, at most ``tabs_per_client`` tabs of one client are counted; 0: no limit.
    """

    def __init__(self, view: LiveView, store: PresenceStore, tabs_per_client: int = 0) -> None:
        self.view = view
        self._store = store
        self._tabs_per_client = tabs_per_client
        self._warned_ms = -WARN_MS
        self._open: dict[str, dict[str, _Tab]] = {}
        self._closed: dict[str, dict[str, _ClosedTab]] = {}
        self._lapsing: dict[str, dict[str, _ClosedTab]] = {}
        self._found: dict[str, PagePresence] = {}
        self._marker: str | None = None
        self._seen_ms = 0
        self._settled_ms = 0
        # Other hubs use other fractions of a millisecond, so the score of a tab shows which hub wrote it. A tab that has closed
        # here remains if another hub has written it since.
        self._fraction = random.random()  # no secret

    def join(self, page: str, tab: str, client: str = "") -> None:
        """Add a connection of a tab; the tab counts from the next call of :meth:`present_once`.

        A tab does not count as long as the maximum number of tabs of its client is open on the page, or has closed just now.
        """
        tabs = self._open.setdefault(page, {})
        if tab in tabs:
            tabs[tab].connections += 1
            return
        lapsing, closed = self._lapsing.get(page, {}).pop(tab, None), self._closed.get(page, {}).pop(tab, None)
        before = closed or lapsing
        tabs[tab] = _Tab(client) if before is None else _Tab(before.client, until_ms=before.until_ms)

    def leave(self, page: str, tab: str) -> None:
        """Remove one connection of a tab.

        A tab without connections expires soon after the next :meth:`present_once`, unless the tab joins again before that call.
        """
        tabs = self._open[page]
        shown = tabs[tab]
        shown.connections -= 1
        if shown.connections == 0:
            del tabs[tab]
            if shown.until_ms:
                self._closed.setdefault(page, {})[tab] = _ClosedTab(shown.client, shown.until_ms)
            if not tabs:
                del self._open[page]

    async def present_once(self, now_ms: int, pages: Collection[str]) -> set[str]:
        """Write to Redis the tabs of this hub that have opened, closed or would soon expire, and count the tabs of all hubs.

        If this raises, the next call writes all tabs again.

        Args:
            now_ms: Clock of Redis.
            pages: Pages that are open on this hub.

        Returns:
            Those of ``pages`` whose count or tabs have changed since the previous call.
        """
        self._forget_lapsed(now_ms)
        asked = list(dict.fromkeys([*pages, *self._open, *self._closed]))
        if not asked:
            # The marker expires while no hub writes it. A new marker then does not mean that Redis has lost data, and the time
            # until the next page opens does not mean that Redis was away.
            self._marker, self._found, self._seen_ms = None, {}, 0
            return set()
        was_away = bool(self._seen_ms) and now_ms - self._seen_ms > BEHIND_MS
        found: dict[str, PagePresence] = {}
        is_lost = False
        part: dict[str, PageTabs] = {}
        try:
            for start in range(0, len(asked), PAGES_A_SCRIPT):
                part = {page: self._tabs(page, now_ms) for page in asked[start : start + PAGES_A_SCRIPT]}
                reply = await self._store.present(part, now_ms, named=self.view.people)
                found |= reply.pages
                is_lost = is_lost or self._marker not in (None, reply.marker)
                self._marker = reply.marker
        except Exception:  # any error, which is re-raised: Redis may have applied a part
            self._write_all()
            self._close_once_more(part)
            raise
        if is_lost or was_away:
            self._settled_ms = now_ms + SETTLE_MS
        if is_lost:
            self._write_all()
            self._seen_ms = now_ms
            return await self.present_once(now_ms, pages)
        before, self._found, self._seen_ms = self._found, {page: found[page] for page in pages}, now_ms
        return {page for page in pages if self._found[page] != before.get(page)}

    def _tabs(self, page: str, now_ms: int) -> PageTabs:
        expiry_ms = self.view.expiry_ms
        due: dict[str, float] = {}
        lapse_ms = now_ms + LAPSE_MS
        closed: list[ClosedTab] = []
        for name, (client, written_ms) in self._closed.pop(page, {}).items():
            closed.append(ClosedTab(name, written_ms, min(written_ms, lapse_ms)))
            self._lapsing.setdefault(page, {})[name] = _ClosedTab(client, closed[-1].until_ms)
        uncounted = self._uncounted(page, now_ms)
        for name, tab in self._open.get(page, {}).items():
            if name in uncounted:
                continue
            if tab.is_due or tab.until_ms < now_ms + expiry_ms * 2 // 3:
                tab.until_ms, tab.is_due = now_ms + expiry_ms + self._fraction, False
                due[name] = tab.until_ms
        return PageTabs(due, closed)

    def _uncounted(self, page: str, now_ms: int) -> set[str]:
        """Return the open tabs that are not counted, because their client has too many."""
        tabs = self._open.get(page, {})
        new = [name for name, tab in tabs.items() if not tab.until_ms and tab.client]
        if not new or not self._tabs_per_client:
            return set()
        counted = Counter(tab.client for tab in self._lapsing.get(page, {}).values())
        counted.update(tab.client for tab in tabs.values() if tab.until_ms)
        uncounted = set()
        for name in new:
            client = tabs[name].client
            if counted[client] >= self._tabs_per_client:
                uncounted.add(name)
            else:
                counted[client] += 1
        if uncounted and now_ms - self._warned_ms >= WARN_MS:
            self._warned_ms = now_ms
            logger.warning(
                "a client has more tabs than live_server.tabs_per_client, the others are not counted view=%s client=%s",
                self.view.name, tabs[next(iter(uncounted))].client,
            )  # fmt: skip
        return uncounted

    def _forget_lapsed(self, now_ms: int) -> None:
        lapsing = {page: {name: tab for name, tab in tabs.items() if tab.until_ms > now_ms} for page, tabs in self._lapsing.items()}
        self._lapsing = {page: tabs for page, tabs in lapsing.items() if tabs}

    def _write_all(self) -> None:
        for tabs in self._open.values():
            for tab in tabs.values():
                tab.is_due = True

    def _close_once_more(self, part: Mapping[str, PageTabs]) -> None:
        for page, tabs in part.items():
            for tab, written_ms, _ in tabs.closed:
                if tab not in self._open.get(page, {}):
                    lapsing = self._lapsing.get(page, {}).get(tab)
                    client = lapsing.client if lapsing is not None else ""
                    self._closed.setdefault(page, {}).setdefault(tab, _ClosedTab(client, written_ms))

    def state(self, page: str, now_ms: int) -> ViewState:
        """Return the state of a page; ``reading`` if its tabs were not counted, or other hubs may not have written theirs yet."""
        found = self._found.get(page)
        if found is None or now_ms < self._settled_ms:
            return reading(self.view)
        is_behind = now_ms - self._seen_ms > BEHIND_MS
        people = None
        if self.view.people:
            people = tuple(sorted({name for tab in found.tabs if (name := tab.partition(" ")[2])})[:MAX_NAMED])
        return ViewState(
            self.view.name, self.view.kind, "behind" if is_behind else "ok", self.view.expiry_ms,
            self._seen_ms if is_behind else None, found.count, people=people,
        )  # fmt: skip

    @property
    def as_of_ms(self) -> int:
        """Time of the last count, by the clock of Redis; 0 before the first count."""
        return self._seen_ms

    def status(self, now_ms: int) -> tuple[str, int | None]:
        """Return the state of the view; if it is ``behind``, also the time at which the open tabs were last counted, else None.

        * ``reading`` for :data:`SETTLE_MS` after Redis has lost data or was not reached for a while: other hubs may not have
          written their tabs yet.
        * ``behind`` if pages are open, but their tabs were not counted for more than :data:`.BEHIND_MS`.
        * ``ok`` otherwise.
        """
        if now_ms < self._settled_ms:
            return "reading", None
        return ("behind", self._seen_ms) if self._found and now_ms - self._seen_ms > BEHIND_MS else ("ok", None)
