"""The program of the package as processes that are forked from one which has imported it: imports are half of a start.

:class:`ForkedProcess` is ``subprocess.Popen`` for ``python -m streams_app``. The forked process differs from a new one only in what
it has imported, and in that these modules are neither collected nor freed: to visit them when a process ends would take longer than
most commands. A command for which that could matter is not forked: see :func:`is_forkable`. The server is this module as a
program. It has no threads, it ends with the tests, and its processes end with it.
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import json
import os
import random
import runpy
import selectors
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from streams_app.embedded.child import Child
from streams_app.embedded.guard import die_with_parent
from streams_app.process_exit import exit_now
from tests.servers.cache import ROOT

IMPORTED: Final = (
    "streams_app.worker.runtime",
    "streams_app.cli.worker",
    "streams_app.cli.check",
    "streams_app.cli.dead_letters",
    "streams_app.cli.groups",
    "streams_app.cli.events",
    "streams_app.cli.journal",
    "streams_app.cli.live",
    "streams_app.cli.read_store",
    "streams_app.cli.reset",
    "streams_app.cli.topics",
    "streams_app.read_store.sqlite",
    "streams_app.read_store.postgresql",
    # What the commands import once they run:
    "faust.app.router",
    "faust.assignor.partition_assignor",
    "faust.events",
    "faust.fixups.django",
    "faust.tables.objects",
    "faust.tables.sets",
    "faust.topics",
    "faust.worker",
    "streams_app.cli.forget",
    "streams_app.cli.progress",
    "streams_app.cli.sentences",
    "streams_app.cli.tables",
    "streams_app.live.hub.serving",
    "streams_app.operations.explain_event",
    "streams_app.operations.explain_group",
    "streams_app.operations.forget",
    "streams_app.operations.group_text",
    "streams_app.operations.journal_verify",
    "streams_app.operations.rebuild",
    "streams_app.operations.reset_fold",
    "streams_app.operations.live",
    "streams_app.operations.live_import",
    "streams_app.operations.read_store_status",
    "streams_app.operations.replay_preparation",
    "streams_app.operations.topics",
)
"""Modules that the server imports. Importing them starts no thread and patches nothing; numpy would start threads."""

PROGRAMS: Final = ("streams_app", "tests.chaos.kill_points", "tests.helpers.worker.impatient", "tests.helpers.worker.patient")
"""Modules that may be forked: the program, and variants of it that replace methods of what is already imported."""

PYTHONPATH: Final = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
"""The module search path of the server."""

_OF_INTERPRETER = ("PYTHON", "LC_", "LANG", "LD_", "MALLOC_")
"""Prefixes of environment variables that Python or the C library reads when a process starts."""
_START_MS = 60_000


def is_forkable(command: Sequence[str], environment: Mapping[str, str]) -> bool:
    """Return whether a command is ``python -m`` with one of :data:`PROGRAMS`, in an environment that needs no new interpreter."""
    differing = {name for name in environment.keys() | os.environ.keys() if environment.get(name) != os.environ.get(name)}
    return (
        _Session.is_open
        and sys.platform == "linux"
        and list(command[:2]) == [sys.executable, "-m"]
        and command[2] in PROGRAMS
        and _is_importable(environment.get("PYTHONPATH", "").split(os.pathsep))
        and not [name for name in differing - {"PYTHONPATH"} if name.startswith(_OF_INTERPRETER)]
    )


def _is_importable(path: Sequence[str]) -> bool:
    """Return whether a forked process imports the same modules as a new one with this search path.

    It must contain the path of the server; what further folders contain must not have the name of another module.
    """
    if not {*PYTHONPATH.split(os.pathsep)} <= {*path}:
        return False
    own = [Path(folder) for folder in path if folder not in PYTHONPATH.split(os.pathsep)]
    names = {entry.name.partition(".")[0] for folder in own if folder.is_dir() for entry in folder.iterdir()} - {"__pycache__"}
    return not [name for name in names if name.isidentifier() and find_spec(name) is not None]


class ForkedProcess:
    """A process of the server, with the part of ``subprocess.Popen`` that tests use."""

    def __init__(self, command: Sequence[str], cwd: Path, environment: Mapping[str, str], out: int, err: int) -> None:
        self.args = list(command)
        self.returncode: int | None = None
        self._connection = _server().connect()
        request = json.dumps([list(command[2:]), str(cwd), dict(environment)]).encode()
        socket.send_fds(self._connection, [len(request).to_bytes(4, "big")], [out, err])
        self._connection.sendall(request)
        self.pid = int.from_bytes(_received(self._connection, 4), "big")

    def poll(self) -> int | None:
        """Return the exit code, negative for the signal that ended the process; None while it runs."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            return self.wait(0)
        return None

    def wait(self, timeout: float | None = None) -> int:
        """Wait for the end, and return the exit code as `poll` does.

        Raises:
            subprocess.TimeoutExpired: It still runs.
        """
        if self.returncode is None:
            self._connection.settimeout(timeout)
            try:
                self.returncode = int.from_bytes(_received(self._connection, 4), "big", signed=True)
            except (TimeoutError, BlockingIOError):
                raise subprocess.TimeoutExpired(self.args, timeout or 0) from None
            self._connection.close()
        return self.returncode

    def send_signal(self, number: int) -> None:
        """Send a signal, unless the process has ended."""
        if self.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def terminate(self) -> None:
        """Send SIGTERM, unless the process has ended."""
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """Send SIGKILL, unless the process has ended."""
        self.send_signal(signal.SIGKILL)

    def __del__(self) -> None:
        self._connection.close()


