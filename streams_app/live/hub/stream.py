"""One open page as a stream of server-sent events, written as fast as the browser reads."""

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
"""A browser that reads nothing for so long is cut off."""

FIRST_RETRY_MS: Final = 500
LAST_RETRY_MS: Final = 5_000
NO_PINGS_SECONDS: Final = 86_400.0
"""The beat is a sign of life that pages see, too."""


def retry_ms() -> int:
    """When a browser that has lost its connection comes back: not all at once."""
    return random.randint(FIRST_RETRY_MS, LAST_RETRY_MS)  # no secret


class EventStream:
    """Writes what a connection is to be sent."""

    def __init__(
        self,
        connection: Connection,
        request: web.Request,
        clock: Clock,
        metrics: Metrics,
        allowed: tuple[TokenVerifier, str, PageToken] | None,
    ) -> None:
        """Writes nothing yet.

        Args:
            connection: What is to be sent.
            request: What has asked for it.
            clock: Of the hub.
            metrics: Those of the process.
            allowed: What checks the token, the token as text, and what it allows; None: anybody may see it.
        """
        self.connection = connection
        self._request = request
        self._clock = clock
        self._metrics = metrics
        self._allowed = allowed
        self._beat_ms = clock.monotonic_ms()
        self._unwritten = 0
        self._moved_ms = clock.monotonic_ms()

    async def write(self, headers: Mapping[str, str]) -> web.StreamResponse:
        """Writes until the connection ends, or the browser is gone."""
        response = EventSourceResponse(headers=headers, send_timeout=STALLED_MS / 1000, ping_interval=NO_PINGS_SECONDS)
        writer = await response.prepare(self._request)
        transport = self._request.transport
        if writer is None or transport is None:
            return response
        # Nothing waits in this process behind what the kernel has not taken: the newest state replaces it.
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
                pass  # the browser has left, or was cut off
        return response

    def _due(self) -> bytes:
        """What is to be written now; nothing once the token is worth nothing any more."""
        messages, is_beat_due = self.connection.take(), self.connection.is_beat_due
        now_ms = self._clock.now_ms()
        if self._allowed is not None and self._allowed[2].expires_ms <= now_ms:
            self.connection.end()
        if self.connection.is_ending:
            return b""
        frames = [message.frame for message in messages]
        if is_beat_due:
            self.connection.is_beat_due = False
            frames.insert(0, b"event: beat\ndata: " + orjson.dumps({"now_ms": now_ms}) + b"\n\n")
        for message in messages:
            self._metrics.live_messages.labels(view=message.state.view).inc()
            if message.is_fresh:
                self._metrics.live_delay_seconds.observe(max(0, now_ms - message.newest_ms) / 1000)
        return b"".join(frames)

    def check(self, monotonic_ms: int, beat_ms: int) -> None:
        """Decides on a beat, on the end of the token, and on a browser that does not read, and counts; called once a second."""
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
        if monotonic_ms - self._beat_ms >= beat_ms:
            self._beat_ms = monotonic_ms
            if self._is_allowed():
                self.connection.beat()
            else:
                self.connection.end()

    def _is_allowed(self) -> bool:
        """Whether the token would be accepted now: its secret may have been withdrawn."""
        if self._allowed is None:
            return True
        tokens, text, _ = self._allowed
        try:
            return tokens.accepted(text).allows(self.connection.page)
        except TokenError:
            return False
