"""The cache of fetched servers. A download is renamed when it is complete, which distinguishes it from an interrupted one."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
CACHE = ROOT / ".cache"

Progress = Callable[[str], None]

_OUTPUT_TAIL = 2_000


class ServerUnavailableError(Exception):
    """A server is not available on this machine; the message says what is missing."""


def silent(line: str) -> None:
    """Ignore progress."""


@contextmanager
def filling(target: Path) -> Iterator[Path]:
    """Yield a new directory beside ``target`` that becomes ``target`` if the block succeeds; remove it otherwise.

    Two processes may fill at the same time: the first one's directory stays, the other's is dropped.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    part = Path(tempfile.mkdtemp(prefix=f"{target.name}.part-", dir=target.parent))
    try:
        yield part
        part.chmod(0o755)
        try:
            part.rename(target)
        except OSError:
            if not target.is_dir():
                raise
    finally:
        shutil.rmtree(part, ignore_errors=True)


def run(command: Sequence[str], limit_seconds: float, cwd: Path | None = None) -> str:
    """Run a program to its end; return its output.

    Raises:
        ServerUnavailableError: It is missing, failed, or took too long; the message has the end of its output.
    """
    try:
        done = subprocess.run(
            command, cwd=cwd, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            timeout=limit_seconds, check=False, text=True, errors="replace",
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ServerUnavailableError(f"{command[0]}: {error}") from error
    if done.returncode != 0:
        tail = done.stdout[-_OUTPUT_TAIL:].strip()
        raise ServerUnavailableError(f"`{' '.join(command)}` ended with exit code {done.returncode}:\n{tail}")
    return done.stdout
