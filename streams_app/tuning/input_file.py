"""Opens a file of JSON lines, or standard input, decompresses it, and splits it into lines."""

from __future__ import annotations

import gzip
import io
import mmap
import os
import stat
import sys
import threading
import zlib
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, BinaryIO, Final

import cramjam

from streams_app.errors import ConfigurationError

STANDARD_INPUT: Final = Path("-")
FAULTS: Final = (OSError, EOFError, zlib.error)
"""Errors of a disk, or of a compressed file that is damaged or truncated."""

_BYTE_ORDER: Final = b"\xef\xbb\xbf"
"""Byte order mark that some programs write before the first line."""

_GZIP: Final = b"\x1f\x8b"
_ZSTD: Final = b"\x28\xb5\x2f\xfd"


@contextmanager
def opened(path: Path, option: str = "--file") -> Iterator[tuple[BinaryIO, Callable[[], int]]]:
    """Open a file, or ``-`` for standard input, as a decompressed stream; also yield a function.

    The function returns how many bytes of the file were read, 0 for zstd and pipes. ``option`` has named the file.

    Raises:
        ConfigurationError: The file cannot be opened, or is a pipe compressed by zstd.
    """
    with ExitStack() as stack:
        try:
            file: Any = _standard_input() if path == STANDARD_INPUT else stack.enter_context(path.open("rb"))
            head = file.peek(len(_ZSTD))[: len(_ZSTD)]
        except OSError as error:
            raise ConfigurationError([f"{option}: cannot read {path}: {error.strerror}"]) from error
        if head.startswith(_GZIP):
            yield stack.enter_context(gzip.GzipFile(fileobj=file)), lambda: _position(file)  # type: ignore[misc]  # it is one
        elif head.startswith(_ZSTD):
            if not _is_on_disk(file):
                raise ConfigurationError([f"{option} {path}: a pipe compressed by zstd cannot be read: pipe it through `zstd -dc`"])
            yield stack.enter_context(decompressed(file)), lambda: 0
        else:
            yield file, lambda: _position(file)


def lines_of(file: BinaryIO, max_bytes: int) -> Iterator[tuple[int, bytes | None]]:
    """Yield the number and the stripped content of each line; None instead of a content of more than ``max_bytes``."""
    number = 0
    while piece := file.readline(max_bytes + 2):
        number += 1
        value = piece.strip() if number > 1 else piece.removeprefix(_BYTE_ORDER).strip()
        yield number, value if len(value) <= max_bytes else None
        while piece and not piece.endswith(b"\n"):
            piece = file.readline(max_bytes + 2)


def _standard_input() -> Any:
    if sys.stdin is None:
        raise ConfigurationError(["--file -: standard input is closed: pipe the events into it, or name a file"])
    return sys.stdin.buffer


def _is_on_disk(file: Any) -> bool:
    return stat.S_ISREG(os.fstat(file.fileno()).st_mode)


def size_of(path: Path) -> int | None:
    """Return the size of a file in bytes; None if it cannot be opened, or if :func:`opened` does not count its bytes."""
    if not path.is_file():  # a pipe can be opened only once
        return None
    try:
        with path.open("rb") as file:
            return None if file.read(len(_ZSTD)).startswith(_ZSTD) else os.fstat(file.fileno()).st_size
    except OSError:
        return None  # reported when it is opened for reading


def _position(file: Any) -> int:
    try:
        return int(file.tell())
    except OSError:
        return 0  # a pipe


BUFFER_BYTES: Final = 1 << 20
GIVE_BACK_BYTES: Final = 32 << 20
"""Number of decompressed bytes after which memory is released."""


@contextmanager
def decompressed(file: BinaryIO) -> Iterator[BinaryIO]:
    """Decompress a zstd file on disk that is not empty; the stream is valid inside the block.

    Raises:
        OSError: The file is damaged or truncated; raised at the end of the block, if the stream was read to its end.
    """
    reader, writer = os.pipe()
    failed: list[Exception] = []
    with (
        mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped,
        io.BufferedReader(_MemoryReleasingPipe(reader, mapped), BUFFER_BYTES) as stream,
    ):

        def run() -> None:
            try:
                with os.fdopen(writer, "wb"):
                    _copy(mapped, f"/dev/fd/{writer}")
            except (OSError, cramjam.DecompressionError) as error:  # raised below, in the reading thread
                failed.append(error)

        thread = threading.Thread(target=run, name="zstd", daemon=True)
        thread.start()
        try:
            yield stream
        finally:
            is_whole = not stream.closed and not stream.read(1)
            stream.close()  # if the block ended early, the broken pipe ends the thread
            thread.join()
    if failed and is_whole:
        raise OSError(str(failed[0]))


class _MemoryReleasingPipe(io.FileIO):
    """Pipe of decompressed data, which releases the pages of the mapped input after every :data:`GIVE_BACK_BYTES`."""

    def __init__(self, reader: int, mapped: mmap.mmap) -> None:
        super().__init__(reader, "rb")
        self._mapped = mapped
        self._since = 0

    def readinto(self, buffer: Any, /) -> int:
        count = super().readinto(buffer) or 0
        self._since += count
        if self._since >= GIVE_BACK_BYTES:
            self._since = 0
            self._mapped.madvise(mmap.MADV_DONTNEED)
        return count


def _copy(mapped: mmap.mmap, path: str) -> None:
    target = cramjam.File(path, read=False, write=True, truncate=False, append=False)
    try:
        cramjam.zstd.decompress_into(mapped, target)
    finally:
        del target  # the traceback of an error would keep it open, and the reader would wait for its end
