"""Runs the hub as a process without Kafka: startup, shutdown within the grace period, exit code."""

from __future__ import annotations

import asyncio
import errno
import logging
import signal
import socket
from contextlib import AsyncExitStack
from typing import Any, Final

import uvloop
from redis.asyncio import Redis

from streams_app.clock import SystemClock
from streams_app.errors import ConfigurationError, TryAgainError
from streams_app.folding.store.keys import probe_key
from streams_app.health.http import HttpServer
from streams_app.health.http_connections import bound_socket, url_of
from streams_app.health.metrics import Metrics
from streams_app.health.status import Status
from streams_app.live.hub.hub import Hub
from streams_app.live.hub.server import ViewServer
from streams_app.live.hub.sockets import ask_for_descriptors, descriptors_for
from streams_app.live.hub.tokens import TokenVerifier
from streams_app.process_exit import exit_after
from streams_app.redis_access.client import connect_briefly, require_access
from streams_app.settings import RedisSettings, Settings

logger = logging.getLogger(__name__)

ANSWER_SECONDS: Final = 2.0
"""Timeout of a request to Redis. After it, the poll fails and views are marked as behind; the next poll tries again."""

SNDBUF_BYTES: Final = 65_536
"""Send buffer of each connection. By default, the kernel buffers megabytes of old states for a browser that does not read."""

BEAT_SECONDS: Final = 1.0
REST_SECONDS: Final = 0.5


def serve_views(settings: Settings, *, has_page: bool = False) -> None:
    """Run the hub until SIGTERM or SIGINT; ``has_page``: with an example page at ``/``.

    Raises:
        ConfigurationError: There is no live view, a secret cannot be read, or Redis denies access.
        TryAgainError: The port is taken, or the address does not exist.
    """
    if not settings.live:
        raise ConfigurationError(["there is no live view to serve: declare one as [live.NAME]"])
    ask_for_descriptors(settings.live_server.connections)
    # The runner is not closed: see exit_now().
    asyncio.Runner(loop_factory=uvloop.new_event_loop).run(_serve(settings, has_page=has_page))


async def _serve(settings: Settings, *, has_page: bool) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    clock, metrics, status = SystemClock(), Metrics(settings), Status()
    tokens = TokenVerifier(settings.live_server, clock)
    async with AsyncExitStack() as stack:
        redis = connect_hub(settings.redis)
        stack.push_async_callback(redis.aclose)
        writes = any(not view.is_of_topic for view in settings.live)
        if fault := await require_access(settings.redis, probe_key(settings.app_id), writes=writes):
            logger.warning("%s; views are labelled behind or reading until it answers", fault)
        hub = Hub(settings, redis, clock, metrics, status)
        server = ViewServer(settings, hub, tokens, clock, metrics, has_page=has_page)
        if server.max_streams < settings.live_server.connections:
            wanted = descriptors_for(settings.live_server.connections)
            logger.warning("too few descriptors for live_server.connections, fewer pages are served wanted=%d", wanted)
        runner = server.runner(REST_SECONDS)
        stack.push_async_callback(runner.cleanup)
        listening = listen(settings)
        accepting = await server.listen(listening, runner)
        # Often a worker on this machine uses the port of the same settings.
        http = HttpServer(settings.http, status, metrics, clock, is_port_fixed=False)
        http.start()
        stack.callback(http.stop)
        logger.info("live views are served url=%s", url_of(settings.live_server.host, listening))
        status.clear("start")
        works = {"poll": hub.run(stop), "streams": server.check_forever()}
        tasks = [asyncio.create_task(work, name=name) for name, work in works.items()]
        stopping = asyncio.create_task(stop.wait())
        try:
            done: set[asyncio.Task[Any]] = set()
            while not done:
                status.beat(clock.monotonic_ms())
                done, _ = await asyncio.wait([*tasks, stopping], timeout=BEAT_SECONDS, return_when=asyncio.FIRST_COMPLETED)
        finally:
            exit_after(settings.worker.grace_seconds)
            status.set_not_ready("end", "the server is shutting down")
            accepting.close()
            await server.end()
            stop.set()
            for task in tasks:
                task.cancel()
        for task in done - {stopping}:
            task.result()
    logger.info("live views are no longer served")


def connect_hub(settings: RedisSettings) -> Redis:
    """Create a Redis client with short timeouts and no retries: after a failure, views are marked as behind until the next poll."""
    return connect_briefly(settings, ANSWER_SECONDS)


def listen(settings: Settings) -> socket.socket:
    """Open a listening socket whose connections have small send buffers.

    Raises:
        TryAgainError: The port is taken, or the address does not exist.
    """
    host, port = settings.live_server.host, settings.live_server.port
    try:
        return bound_socket(host, port, SNDBUF_BYTES)
    except OSError as error:
        why = "the port is taken" if error.errno == errno.EADDRINUSE else error
        raise TryAgainError(f"cannot listen on live_server {host}:{port}: {why}") from error
