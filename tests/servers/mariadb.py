"""MariaDB: the `mariadbd` of this machine, on a new data directory. In CI it is installed from the Debian package."""

from __future__ import annotations

import hashlib
import os
import shutil
import signal
import socket
import tempfile
from pathlib import Path
from typing import Final

from streams_app.embedded.child import Child
from streams_app.embedded.ports import LOOPBACK
from streams_app.embedded.server import EmbeddedServer, start_on_a_port
from tests.servers.cache import CACHE, ServerUnavailableError, filling, run

NAME: Final = "MariaDB"

_INSTALL_LIMIT_SECONDS = 120
_PATH = f"{os.environ.get('PATH', '')}:/usr/sbin:/usr/local/sbin"
_SMALL = (
    "innodb-buffer-pool-size=16M", "innodb-log-file-size=16M", "innodb-flush-log-at-trx-commit=0", "innodb-doublewrite=0",
    "max-connections=60", "skip-log-bin", "skip-name-resolve", "performance-schema=OFF",
)  # fmt: skip
_START_LIMIT_MS = 60_000


class MariaDB(EmbeddedServer):
    """A running server; its directory is kept after a kill and removed by :meth:`stop`."""

    def __init__(self, child: Child, port: int, directory: Path, options: tuple[str, ...]) -> None:
        super().__init__(child)
        self.port = port
        self.directory = directory
        self.url = f"mysql://root@{LOOPBACK}:{port}/mysql"
        self.description = NAME
        self._options = options

    @staticmethod
    def start(port: int | None = None, directory: Path | None = None, options: tuple[str, ...] = ()) -> MariaDB:
        """Start it and return when it answers.

        Args:
            port: ``None``: a free one.
            directory: One that a server had before; ``None``: a new one.
            options: Further options of ``mariadbd``, without the dashes.

        Raises:
            ServerUnavailableError: It is not installed.
            EmbeddedServerError: It did not start; the message shows its log.
        """
        server = _program("mariadbd")
        home = directory or _made()
        user = ["--user=root"] if os.geteuid() == 0 else []

        def start_once(chosen: int) -> MariaDB:
            given = [f"--{option}" for option in (*_SMALL, *options)]
            folders = [f"--datadir={home}/data", f"--socket={home}/socket", f"--pid-file={home}/pid", f"--tmpdir={home}"]
            address = [f"--bind-address={LOOPBACK}", f"--port={chosen}"]
            child = Child("mariadb", [server, "--no-defaults", *user, *folders, *address, *given], home, {"HOME": str(home)})
            child.wait_until_ready(lambda: _answers(chosen), _START_LIMIT_MS)
            return MariaDB(child, chosen, home, options)

        return start_on_a_port(port, start_once, taken="Address already in use")

    def restart(self) -> MariaDB:
        """Restart it after a kill, on the same port and with the same data."""
        return MariaDB.start(self.port, self.directory, self._options)

    def stop(self) -> None:
        """End it without waiting for its clients, and remove its directory."""
        if self.is_running:
            os.kill(self.pid, signal.SIGKILL)
        super().stop()
        shutil.rmtree(self.directory, ignore_errors=True)


def _made() -> Path:
    """Create a directory with the tables of the system: a copy, because to create them takes seconds."""
    home = Path(tempfile.mkdtemp(prefix="streams-app-mariadb-"))
    try:
        shutil.copytree(_system_tables(), home / "data")
    except BaseException:
        shutil.rmtree(home, ignore_errors=True)
        raise
    return home


def _system_tables() -> Path:
    """Return a data directory with the tables of the system, created once for each version."""
    version = run([_program("mariadbd"), "--no-defaults", "--version"], _INSTALL_LIMIT_SECONDS)
    target = CACHE / f"mariadb-{hashlib.sha256(version.encode()).hexdigest()[:12]}"
    if not target.is_dir():
        user = [f"--user={'root' if os.geteuid() == 0 else os.environ.get('USER', '')}"]
        options = ["--auth-root-authentication-method=normal", "--skip-test-db", *user]
        with filling(target) as part:
            small = [f"--{one}" for one in _SMALL if one.startswith("innodb")]
            install = [_program("mariadb-install-db"), "--no-defaults", f"--datadir={part}", *options, *small]
            run(install, _INSTALL_LIMIT_SECONDS, cwd=part)
    return target


def _program(name: str) -> str:
    found = shutil.which(name, path=_PATH)
    if found is None:
        raise ServerUnavailableError(f"there is no {name}: apt-get install mariadb-server-core mariadb-client-core")
    return found


def _answers(port: int) -> bool:
    """Whether it accepts connections: it then sends a greeting of protocol 10."""
    with socket.create_connection((LOOPBACK, port), timeout=1) as connection:
        return connection.recv(5)[4:] == b"\x0a"
