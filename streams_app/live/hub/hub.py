"""The hub: polls live views for the open pages, and pushes changed states to their connections.

One loop polls for all connections. A new connection gets its first states from a poll that begins after its arrival. This poll runs
at once and serves all connections that arrived before it. Other connections receive each view at most once per interval.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection, Iterable
from contextlib import suppress
from dataclasses import replace
from typing import Final

from redis.asyncio import Redis

from streams_app.clock import Clock
from streams_app.delivery.scripts import FencedError
from streams_app.errors import NewerFormatError
from streams_app.health.metrics import Metrics
from streams_app.health.outage_reporter import OutageReporter
from streams_app.health.status import Status
from streams_app.live.core.state import ViewState, reading
from streams_app.live.hub.connection import Connection, StateMessage, message_of
from streams_app.live.hub.polling import Poller, ViewSnapshot
from streams_app.live.hub.presence import Presence
from streams_app.live.store.keys import presence_keys
from streams_app.live.store.view_store import LiveScripts, PresenceStore
from streams_app.redis_access.client import REDIS_ERRORS, drop_idle_connections, redis_fault_text
from streams_app.settings import Settings

logger = logging.getLogger(__name__)

ERRORS: Final = (*REDIS_ERRORS, FencedError, TimeoutError)
"""Exceptions that a poll raises if Redis does not answer or rejects a script."""

EARLY_SECONDS: Final = 0.02
"""Delay of the poll for a new connection, so that it also serves connections that arrive at the same moment."""

PRESENT_MS: Final = 1_000
EVALUATE_SECONDS: Final = 1.0
FORGET_MS: Final = 30_000
STATUS_MS: Final = 5_000
"""Interval at which the heads of views without open pages are read, for the metric ``live_state``."""

RECONNECT_MS: Final = 5_000
TRACE_MS: Final = 60_000
"""Minimum time between two log messages that contain the trace of an unexpected error."""

STATES: Final = {"ok": 0, "incomplete": 1, "behind": 2, "reading": 3}
"""Value of the metric ``live_state`` for each state of a view."""


class Hub:
    """Polls the views of all open pages, and sends changed states to their connections."""

    def __init__(self, settings: Settings, redis: Redis, clock: Clock, metrics: Metrics, status: Status) -> None:
        """Create the hub, without connecting. The client of Redis has a short timeout.

        The clock is that of this machine; the times of views are compared with the clock of Redis instead.
        """
        self._redis = redis
        self._clock = clock
        self._metrics = metrics
        self._status = status
        self._interval_ms = settings.live_server.interval_ms
        self._scripts = LiveScripts(redis)
        self._views = {view.name: view for view in settings.live}
        self._poller = Poller(settings.app_id, settings.live_of_topics, redis, self._scripts)
        self._presence = {
            view.name: Presence(
                view,
                PresenceStore(self._scripts, presence_keys(settings.app_id, view.name), view.expiry_ms),
                settings.live_server.tabs_per_client,
            )
            for view in settings.live
            if not view.is_of_topic
        }
        self._outages = OutageReporter("Redis", self._is_redis_there)
        self.connections: set[Connection] = set()
        self._open: dict[tuple[str, str], set[Connection]] = {}
        self._shown: dict[tuple[str, str], StateMessage] = {}
        self._dirty: set[tuple[str, str]] = set()
        self._statuses: dict[str, tuple[str, int | None]] = {}
        self._waiting: set[Connection] = set()
        self._arrived = asyncio.Event()
        self._redis_ms, self._asked_ms = clock.now_ms(), clock.monotonic_ms()
        self._presented_ms: dict[str, int] = {}
        self._forgot_ms = self._status_ms = self._reconnected_ms = clock.monotonic_ms() - FORGET_MS
        self._traced_ms = clock.monotonic_ms() - TRACE_MS

    def open(self, connection: Connection) -> None:
        """Add a connection. At the next poll, it receives the state of each of its views."""
        self.connections.add(connection)
        for view in connection.views:
            self._open.setdefault((view.name, connection.page), set()).add(connection)
            if connection.tab is not None and view.name in self._presence:
                self._presence[view.name].join(connection.page, connection.tab, connection.client)
        self._waiting.add(connection)
        self._arrived.set()

    def close(self, connection: Connection) -> None:
        """Remove a connection. Its tab expires from presence views, unless another connection of the tab is opened."""
        self.connections.discard(connection)
        for view in connection.views:
            view_page = (view.name, connection.page)
            self._open[view_page].discard(connection)
            if not self._open[view_page]:
                del self._open[view_page]
                self._shown.pop(view_page, None)
                self._dirty.discard(view_page)
            if connection.tab is not None and view.name in self._presence:
                self._presence[view.name].leave(connection.page, connection.tab)

    async def run(self, stop: asyncio.Event) -> None:
        """Poll the views once per ``interval`` of the settings, and at once for new connections, until ``stop`` is set."""
        regular_ms = self._clock.monotonic_ms()
        while not stop.is_set():
            is_regular = self._clock.monotonic_ms() >= regular_ms
            if is_regular:
                regular_ms = max(regular_ms + self._interval_ms, self._clock.monotonic_ms())
            polling = asyncio.create_task(self.poll_once(is_regular=is_regular))
            try:
                # While a poll hangs, views must still be marked as behind.
                while not (await asyncio.wait([polling], timeout=EVALUATE_SECONDS))[0]:
                    self._publish((), is_regular=True)
            finally:
                polling.cancel()
            polling.result()
            left_ms = regular_ms - self._clock.monotonic_ms()
            if left_ms > 0:
                await self._wait_for_arrival(stop, left_ms / 1000)

    async def _wait_for_arrival(self, stop: asyncio.Event, seconds: float) -> None:
        coming = [asyncio.create_task(event.wait()) for event in (self._arrived, stop)]
        try:
            done, _ = await asyncio.wait(coming, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in coming:
                task.cancel()
        if done:
            await asyncio.sleep(min(EARLY_SECONDS, seconds))

    async def poll_once(self, *, is_regular: bool = True) -> None:
        """Poll the views of the open pages, and send the states to new connections.

        If the poll fails, new connections receive the last polled values, marked as behind, and the next poll tries again. Errors
        are logged, not raised.

        Args:
            is_regular: Whether connections that are not new receive the states that have changed.
        """
        self._arrived.clear()
        waiting, self._waiting = self._waiting, set()
        wanted = self._wanted()
        try:
            with self._metrics.live_look_seconds.time():
                # The reply may wait, in this process if it is frozen: that time counts as the age of the polled values.
                asked_ms = self._clock.monotonic_ms()
                self._redis_ms, changed = await self._poller.poll_once(wanted)
                self._asked_ms = asked_ms
                self._add_dirty(changed)
                await self._present(wanted, waiting)
        except ERRORS as error:
            self._outages.failed(error)
            why = str(error) if isinstance(error, NewerFormatError) else redis_fault_text(error)
            self._status.set_not_ready("redis", f"{why}: open pages keep their values and are labelled as behind")
            await self._reconnect()
            self._publish(waiting, is_regular=is_regular, is_current=False)
            return
        except Exception as error:  # noqa: BLE001  # an error of one page or token must not end the polls of all others
            self._trace(error)
            self._publish(waiting, is_regular=is_regular, is_current=False)
            return
        self._outages.succeeded()
        self._publish(waiting, is_regular=is_regular)
        if any(name == "behind" for name, _ in self._statuses.values()):
            # The connections may lead to a former primary, now a replica whose data does not change: connect again.
            await self._reconnect()

    def _wanted(self) -> dict[str, list[str]]:
        monotonic_ms = self._clock.monotonic_ms()
        if monotonic_ms - self._forgot_ms >= FORGET_MS:
            self._forgot_ms = monotonic_ms
            self._poller.forget()
        wanted: dict[str, list[str]] = {}
        if monotonic_ms - self._status_ms >= STATUS_MS:
            self._status_ms = monotonic_ms
            wanted = {name: [] for name in self._poller.views}
        for view, page in self._open:
            wanted.setdefault(view, []).append(page)
        return wanted

    def _add_dirty(self, changed: Iterable[tuple[str, str]]) -> None:
        self._dirty |= {view_page for view_page in changed if view_page in self._open}

    async def _present(self, wanted: dict[str, list[str]], waiting: Collection[Connection]) -> None:
        monotonic_ms = self._clock.monotonic_ms()
        for name, presence in self._presence.items():
            is_awaited = any(view.name == name for connection in waiting for view in connection.views)
            if not is_awaited and monotonic_ms - self._presented_ms.get(name, -PRESENT_MS) < PRESENT_MS:
                continue
            changed = await presence.present_once(self._redis_ms, wanted.get(name, []))
            self._add_dirty((name, page) for page in changed)
            self._presented_ms[name] = monotonic_ms

    async def _reconnect(self) -> None:
        """Drop idle connections to Redis, at most once per :data:`RECONNECT_MS`, so that its address is resolved again."""
        monotonic_ms = self._clock.monotonic_ms()
        if monotonic_ms - self._reconnected_ms >= RECONNECT_MS:
            self._reconnected_ms = monotonic_ms
            with suppress(*ERRORS):
                await drop_idle_connections(self._redis)

    def _trace(self, error: Exception) -> None:
        """Report the hub as not ready after an unexpected error of a poll, and log the error at most once a minute."""
        self._status.set_not_ready("poll", f"a poll failed with {type(error).__name__}: the log has its trace")
        monotonic_ms = self._clock.monotonic_ms()
        if monotonic_ms - self._traced_ms >= TRACE_MS:
            self._traced_ms = monotonic_ms
            logger.error(
                "a poll failed, open pages keep their values and are labelled as behind: please report this", exc_info=error
            )

    def _publish(self, waiting: Collection[Connection], *, is_regular: bool, is_current: bool = True) -> None:
        try:
            self._push(waiting, is_regular=is_regular, is_current=is_current)
        except Exception as error:  # noqa: BLE001  # as in poll_once(); the next call sends states that may be unsent
            self._trace(error)
            self._waiting |= {connection for connection in waiting if connection in self.connections}
            self._dirty |= set(self._open)
        else:
            if is_current:
                self._status.clear("poll")

    def _push(self, waiting: Iterable[Connection], *, is_regular: bool, is_current: bool) -> None:
        now_ms = self._redis_ms + self._clock.monotonic_ms() - self._asked_ms
        self._update_statuses(now_ms)
        for connection in waiting:
            if connection not in self.connections:
                continue
            for view in connection.views:
                view_page = (view.name, connection.page)
                if is_current:
                    connection.push(self._message(view_page, now_ms))
                else:
                    self._dirty.add(view_page)
                    connection.push(message_of(self._unconfirmed(view_page, now_ms)))
        if is_regular:
            dirty, self._dirty = self._dirty, set()
            for view_page in dirty:
                message = self._message(view_page, now_ms)
                for connection in self._open.get(view_page, ()):
                    # A connection without a first state waits for the next poll: this poll began before its arrival.
                    if connection not in self._waiting:
                        connection.push(message)
        self._metrics.live_connections.set(len(self.connections))
        self._metrics.live_open_pages.set(len({page for _, page in self._open}))

    def _update_statuses(self, now_ms: int) -> None:
        known: list[tuple[str, ViewSnapshot | Presence]] = [*self._poller.views.items(), *self._presence.items()]
        for name, view in known:
            status = view.status(now_ms)
            if status != self._statuses.get(name):
                self._statuses[name] = status
                self._metrics.live_state.labels(view=name).set(STATES[status[0]])
                self._dirty |= {view_page for view_page in self._open if view_page[0] == name}

    def _state(self, view_page: tuple[str, str], now_ms: int) -> ViewState:
        view, page = view_page
        return (self._presence.get(view) or self._poller.views[view]).state(page, now_ms)

    def _message(self, view_page: tuple[str, str], now_ms: int) -> StateMessage:
        state = self._state(view_page, now_ms)
        shown = self._shown.get(view_page)
        if shown is None or shown.state != state:
            newest_ms = self._poller.views[view_page[0]].newest_ms(view_page[1]) if view_page[0] in self._poller.views else 0
            is_fresh = shown is not None and newest_ms > shown.newest_ms
            self._shown[view_page] = shown = message_of(state, newest_ms, is_fresh=is_fresh)
        return shown

    def _unconfirmed(self, view_page: tuple[str, str], now_ms: int) -> ViewState:
        """Return the state for a new connection if the poll failed: the last polled values, marked as behind, or ``reading``."""
        state = self._state(view_page, now_ms)
        if state.state == "reading":
            return reading(self._views[view_page[0]])
        known = self._presence.get(view_page[0]) or self._poller.views[view_page[0]]
        return replace(state, state="behind", since_ms=known.as_of_ms)

    def _is_redis_there(self, is_there: bool) -> None:
        self._metrics.up.labels(component="redis").set(is_there)
        if is_there:
            self._status.clear("redis")
