"""Redis with Sentinel: a primary, two replicas, and three Sentinels with a quorum of two."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import tempfile
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import redis

from streams_app.embedded import Valkey
from streams_app.embedded.child import Child
from streams_app.embedded.ports import LOOPBACK, free_port
from streams_app.embedded.valkey import _program
from tests.helpers.waiting import wait_until_sync
from tests.servers.redis7 import Redis7, fetch

SERVICE = "orders"
SERVERS = 3
SENTINELS = 3
QUORUM = 2

DOWN_AFTER_MS = 1_000
START_LIMIT_SECONDS = 60
FAILOVER_LIMIT_SECONDS = 60

_CONFIG = f"""\
port {{port}}
bind {LOOPBACK}
dir {{directory}}
sentinel monitor {SERVICE} {LOOPBACK} {{primary}} {QUORUM}
sentinel down-after-milliseconds {SERVICE} {DOWN_AFTER_MS}
sentinel failover-timeout {SERVICE} 3000
sentinel parallel-syncs {SERVICE} 1
{{more}}
"""


class SentinelGroup:
    """The running servers; a context manager that ends them.

    Attributes:
        servers: Port → the server, of each that was not killed.
        sentinels: Port → the Sentinel, of each that was not killed.
    """

    def __init__(self, kind: type[Redis7 | Valkey], folder: Path | None = None, login: tuple[str, str] | None = None) -> None:
        self._kind = kind
        self._login = login
        self._is_temporary = folder is None
        self._folder = folder or Path(tempfile.mkdtemp(prefix="streams-app-sentinels-"))
        self.servers: dict[int, Redis7 | Valkey] = {}
        self.sentinels: dict[int, Child] = {}

    @classmethod
    def start(
        cls,
        kind: type[Redis7 | Valkey] = Valkey,
        folder: Path | None = None,
        *,
        sentinel_lines: Sequence[str] = (),
        login: tuple[str, str] | None = None,
    ) -> Self:
        """Start the servers and return when each Sentinel knows the others and both replicas.

        Args:
            kind: Program of the servers and the Sentinels.
            folder: Folder for their data; None: a temporary one, removed at the end.
            sentinel_lines: Further lines in the file of each Sentinel.
            login: User and password with all rights on the Sentinels, if the default user does not have them.
        """
        group = cls(kind, folder, login)
        try:
            primary = group.start_server()
            for _ in range(SERVERS - 1):
                replica = group.start_server(["--replicaof", f"{LOOPBACK} {primary}"])
                group.wait_in_sync(replica)
            for _ in range(SENTINELS):
                port = free_port()
                write_sentinel(group._folder / f"sentinel-{port}", port, primary, sentinel_lines)
                group.run_sentinel(port)
            group.wait_complete()
        except BaseException:
            group.stop()
            raise
        return group

    def start_server(self, extra_args: Sequence[str] = (), port: int | None = None) -> int:
        """Start a server, also with the data of a killed one; return its port."""
        port = port or free_port()
        folder = self._folder / f"redis-{port}"
        extra_args = ["--repl-diskless-sync-delay", "0", *extra_args]
        self.servers[port] = self._kind.start(port, folder, appendonly=True, extra_args=extra_args)
        return port

    def run_sentinel(self, port: int) -> None:
        """Restart a killed Sentinel."""
        self.sentinels[port] = run_sentinel(self._kind, self._folder / f"sentinel-{port}", port)

    def wait_in_sync(self, port: int) -> None:
        """Wait until a replica has copied its primary."""
        with redis.Redis(port=port) as client:
            wait_until_sync(
                lambda: client.info("replication").get("master_link_status") == "up", START_LIMIT_SECONDS, "the replica is in sync"
            )

    def wait_complete(self) -> None:
        """Wait until every running Sentinel knows two running replicas, and may promote one of them."""

        def is_complete(port: int) -> bool:
            state = self.ask(port, "MASTERS")[SERVICE]
            replicas = self.ask(port, "SLAVES", SERVICE)
            up = [one for one in replicas if not one["is_sdown"] and one["master-link-status"] == "ok"]
            return len(up) == SERVERS - 1 and state["num-other-sentinels"] == SENTINELS - 1 and not state["is_sdown"]

        wait_until_sync(lambda: all(map(is_complete, self.sentinels)), START_LIMIT_SECONDS, "the Sentinels know all servers")

    def ask(self, port: int, *words: str) -> Any:
        """Send a command to one Sentinel."""
        user, password = self._login or (None, None)
        with redis.Redis(port=port, username=user, password=password, socket_timeout=5, decode_responses=True) as client:
            return client.execute_command(f"SENTINEL {words[0]}", *words[1:])

    @property
    def url(self) -> str:
        """Value of `redis.url`."""
        return f"redis+sentinel://{','.join(f'{LOOPBACK}:{port}' for port in self.sentinels)}/{SERVICE}/0"

    @property
    def primary(self) -> int:
        """Return the port of the primary that the running Sentinels report."""
        named = [self.ask(port, "MASTERS")[SERVICE] for port in self.sentinels]
        return int(max(named, key=lambda state: state["config-epoch"])["port"])

    def kill_primary(self) -> int:
        """Kill the primary; return its port."""
        port = self.primary
        self.servers.pop(port).kill()
        return port

    def freeze(self, port: int) -> None:
        """Suspend a server until :meth:`thaw`, with its connections open."""
        os.kill(self.servers[port].pid, signal.SIGSTOP)

    def thaw(self, port: int) -> None:
        """Resume a suspended server."""
        os.kill(self.servers[port].pid, signal.SIGCONT)

    def promote_one(self) -> None:
        """Request a failover from a Sentinel while the primary runs; retry until it begins."""

        def is_begun() -> bool:
            try:
                self.ask(next(iter(self.sentinels)), "FAILOVER", SERVICE)
            except redis.ResponseError:
                return False
            return True

        wait_until_sync(is_begun, FAILOVER_LIMIT_SECONDS, "a Sentinel begins a failover")

    def wait_promoted(self, former: int) -> int:
        """Wait until another primary accepts writes and every Sentinel reports it; return its port."""

        def another() -> int | None:
            named = {int(self.ask(port, "MASTERS")[SERVICE]["port"]) for port in self.sentinels}
            if len(named) != 1 or former in named:
                return None
            (port,) = named
            with redis.Redis(port=port, socket_timeout=1) as client:
                return port if client.role()[0] == b"master" else None

        port = wait_until_sync(another, FAILOVER_LIMIT_SECONDS, "a replica is promoted")
        assert port is not None
        return port

    def stop(self) -> None:
        """End all; a second call does nothing."""
        for child in self.sentinels.values():
            child.kill()
        for server in self.servers.values():
            os.kill(server.pid, signal.SIGCONT)
            server.kill()
        self.sentinels.clear()
        self.servers.clear()
        if self._is_temporary:
            shutil.rmtree(self._folder, ignore_errors=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        self.stop()


def write_sentinel(folder: Path, port: int, primary: int, lines: Sequence[str] = ()) -> None:
    """Make the folder and the file of a Sentinel.

    Args:
        folder: Folder to create.
        port: Port of the Sentinel; 0 for a Sentinel with TLS only, whose port is in the lines.
        primary: Port of the primary.
        lines: Further lines of the file.
    """
    folder.mkdir(parents=True)
    text = _CONFIG.format(port=port, directory=folder, primary=primary, more="\n".join(lines))
    (folder / "sentinel.conf").write_text(text)


def run_sentinel(kind: type[Redis7 | Valkey], folder: Path, port: int) -> Child:
    """Start a Sentinel with its file and return when it answers, even with an error."""
    program = str(fetch()) if kind is Redis7 else _program()
    child = Child("sentinel", [program, str(folder / "sentinel.conf"), "--sentinel"], folder)

    def answers() -> bool:
        with socket.create_connection((LOOPBACK, port), timeout=1):
            return True

    child.wait_until_ready(answers, START_LIMIT_SECONDS * 1000)
    return child
