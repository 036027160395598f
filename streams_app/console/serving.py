"""Runs the console as a process: startup, shutdown, exit code."""

from __future__ import annotations

import asyncio
import errno
import logging
import signal
import socket
from contextlib import AsyncExitStack
from typing import Any, Final

import uvloop
from aiohttp import web

from streams_app.clock import SystemClock
from streams_app.console.pages.registry import PAGES
from streams_app.console.reading.console_reader import ConsoleReader
from streams_app.console.server import ConsoleServer
from streams_app.errors import ConfigurationError, TryAgainError
from streams_app.health.http_connections import Connections, bound_socket, connection_limit, url_of
from streams_app.process_exit import exit_after
from streams_app.requirements.declarations import declarations_of
from streams_app.settings import Settings
from streams_app.settings.base import LAST_PORT
from streams_app.settings.console import ConsoleSettings

logger = logging.getLogger(__name__)

PORTS_TRIED: Final = 100
BACKLOG: Final = 256
MAX_CONNECTIONS: Final = 600
DESCRIPTORS_A_CONNECTION: Final = 2
SNDBUF_BYTES: Final = 262_144

REST_SECONDS: Final = 0.5
GRACE_SECONDS: Final = 5.0


def serve_console(settings: Settings) -> None:
    """Run the console until SIGTERM or SIGINT.

    Raises:
        ConfigurationError: The token cannot be read, or the port is in use.
        TryAgainError: The address does not exist.
    """
    # The runner is not closed: see exit_now().
    asyncio.Runner(loop_factory=uvloop.new_event_loop).run(_serve(settings))


async def _serve(settings: Settings) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    clock = SystemClock()
    async with AsyncExitStack() as stack:
        reader = ConsoleReader(settings, clock)
        stack.push_async_callback(reader.close)
        sockets = Connections(connection_limit(MAX_CONNECTIONS, DESCRIPTORS_A_CONNECTION), clock)
        server = ConsoleServer(PAGES, settings, declarations_of(settings), reader, sockets)
        runner = web.AppRunner(server.application(), handler_cancellation=True, shutdown_timeout=REST_SECONDS)
        stack.push_async_callback(runner.cleanup)
        await runner.setup()
        assert runner.server is not None
        listening = listen(settings.console)
        accepting = await loop.create_server(sockets.factory(runner.server), sock=listening, backlog=BACKLOG)
        logger.info("the console is served url=%s", url_of(settings.console.host, listening))
        tasks: list[asyncio.Task[Any]] = [
            asyncio.create_task(reader.keep_history(), name="history"),
            asyncio.create_task(stop.wait(), name="stop"),
        ]
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            exit_after(GRACE_SECONDS)
            accepting.close()
            await server.end()
            for task in tasks:
                task.cancel()
        for task in done:
            task.result()
    logger.info("the console is no longer served")


def listen(settings: ConsoleSettings) -> socket.socket:
    """Open the listening socket; if the settings name no address, the next free port is taken while the usual one is in use.

    Raises:
        ConfigurationError: The port is in use; if the settings name none, all that were tried.
        TryAgainError: The address does not exist.
    """
    is_fixed = "listen" in settings.model_fields_set
    last = settings.port if is_fixed or not settings.port else min(settings.port + PORTS_TRIED - 1, LAST_PORT)
    for port in range(settings.port, last + 1):
        try:
            return bound_socket(settings.host, port, SNDBUF_BYTES)
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                raise TryAgainError(f"cannot listen on console.listen = {settings.listen}: {error}") from error
    raise ConfigurationError([f"console.listen: {settings.listen} is in use: end the other process, or choose another port"])
