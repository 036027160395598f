"""Redis 7: `redis-server` of this machine, or from the Debian packages, unpacked without installing them."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import redis

from streams_app.embedded.child import Child
from streams_app.embedded.ports import LOOPBACK
from streams_app.embedded.server import EmbeddedServer, start_on_a_port
from tests.servers.cache import CACHE, Progress, ServerUnavailableError, run, silent
from tests.servers.debian import unpack

NAME = "Redis 7"
DIRECTORY = CACHE / "redis7"

_LIMIT_SECONDS = 300
_START_LIMIT_MS = 60_000
_VERSION = re.compile(r"^Redis server v=(7\.\S+)")


class Redis7(EmbeddedServer):
    """A running Redis 7, with the attributes of the embedded `Valkey`."""

    def __init__(self, child: Child, port: int, version: str, *, appendonly: bool) -> None:
        super().__init__(child)
        self.port = port
        self.url = f"redis://{LOOPBACK}:{port}/0"
        self.description = f"redis {version} ({'append-only file' if appendonly else 'in memory'})"

    @staticmethod
    def start(
        port: int | None = None, directory: Path | None = None, *, appendonly: bool = False, extra_args: Sequence[str] = ()
    ) -> Redis7:
        """Start it and return when it answers.

        Args:
            port: ``None``: a free one.
            directory: For its log and its append-only file; kept at the end. ``None``: a temporary one, removed.
            appendonly: Keep the data across a restart on the same directory.
            extra_args: Further arguments of `redis-server`.

        Raises:
            ServerUnavailableError: There is no Redis 7 and it cannot be fetched.
            EmbeddedServerError: It did not start; the message shows its log.
        """
        program = fetch()
        keep = ["--appendonly", "yes" if appendonly else "no", "--save", "", "--maxmemory-policy", "noeviction"]

        def start_once(chosen: int) -> Redis7:
            child = Child("redis", [str(program), "--port", str(chosen), "--bind", LOOPBACK, *keep, *extra_args], directory)
            child.wait_until_ready(lambda: _info(chosen).get("process_id") == child.pid, _START_LIMIT_MS)
            return Redis7(child, chosen, str(_info(chosen).get("redis_version", "unknown")), appendonly=appendonly)

        return start_on_a_port(port, start_once, taken="in use")


def fetch(progress: Progress = silent) -> Path:
    """Return the path of a `redis-server` of version 7 that runs here; fetch it if there is none.

    Raises:
        ServerUnavailableError: There is none and the packages are not available.
    """
    on_path = shutil.which("redis-server")
    if on_path and _version(Path(on_path)):
        return Path(on_path)
    program = DIRECTORY / "usr" / "bin" / "redis-server"
    if not DIRECTORY.is_dir():
        unpack(NAME, DIRECTORY, ["redis-server", "redis-tools"], progress)
    _complete_libraries(program, progress)
    if not _version(program):
        raise ServerUnavailableError("the packages of this system hold another version of Redis")
    return program


def _complete_libraries(program: Path, progress: Progress) -> None:
    """Install the missing shared libraries of the program.

    Through `redis-tools`, which needs the same ones: `redis-server` would also start a service on the default port.
    """
    missing = _missing_libraries(program)
    if not missing:
        return
    if os.geteuid() != 0:
        raise ServerUnavailableError(f"{', '.join(missing)} missing; as root: apt-get install redis-tools")
    progress(f"{NAME}: installing {', '.join(missing)} ...")
    install = ["apt-get", "install", "--yes", "--no-install-recommends", "redis-tools"]
    try:
        run(install, _LIMIT_SECONDS)
    except ServerUnavailableError:
        run(["apt-get", "update"], _LIMIT_SECONDS)
        run(install, _LIMIT_SECONDS)
    if missing := _missing_libraries(program):
        raise ServerUnavailableError(f"{', '.join(missing)} missing")


def _missing_libraries(program: Path) -> list[str]:
    lines = run(["ldd", str(program)], _LIMIT_SECONDS).splitlines()
    return [line.split()[0] for line in lines if "not found" in line]


def _version(program: Path) -> str | None:
    """Return its version if it is Redis 7; Valkey may be installed under this name, too."""
    try:
        found = _VERSION.match(run([str(program), "--version"], _LIMIT_SECONDS))
    except ServerUnavailableError:
        return None
    return found[1] if found else None


def _info(port: int) -> dict[str, Any]:
    try:
        with redis.Redis(host=LOOPBACK, port=port, socket_timeout=1) as client:
            info: dict[str, Any] = client.info("server")
    except redis.RedisError:
        return {}
    return info
