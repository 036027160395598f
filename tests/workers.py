"""Workers as processes of their own, as an operator starts and ends them."""

from __future__ import annotations

import asyncio
import os
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

from streams_app.embedded.child import Child
from tests.helpers import wait_until
from tests.servers.cache import ROOT

_LISTENS = re.compile(r"http listens url=(http://[\w.:\[\]-]+)")


class WorkerProcess:
    """``python -m streams_app worker`` as a process of its own; killed at the end of the ``with`` block.

    Args:
        config: Its ``streams.toml``.
        directory: Gets a directory per worker, with its log: ``tmp_path``.
        environment: Added to the variables of this process.
        arguments: Further ones of the command.
    """

    def __init__(
        self, config: Path, directory: Path, environment: Mapping[str, str] | None = None, arguments: Sequence[str] = ()
    ) -> None:
        home = Path(tempfile.mkdtemp(prefix="worker-", dir=directory))
        command = self.command(config, arguments)
        path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
        # A Child: it dies with the tests, even when they are killed.
        self._child = Child("worker", command, home, {"PYTHONPATH": path, **(environment or {})})
        self._process = self._child._process

    def command(self, config: Path, arguments: Sequence[str]) -> list[str]:
        """What is run."""
        return [sys.executable, "-m", "streams_app", "worker", "--config", str(config.resolve()), *arguments]

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._child.pid

    @property
    def exit_code(self) -> int | None:
        """None while it runs; negative: the signal that ended it."""
        return self._process.poll()

    @property
    def url(self) -> str | None:
        """Where its HTTP server listens, once it does."""
        found = _LISTENS.search(self.log())
        return found[1] if found else None

    def log(self) -> str:
        """All it has written to stdout and stderr."""
        return self._child.log_path.read_text("utf-8", errors="replace")

    async def get(self, path: str) -> tuple[int, str]:
        """Status and body of its answer; status 0 when it does not answer."""
        url = self.url
        return await asyncio.to_thread(get_page, f"{url}{path}") if url else (0, "")

    async def wait_ready(self, timeout_seconds: float = 60) -> None:
        """Return when ``/health/ready`` says so.

        Raises:
            AssertionError: It ended, or the time passed; with its log.
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
        """Its exit code, once it has ended.

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
        """SIGTERM, then its exit code.

        Raises:
            AssertionError: It still runs after the limit; with its log.
        """
        self._process.terminate()
        return await self.wait_exit(limit_seconds)

    def kill(self) -> None:
        """SIGKILL, as a crash would end it; waits for the end."""
        self._process.kill()
        self._process.wait()

    def stop_signal(self) -> None:
        """SIGSTOP: the process lives and does nothing, as in a long pause of the machine."""
        self._process.send_signal(signal.SIGSTOP)

    def continue_signal(self) -> None:
        """SIGCONT."""
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
