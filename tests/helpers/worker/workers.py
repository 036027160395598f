"""Worker processes, started and stopped as by an operator."""

from __future__ import annotations

import asyncio
import re
import signal
import sys
import tempfile
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from tests.helpers.waiting import wait_until
from tests.helpers.worker.fork_server import start_process

_LISTENS = re.compile(r"http listens url=(http://[\w.:\[\]-]+)")


class WorkerProcess:
    """A process ``python -m streams_app worker``, killed at the end of the ``with`` block.

    Args:
        config: Its ``streams.toml``.
        directory: Parent of a directory for each worker, with its log: ``tmp_path``.
        environment: Variables in addition to those of this process.
        arguments: Further arguments of the command.
    """

    def __init__(
        self, config: Path, directory: Path, environment: Mapping[str, str] | None = None, arguments: Sequence[str] = ()
    ) -> None:
        home = Path(tempfile.mkdtemp(prefix="worker-", dir=directory))
        command = self.command(config, arguments)
        self._log_path = home / "server.log"
        self._process = start_process("worker", command, home, environment or {})

    def command(self, config: Path, arguments: Sequence[str]) -> list[str]:
        """Return the command line."""
        return [sys.executable, "-m", "streams_app", "worker", "--config", str(config.resolve()), *arguments]

    @property
    def pid(self) -> int:
        """Process id."""
        return self._process.pid

    @property
    def exit_code(self) -> int | None:
        """Exit code; None while it runs, negative for the signal that ended it."""
        return self._process.poll()

    @property
    def url(self) -> str | None:
        """Wait for its HTTP server and return the URL."""
        found = _LISTENS.search(self.log())
        return found[1] if found else None

    def log(self) -> str:
        """Return its output to stdout and stderr."""
        return self._log_path.read_text("utf-8", errors="replace")

    async def get(self, path: str) -> tuple[int, str]:
        """Return status and body of its answer; status 0 if it does not answer."""
        url = self.url
        return await asyncio.to_thread(get_page, f"{url}{path}") if url else (0, "")

    async def wait_ready(self, timeout_seconds: float = 60) -> None:
        """Wait until ``/health/ready`` reports that it is ready.

        Raises:
            AssertionError: It ended, or the time passed; the message has its log.
        """
        status = 0

        async def is_ready() -> bool:
            nonlocal status
            assert self.exit_code is None, f"the worker ended with exit code {self.exit_code}; its log:\n{self.log()}"
            status, _ = await self.get("/health/ready")
            return status == 200

        try:
            await wait_until(is_ready, timeout_seconds, "the worker is ready")
        except AssertionError as error:
            raise AssertionError(f"{error} status {status} from {self.url}; its log:\n{self.log()}") from None

    async def wait_exit(self, limit_seconds: float) -> int:
        """Wait until it has ended and return its exit code.

        Raises:
            AssertionError: It still runs; with its log.
        """
        try:
            await wait_until(lambda: self.exit_code is not None, limit_seconds, "the worker has ended")
        except AssertionError as error:
            raise AssertionError(f"{error}; its log:\n{self.log()}") from None
        assert self.exit_code is not None
        return self.exit_code

    async def terminate(self, limit_seconds: float = 20) -> int:
        """Send SIGTERM and return its exit code.

        Raises:
            AssertionError: It still runs after the limit; the message has its log.
        """
        self._process.terminate()
        return await self.wait_exit(limit_seconds)

    def kill(self) -> None:
        """Send SIGKILL, as a crash would end it; wait for the end."""
        self._process.kill()
        self._process.wait()

    def stop_signal(self) -> None:
        """Suspend the process by SIGSTOP, as in a long pause of the machine."""
        self._process.send_signal(signal.SIGSTOP)

    def continue_signal(self) -> None:
        """Resume the process by SIGCONT."""
        self._process.send_signal(signal.SIGCONT)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        self.kill()


def get_page(url: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(url, timeout=5) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()
    except OSError:
        return 0, ""
