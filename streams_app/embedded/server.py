"""What every server started here can do, whichever program it is."""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType
from typing import Self, TypeVar

from streams_app.embedded.child import Child, EmbeddedServerError
from streams_app.embedded.ports import free_port

INSTALL = "pip install 'streams_app[embedded]'"
"""Where the package came from a checkout, ``pip install '.[embedded]'`` there."""

START_LIMIT_MS = 20_000
"""A server that does not answer for so long after its start has failed."""

_TRIES = 5

T = TypeVar("T")


class EmbeddedServer:
    """A running server and a context manager that ends it; the system ends it, too, when this process dies."""

    description: str

    def __init__(self, child: Child) -> None:
        self._child = child

    @property
    def pid(self) -> int:
        """The server's own process id."""
        return self._child.pid

    @property
    def is_running(self) -> bool:
        """Whether the process has not ended."""
        return self._child.is_running

    def kill(self) -> None:
        """Ends the server by SIGKILL, as a crash would."""
        self._child.kill()

    def stop(self) -> None:
        """Ends the server and waits for its end; a second call does nothing."""
        self._child.stop()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        self.stop()


def start_on_a_port(port: int | None, start_once: Callable[[int], T], taken: str) -> T:
    """Starts a server on the port given, or on a free one.

    Another process may take a free port before the server binds it: then another port is tried.

    Args:
        port: Port to listen on; None: a free one.
        start_once: Starts the server on a port.
        taken: Words in the server's log that say that the port is taken.

    Raises:
        EmbeddedServerError: The server did not start: on the port given, for another reason than a taken port, or after several
            ports that were taken.
    """
    if port is not None:
        return start_once(port)
    for _ in range(_TRIES - 1):
        try:
            return start_once(free_port())
        except EmbeddedServerError as error:
            if taken not in str(error):
                raise
    return start_once(free_port())
