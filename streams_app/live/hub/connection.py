"""The messages for one browser: the newest unwritten state of each view. There is no queue: a newer state replaces an older one.

``stream.py`` writes the messages, and disconnects a browser that does not read.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field

from streams_app.live.core.state import ViewState
from streams_app.settings.live import LiveView


@dataclass(frozen=True, slots=True)
class StateMessage:
    """The state of a view's page, and the message that all connections with this page share.

    Attributes:
        frame: The state as a server-sent event.
        newest_ms: Time of the newest item on the page; 0 if it has none.
        is_fresh: Whether that item is newer than the newest item of the previous state. If it is, the delay from the time of the
            item to the writing of the message is measured.
    """

    state: ViewState
    frame: bytes = field(repr=False)
    newest_ms: int = 0
    is_fresh: bool = False


def message_of(state: ViewState, newest_ms: int = 0, *, is_fresh: bool = False) -> StateMessage:
    """Encode a state as a server-sent event named ``view``; all connections with this page can share the message."""
    # Payloads are embedded unchanged: a line break between their tokens would end the event.
    data = state.to_json().replace(b"\n", b" ").replace(b"\r", b" ")
    return StateMessage(state, b"event: view\ndata: " + data + b"\n\n", newest_ms, is_fresh)


class Connection:
    """Unwritten states for one client, which is a browser tab with an open page, or a request for JSON.

    Attributes:
        tab: Id of the browser tab, by which viewers are counted; None: the connection is not counted.
        client: The address or user of the tab, whose number of counted tabs is limited; "": it is not limited.
        changed: Set when there is something to write, or the stream is to end.
        replaced: Number of states that newer ones replaced before they were written, since the metric was last updated.
    """

    def __init__(self, page: str, views: Sequence[LiveView], tab: str | None = None, client: str = "") -> None:
        self.page = page
        self.views = views
        self.tab = tab
        self.client = client
        self.changed = asyncio.Event()
        self.is_ending = False
        self.is_beat_due = True
        self.replaced = 0
        self._pending: dict[str, StateMessage] = {}
        self._latest: dict[str, ViewState] = {}

    def push(self, message: StateMessage) -> None:
        """Add a state to be written. It replaces an unwritten state of the same view; a state that has not changed is ignored."""
        view = message.state.view
        if self._latest.get(view) == message.state:
            return
        self.replaced += view in self._pending
        self._latest[view] = message.state
        self._pending[view] = message
        self.changed.set()

    def take(self) -> list[StateMessage]:
        """Remove and return the unwritten messages, at most one for each view."""
        pending, self._pending = self._pending, {}
        self.changed.clear()
        return list(pending.values())

    def beat(self) -> None:
        """Request a beat: a short event by which the browser notices that the connection works."""
        self.is_beat_due = True
        self.changed.set()

    def end(self) -> None:
        """Request the end of the stream. States that are not written by then are dropped."""
        self.is_ending = True
        self.changed.set()

    async def states(self) -> list[ViewState]:
        """Wait until each view has a state; return the latest states, in the order of :attr:`views`.

        This answers a request for JSON. Unwritten messages may be discarded, so a stream must not call this method.
        """
        while len(self._latest) < len(self.views):
            self.take()
            await self.changed.wait()
        return [self._latest[view.name] for view in self.views]
