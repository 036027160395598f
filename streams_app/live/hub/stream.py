"""Pushes states to one browser tab as server-sent events, at the speed at which the tab reads; cuts off a slow consumer."""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Final

import orjson
from aiohttp import web
from aiohttp_sse import EventSourceResponse

from streams_app.clock import Clock
from streams_app.health.metrics import Metrics
from streams_app.live.hub.connection import Connection
from streams_app.live.hub.tokens import PageToken, TokenError, TokenVerifier

STALLED_MS: Final = 30_000
"""Time in ms after which a browser that reads nothing is disconnected."""

FIRST_RETRY_MS: Final = 500
LAST_RETRY_MS: Final = 5_000
NO_PINGS_SECONDS: Final = 86_400.0
"""Interval that disables the pings of the library. Beats replace pings, because a script in a browser cannot receive pings."""


def retry_ms() -> int:
    """Return the delay in ms after which a disconnected browser reconnects. It is random, so that not all reconnect at once."""
    return random.randint(FIRST_RETRY_MS, LAST_RETRY_MS)  # no secret


class EventStream:
    """Writes the states and beats of one connection to its browser, as server-sent events."""

    def __init__(
        self,
        connection: Connection,
        request: web.Request,
        clock: Clock,
        metrics: Metrics,
        allowed: tuple[TokenVerifier, str, PageToken] | None,
        beat_ms: int,
    ) -> None:
        """Create the stream, without writing; ``allowed`` is None if all views are public."""
        self.connection = connection
        self._request = request
        self._clock = clock
        self._metrics = metrics
        self._allowed = allowed
        self._interval_ms = beat_ms
        self._beat_ms = clock.monotonic_ms()
        self._unwritten = 0
        self._moved_ms = clock.monotonic_ms()

    async def write(self, headers: Mapping[str, str]) -> web.StreamResponse:
        """Write events until the hub ends the connection or the browser disconnects; return the finished response."""
        response = EventSourceResponse(headers=headers, send_timeout=STALLED_MS / 1000, ping_interval=NO_PINGS_SECONDS)
        writer = await response.prepare(self._request)
        transport = self._request.transport
        if writer is None or transport is None:
            return response
        # Buffer nothing in this process: until the kernel accepts a state, a newer one can still replace it.
        transport.set_write_buffer_limits(high=0)
        async with response:
            try:
                await response.write(b"retry: %d\n\n" % retry_ms())
                while True:
                    if frames := self._due():
                        await response.write(frames)
                        await writer.drain()
                    if self.connection.is_ending:
                        await response.write(b"event: bye\nretry: %d\ndata: {}\n\n" % retry_ms())
                        break
                    await self.connection.changed.wait()
            except ConnectionError:
                pass  # the browser has disconnected, or was disconnected
        return response

    def _due(self) -> bytes:
        """Return the events to write now; empty if there are none, or if the connection ends because its token has expired."""
        messages, is_beat_due = self.connection.take(), self.connection.is_beat_due
        now_ms = self._clock.now_ms()
        if self._allowed is not None and self._allowed[2].expires_ms <= now_ms:
            self.connection.end()
        if self.connection.is_ending:
            return b""
        frames = [message.frame for message in messages]
        if is_beat_due:
            self.connection.is_beat_due = False
            frames.insert(0, b"event: beat\ndata: " + orjson.dumps({"now_ms": now_ms, "beat_ms": self._interval_ms}) + b"\n\n")
        for message in messages:
            self._metrics.live_messages.labels(view=message.state.view).inc()
            if message.is_fresh:
                self._metrics.live_delay_seconds.observe(max(0, now_ms - message.newest_ms) / 1000)
        return b"".join(frames)

    def check(self, monotonic_ms: int) -> None:
        """Send a beat if it is due, end the stream if the token is no longer valid, and disconnect a browser that does not read.

        Call this once a second; it also updates the metrics.
        """
        self._metrics.live_replaced.inc(self.connection.replaced)
        self.connection.replaced = 0
        transport = self._request.transport
        unwritten = 0 if transport is None else transport.get_write_buffer_size()
        if unwritten == 0 or unwritten < self._unwritten:
            self._moved_ms = monotonic_ms
        self._unwritten = unwritten
        if monotonic_ms - self._moved_ms >= STALLED_MS and transport is not None:
            self._metrics.live_refused.labels(reason="stalled").inc()
            transport.abort()
            return
        if self._allowed is not None and self._allowed[2].expires_ms <= self._clock.now_ms():
            self.connection.end()
        if monotonic_ms - self._beat_ms >= self._interval_ms:
            self._beat_ms = monotonic_ms
            if self._is_allowed():
                self.connection.beat()
            else:
                self.connection.end()

    def _is_allowed(self) -> bool:
        """Return whether the token is still accepted; its secret may have been withdrawn."""
        if self._allowed is None:
            return True
        tokens, text, _ = self._allowed
        try:
            return tokens.accepted(text).allows(self.connection.page)
        except TokenError:
            return False
