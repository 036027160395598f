"""A server as a child process: started through `guard.py`, watched until it responds, ended with its parent.

This module manages the process, its directory and its log file. The caller implements the protocol of the server.

A signal handler, such as that of Ctrl-C, may raise an exception in the main thread between any two instructions. A lock that was
acquired by the instruction before is then never released. ``Popen.poll`` has such a lock, so only a thread of this module calls
methods of ``Popen`` that wait; all other threads read ``returncode``.
"""

from __future__ import annotations

import contextlib
import logging
import math
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from queue import SimpleQueue
from threading import Lock, Thread
from typing import Literal, TypeAlias

from streams_app.clock import SystemClock
from streams_app.embedded import guard
from streams_app.errors import TryAgainError

logger = logging.getLogger(__name__)

GuardWay = Literal["signal", "pipe"]

_LOG_FILE = "server.log"
_LOG_TAIL_BYTES = 4_000
_POLL_SECONDS = 0.02


class EmbeddedServerError(TryAgainError):
    """A server did not start or did not respond in time; the message ends with the last lines of its log."""


_Reply: TypeAlias = "SimpleQueue[subprocess.Popen[bytes] | BaseException]"


class _Forker:
    """Forks every child process in one thread, which lives as long as this process.

    With ``PR_SET_PDEATHSIG``, the kernel kills a child process when the *thread* that forked it ends. A server that a pool thread
    has started would be killed when the pool shrinks.
    """

    def __init__(self) -> None:
        self._lock = Lock()
        self._owner_pid = 0
        self._jobs: SimpleQueue[tuple[Callable[[], subprocess.Popen[bytes]], _Reply]]

    def fork(self, start: Callable[[], subprocess.Popen[bytes]]) -> subprocess.Popen[bytes]:
        with self._lock:
            # After os.fork, the child process has this object but not the thread.
            if self._owner_pid != os.getpid():
                self._jobs = SimpleQueue()
                Thread(target=self._work, name="embedded-forker", daemon=True).start()
                self._owner_pid = os.getpid()
        reply: _Reply = SimpleQueue()
        self._jobs.put((start, reply))
        outcome = reply.get()
        if isinstance(outcome, BaseException):
            raise outcome
        return outcome

    def _work(self) -> None:
        while True:
            start, reply = self._jobs.get()
            try:
                process = start()
                # Started here, because the start of a thread takes locks, too.
                Thread(target=process.wait, name=f"embedded-{process.pid}", daemon=True).start()
                reply.put(process)
            except BaseException as error:  # noqa: BLE001 - passed to the caller, the thread must continue
                reply.put(error)


_forker = _Forker()


class Child:
    """A running server process, and the directory in which it runs and writes its log.

    Args:
        command: Absolute path of the program, followed by its arguments.
        directory: Folder in which the server runs and writes its log; None for a temporary one that is removed at the end.
        environment: Environment variables that are added to those of this process.
        guard_way: How the server is tied to this process, see ``guard.py``; None for the best way on this system.
    """

    def __init__(
        self,
        name: str,
        command: Sequence[str],
        directory: Path | None = None,
        environment: Mapping[str, str] | None = None,
        guard_way: GuardWay | None = None,
    ) -> None:
        self.name = name
        self._is_temporary = directory is None
        self.directory = directory or Path(tempfile.mkdtemp(prefix=f"streams-app-{name}-"))
        self.directory.mkdir(parents=True, exist_ok=True)
        self.log_path = self.directory / _LOG_FILE
        self._clock = SystemClock()
        self._write_fd: int | None = None
        way = guard_way or ("signal" if sys.platform == "linux" else "pipe")
        self._process = _forker.fork(lambda: self._start(way, list(command), dict(environment or {})))

    def _start(self, way: GuardWay, command: list[str], environment: dict[str, str]) -> subprocess.Popen[bytes]:
        pass_fds: tuple[int, ...] = ()
        number = os.getpid()
        if way == "pipe":
            # Child processes do not inherit the ends of os.pipe by default, so only this process has the writing end.
            number, self._write_fd = os.pipe()
            pass_fds = (number,)
        python = [sys.executable, "-I", "-S", guard.__file__, way, str(number)]
        try:
            with self.log_path.open("ab") as log:
                return subprocess.Popen(
                    [*python, *command],
                    cwd=self.directory,
                    env={**os.environ, **environment},
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    pass_fds=pass_fds,
                    # Ctrl-C is sent to the whole process group: the server must outlive the worker, which needs it to shut down.
                    start_new_session=True,
                )
        finally:
            for fd in pass_fds:
                os.close(fd)

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def is_running(self) -> bool:
        return self._process.returncode is None

    def log_tail(self) -> str:
        """Return the last 4 000 bytes of the server's log as text; empty if the log cannot be read."""
        try:
            return self.log_path.read_bytes()[-_LOG_TAIL_BYTES:].decode(errors="replace").strip()
        except OSError:
            return ""

    def wait_until_ready(self, is_ready: Callable[[], bool], limit_ms: int) -> None:
        """Wait until the server is ready. After any error, the process is killed, and a temporary directory is removed.

        Args:
            is_ready: Returns whether the server is ready; an ``OSError`` means that it is not ready yet.
        """
        try:
            if self._answers_within(is_ready, limit_ms):
                return
        except BaseException:  # also KeyboardInterrupt, because the caller has no object yet with which to stop the server
            self.kill()
            raise
        how = f"did not respond within {limit_ms} ms"
        if not self.is_running:
            how = f"ended at startup with exit code {self._process.returncode}"
        log = self.log_tail() or "(its log is empty)"
        self.kill()
        raise EmbeddedServerError(f"{self.name} {how}; its log ends with:\n{log}")

    def _answers_within(self, is_ready: Callable[[], bool], limit_ms: int) -> bool:
        deadline_ms = self._clock.monotonic_ms() + limit_ms
        while self.is_running and self._clock.monotonic_ms() < deadline_ms:
            with contextlib.suppress(OSError):
                if is_ready():
                    return True
            time.sleep(_POLL_SECONDS)
        return False

    def kill(self) -> None:
        """Kill the process by SIGKILL, like a crash, and clean up as `stop` does."""
        self._send(signal.SIGKILL)
        self.stop()

    def stop(self, limit_seconds: float = 10) -> None:
        """End the process by SIGTERM, or by SIGKILL after the time limit; then remove a temporary directory.

        A second call does nothing.
        """
        self._send(signal.SIGTERM)
        deadline_ms = self._clock.monotonic_ms() + limit_seconds * 1000
        while self.is_running:
            if self._clock.monotonic_ms() > deadline_ms:
                logger.warning("embedded server ignores SIGTERM, killing it name=%s pid=%d", self.name, self.pid)
                self._send(signal.SIGKILL)
                deadline_ms = math.inf
            time.sleep(_POLL_SECONDS)
        if self._write_fd is not None:
            os.close(self._write_fd)
            self._write_fd = None
        if self._is_temporary:
            shutil.rmtree(self.directory, ignore_errors=True)

    def _send(self, number: signal.Signals) -> None:
        """Send a signal to the process, unless it has ended."""
        if self.is_running:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)
