"""What one browser is to be sent: of each view the newest state that is not written yet; nothing queues."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field

from streams_app.live.core.state import ViewState
from streams_app.settings.live import LiveView


@dataclass(frozen=True, slots=True)
class StateMessage:
    """A state and the bytes that say it, which all connections share.

    Attributes:
        state: The state.
        frame: It as a server-sent event.
        newest_ms: Time of its newest record; 0: it has none.
        is_fresh: Whether that record came with it.
    """

    state: ViewState
    frame: bytes = field(repr=False)
    newest_ms: int = 0
    is_fresh: bool = False


def message_of(state: ViewState, newest_ms: int = 0, *, is_fresh: bool = False) -> StateMessage:
    """A state as it is sent."""
    # Payloads are embedded as they are: a line break between their tokens would end the event.
    data = state.to_json().replace(b"\n", b" ").replace(b"\r", b" ")
    return StateMessage(state, b"event: view\ndata: " + data + b"\n\n", newest_ms, is_fresh)


class Connection:
    """An open page, or a request that wants to know once what it would show."""

    def __init__(self, page: str, views: Sequence[LiveView], tab: str | None = None) -> None:
        """Knows nothing yet.

        Args:
            page: Name of the page.
            views: What it shows.
            tab: Of presence, as it is written; None: it is not counted.
        """
        self.page = page
        self.views = views
        self.tab = tab
        self.changed = asyncio.Event()
        self.is_ending = False
        self.is_beat_due = True
        self.replaced = 0
        self._pending: dict[str, StateMessage] = {}
        self._latest: dict[str, ViewState] = {}

    def push(self, message: StateMessage) -> None:
        """Takes a state, which replaces one of the same view that is not written yet."""
        view = message.state.view
        if self._latest.get(view) == message.state:
            return
        self.replaced += view in self._pending
        self._latest[view] = message.state
        self._pending[view] = message
        self.changed.set()

    def take(self) -> list[StateMessage]:
        """What is to be written now."""
        pending, self._pending = self._pending, {}
        self.changed.clear()
        return list(pending.values())

    def beat(self) -> None:
        """Says that it is time for a sign of life."""
        self.is_beat_due = True
        self.changed.set()

    def end(self) -> None:
        """Ends it, once it has said goodbye."""
        self.is_ending = True
        self.changed.set()

    async def states(self) -> list[ViewState]:
        """The states of all its views, once each has one."""
        while len(self._latest) < len(self.views):
            self.take()
            await self.changed.wait()
        return [self._latest[view.name] for view in self.views]
