"""Base class of the embedded servers, and a function that starts one of them on a given or a free port."""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType
from typing import Self, TypeVar

from streams_app.embedded.child import Child, EmbeddedServerError
from streams_app.embedded.ports import free_port

INSTALL = "pip install 'streams_app[embedded]'"
"""Command that installs the embedded servers; in a checkout, it is ``pip install '.[embedded]'``."""

START_LIMIT_MS = 20_000
"""Time within which a server must respond after its start, in ms."""

_START_ATTEMPTS = 5

T = TypeVar("T")


class EmbeddedServer:
    """Base class of a running server. As a context manager, it stops the server at the end of the block.

    The operating system also ends the server when this process dies.
    """

    description: str

    def __init__(self, child: Child) -> None:
        self._child = child

    @property
    def pid(self) -> int:
        return self._child.pid

    @property
    def is_running(self) -> bool:
        return self._child.is_running

    def kill(self) -> None:
        """Kill the server by SIGKILL, like a crash."""
        self._child.kill()

    def stop(self) -> None:
        """Stop the server and wait until it has ended; a second call does nothing."""
        self._child.stop()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        self.stop()


def start_on_a_port(port: int | None, start_once: Callable[[int], T], taken: str) -> T:
    """Start a server on the given port, or on a free one.

    If another process takes a free port before the server binds it, another port is tried, up to five in all.

    Args:
        start_once: Starts the server on a port; raises :class:`.EmbeddedServerError` with the end of the log if it does not start.
        taken: Text that the log of the server contains if another process uses the port.
    """
    if port is not None:
        return start_once(port)
    for _ in range(_START_ATTEMPTS - 1):
        try:
            return start_once(free_port())
        except EmbeddedServerError as error:
            if taken not in str(error):
                raise
    return start_once(free_port())