def _variables(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the variables of a process. It also imports what this process imports by ``PYTHONPATH``, which a test may have set."""
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    return {**os.environ, "PYTHONPATH": path, **environment}


def start_process(
    name: str, command: Sequence[str], directory: Path, environment: Mapping[str, str]
) -> ForkedProcess | subprocess.Popen[bytes]:
    """Start a process that runs and writes ``server.log`` in a directory, and ends with the tests, even if they are killed.

    Args:
        name: Its name in messages.
        command: Its command line.
        directory: An existing directory.
        environment: Variables in addition to those of this process.
    """
    variables = _variables(environment)
    if not is_forkable(command, variables):
        return Child(name, command, directory, variables)._process
    with (directory / "server.log").open("ab") as log:
        return ForkedProcess(command, directory, variables, log.fileno(), log.fileno())


def run(command: Sequence[str], cwd: Path, environment: Mapping[str, str], timeout: float) -> subprocess.CompletedProcess[str]:
    """Run a command to its end, without input; ``environment`` is added to that of this process.

    Raises:
        subprocess.TimeoutExpired: It did not end in time, and was killed.
    """
    variables = _variables(environment)
    if not is_forkable(command, variables):
        return subprocess.run(
            command,
            check=False,
            capture_output=True,
            text=True,
            timeout=timeout,
            cwd=cwd,
            env=variables,
            stdin=subprocess.DEVNULL,
        )
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        process = ForkedProcess(command, cwd, variables, out.fileno(), err.fileno())
        try:
            code = process.wait(timeout)
        finally:
            process.kill()
        for file in (out, err):
            file.seek(0)
        return subprocess.CompletedProcess(list(command), code, out.read().decode(), err.read().decode())


def _received(connection: socket.socket, size: int) -> bytes:
    """Return the next bytes of a connection; fewer of them if it is closed."""
    found = b""
    while len(found) < size and (part := connection.recv(size - len(found))):
        found += part
    if len(found) < size:
        raise ConnectionError("the fork server has ended")
    return found


# The server, seen from the tests


class _Server:
    """The server of this process."""

    def __init__(self) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="streams-app-fork-")
        self._path = Path(self._folder.name) / "socket"
        command = [sys.executable, "-m", "tests.helpers.worker.fork_server", str(self._path)]
        self._child = Child("fork server", command, Path(self._folder.name) / "home", {"PYTHONPATH": PYTHONPATH})
        self._child.wait_until_ready(self._answers, _START_MS)

    def connect(self) -> socket.socket:
        connection = socket.socket(socket.AF_UNIX)
        try:
            connection.connect(str(self._path))
        except OSError:
            connection.close()
            raise
        return connection

    def stop(self) -> None:
        self._child.stop()
        self._folder.cleanup()

    def _answers(self) -> bool:
        self.connect().close()
        return True


class _Session:
    """Whether processes are forked, and the server once the first one is."""

    is_open = False
    server: _Server | None = None


@contextmanager
def session() -> Iterator[None]:
    """Fork processes during the block. At its end, the server ends, and with it all its processes.

    Outside of it, as in benchmarks and chaos runs, each process is a new one.
    """
    _Session.is_open = True
    try:
        yield
    finally:
        _Session.is_open = False
        if _Session.server is not None:
            _Session.server.stop()


def _server() -> _Server:
    if _Session.server is None:
        _Session.server = _Server()
    return _Session.server


# The server itself


def _serve(path: str) -> Callable[[], None]:
    """Fork a process for each request. Return only in a forked process: what it has to run."""
    children: dict[int, socket.socket] = {}
    wake_out, wake_in = os.pipe()
    os.set_blocking(wake_in, False)
    signal.set_wakeup_fd(wake_in)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    with socket.socket(socket.AF_UNIX) as listening, selectors.DefaultSelector() as selector:
        listening.bind(path)
        listening.listen(64)
        selector.register(listening, selectors.EVENT_READ)
        selector.register(wake_out, selectors.EVENT_READ)
        while True:
            for key, _ in selector.select():
                if key.fileobj is not listening:
                    os.read(wake_out, 4096)
                    _report_ended(children)
                    continue
                connection, _ = listening.accept()
                head, files, _, _ = socket.recv_fds(connection, 4, 2)
                if len(head) < 4:
                    connection.close()  # a check whether the server runs
                    continue
                command, cwd, environment = json.loads(_received(connection, int.from_bytes(head, "big")))
                parent = os.getpid()
                if pid := os.fork():
                    children[pid] = connection
                    for file in files:
                        os.close(file)
                    connection.sendall(pid.to_bytes(4, "big"))
                    continue
                signal.set_wakeup_fd(-1)
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                for one in (connection, *children.values()):
                    one.close()
                os.close(wake_in)
                os.close(wake_out)
                _become(parent, cwd, environment, files)
                return lambda: _run_module(command)


def _report_ended(children: dict[int, socket.socket]) -> None:
    """Send the exit codes of the processes that have ended."""
    for pid in list(children):
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended:
            with children.pop(pid) as connection, contextlib.suppress(OSError):
                connection.sendall(os.waitstatus_to_exitcode(status).to_bytes(4, "big", signed=True))


def _become(parent: int, cwd: str, environment: dict[str, str], files: list[int]) -> None:
    """Give a forked process its session, files, directory and environment."""
    os.setsid()
    die_with_parent(parent)
    null = os.open(os.devnull, os.O_RDONLY)
    for number, file in enumerate([null, *files]):
        os.dup2(file, number)
        os.close(file)
    os.chdir(cwd)
    os.environ.clear()
    os.environ.update(environment)
    sys.path[:0] = ["", *(folder for folder in environment["PYTHONPATH"].split(os.pathsep) if folder not in sys.path)]
    time.tzset()
    random.seed()


def _run_module(command: list[str]) -> None:
    """Run ``-m MODULE ARGUMENTS`` as the main module of this process.

    The process ends as Python does, but without freeing its objects: the kernel would copy all of them that the server has, too,
    which takes longer than most commands.
    """
    sys.argv = command
    sys.path[0] = str(Path.cwd())
    code = 0
    try:
        runpy.run_module(command[0], run_name="__main__", alter_sys=True)
    except SystemExit as ended:
        if isinstance(ended.code, str):
            raise  # Python prints it
        code = ended.code or 0
    threading._shutdown()  # type: ignore[attr-defined]  # waits for threads, as Python does before it calls what `atexit` has
    atexit._run_exitfuncs()
    sys.stderr.flush()
    exit_now(code)


def _main(path: str) -> None:
    for module in IMPORTED:
        import_module(module)
    gc.collect()
    gc.freeze()
    work = _serve(path)
    work()


if __name__ == "__main__":
    _main(sys.argv[1])
