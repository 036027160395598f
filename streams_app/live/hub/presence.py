"""Presence: stores in Redis which browser tabs are connected to this hub, and counts the tabs of all hubs."""

from __future__ import annotations

import random
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Final

from streams_app.live.core.state import BEHIND_MS, ViewState, reading
from streams_app.live.store.view_store import ClosedTab, PagePresence, PageTabs, PresenceStore
from streams_app.settings.live import LiveView

LAPSE_MS: Final = 5_000
"""Time in ms for which a closed tab still counts, so that a tab that is reloaded does not appear to leave."""

SETTLE_MS: Final = 2_000
"""Time in ms for which the state is ``reading`` after Redis has lost data or was not reached for a while.

Each hub writes its tabs once a second. So the tabs of all hubs are stored again when pages get a count.
"""

MAX_NAMED: Final = 200
PAGES_A_SCRIPT: Final = 500


@dataclass(slots=True)
class _Tab:
    """A browser tab that is connected to this hub.

    Attributes:
        connections: Number of its connections; a reload may open the new one before the old one is closed.
        until_ms: Expiry time of the tab, as this hub last tried to write it; 0 if it has not tried yet.
        is_due: Whether the tab must be written even if its stored expiry is far enough in the future.
    """

    connections: int = 1
    until_ms: float = 0
    is_due: bool = True


class Presence:
    """Writes this hub's open tabs of one presence view to Redis, and counts the tabs of all hubs."""

    def __init__(self, view: LiveView, store: PresenceStore) -> None:
        self.view = view
        self._store = store
        self._open: dict[str, dict[str, _Tab]] = {}
        self._closed: dict[str, dict[str, float]] = {}
        self._found: dict[str, PagePresence] = {}
        self._marker: str | None = None
        self._seen_ms = 0
        self._settled_ms = 0
        # Other hubs use other fractions of a millisecond, so the score of a tab shows which hub wrote it. A tab that has closed
        # here remains if another hub has written it since.
        self._fraction = random.random()  # no secret

    def join(self, page: str, tab: str) -> None:
        """Add a connection of a tab; the tab counts from the next call of :meth:`present_once`."""
        tabs = self._open.setdefault(page, {})
        if tab in tabs:
            tabs[tab].connections += 1
        else:
            tabs[tab] = _Tab(until_ms=self._closed.get(page, {}).pop(tab, 0))

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
                self._closed.setdefault(page, {})[tab] = shown.until_ms
            if not tabs:
                del self._open[page]

    async def present_once(self, now_ms: int, pages: Collection[str]) -> set[str]:
        """Write to Redis the tabs of this hub that have opened, closed or would soon expire, and count the tabs of all hubs.

        Args:
            now_ms: Clock of Redis.
            pages: Pages that are open on this hub.

        Returns:
            Those of ``pages`` whose count or tabs have changed since the previous call.

        Raises:
            Exception: The write failed. The next call writes all tabs again.
        """
        asked = list(dict.fromkeys([*pages, *self._open, *self._closed]))
        if not asked:
            # The marker expires while no hub writes it. A new marker then does not mean that Redis has lost data.
            self._marker, self._found = None, {}
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
        for name, tab in self._open.get(page, {}).items():
            if tab.is_due or tab.until_ms < now_ms + expiry_ms * 2 // 3:
                tab.until_ms, tab.is_due = now_ms + expiry_ms + self._fraction, False
                due[name] = tab.until_ms
        lapse_ms = now_ms + LAPSE_MS
        closed = [ClosedTab(tab, until_ms, min(until_ms, lapse_ms)) for tab, until_ms in self._closed.pop(page, {}).items()]
        return PageTabs(due, closed)

    def _write_all(self) -> None:
        for tabs in self._open.values():
            for tab in tabs.values():
                tab.is_due = True

    def _close_once_more(self, part: Mapping[str, PageTabs]) -> None:
        for page, tabs in part.items():
            for tab, written_ms, _ in tabs.closed:
                if tab not in self._open.get(page, {}):
                    self._closed.setdefault(page, {}).setdefault(tab, written_ms)

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
        """Time at which the open tabs were last counted, by the clock of Redis; 0 before the first count."""
        return self._seen_ms

    def status(self, now_ms: int) -> tuple[str, int | None]:
        """Return the state of the view; if it is ``behind``, also the time at which the open tabs were last counted, else None.

        Returns:
            * ``reading`` for :data:`SETTLE_MS` after Redis has lost data or was not reached for a while: other hubs may not have
              written their tabs yet.
            * ``behind`` if pages are open, but their tabs were not counted for more than :data:`.BEHIND_MS`.
            * ``ok`` otherwise.
        """
        if now_ms < self._settled_ms:
            return "reading", None
        return ("behind", self._seen_ms) if self._found and now_ms - self._seen_ms > BEHIND_MS else ("ok", None)
