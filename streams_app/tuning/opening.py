"""A file, or standard input, as a stream of the bytes that were compressed into it."""

from __future__ import annotations

import gzip
import os
import stat
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, BinaryIO, Final

from streams_app.errors import ConfigurationError
from streams_app.tuning.zstd import decompressed

STANDARD_INPUT: Final = Path("-")
_GZIP: Final = b"\x1f\x8b"
_ZSTD: Final = b"\x28\xb5\x2f\xfd"


@contextmanager
def opened(path: Path) -> Iterator[tuple[BinaryIO, Callable[[], int]]]:
    """A file as a stream of what was compressed into it, and a function that says how many of its bytes are read.

    Raises:
        ConfigurationError: It cannot be opened.
    """
    with ExitStack() as stack:
        try:
            file: Any = _standard_input() if path == STANDARD_INPUT else stack.enter_context(path.open("rb"))
            head = file.peek(len(_ZSTD))[: len(_ZSTD)]
        except OSError as error:
            raise ConfigurationError([f"--file: cannot read {path}: {error.strerror}"]) from error
        if head.startswith(_GZIP):
            yield stack.enter_context(gzip.GzipFile(fileobj=file)), lambda: _told(file)  # type: ignore[misc]  # it is one
        elif head.startswith(_ZSTD):
            if not _is_on_disk(file):
                raise ConfigurationError([f"--file {path}: a pipe compressed by zstd cannot be read: pipe it through `zstd -dc`"])
            yield stack.enter_context(decompressed(file)), lambda: 0
        else:
            yield file, lambda: _told(file)


def _standard_input() -> Any:
    if sys.stdin is None:
        raise ConfigurationError(["--file -: standard input is closed: pipe the events into it, or name a file"])
    return sys.stdin.buffer


def _is_on_disk(file: Any) -> bool:
    return stat.S_ISREG(os.fstat(file.fileno()).st_mode)


def size_of(path: Path) -> int | None:
    """Bytes of a file, as far as :func:`opened` can say how many of them are read."""
    if not path.is_file():  # a pipe can be opened only once
        return None
    try:
        with path.open("rb") as file:
            return None if file.read(len(_ZSTD)).startswith(_ZSTD) else os.fstat(file.fileno()).st_size
    except OSError:
        return None  # said when it is opened to be read


def _told(file: Any) -> int:
    try:
        return int(file.tell())
    except OSError:
        return 0  # a pipe
