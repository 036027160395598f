"""A file compressed by zstd as a stream of bytes, in bounded memory.

cramjam, which is there for Kafka, has no reader of a stream that could be fed in pieces, but it copies from memory to a file by
itself, without Python's lock: here from the mapped file into a pipe. What is mapped counts as memory of the process, so it is given
back now and then; the system reads again what is still needed. The window of the decoder is at most 128 MB (``zstd --long=27``).
"""

from __future__ import annotations

import io
import mmap
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, BinaryIO, Final

import cramjam

BUFFER_BYTES: Final = 1 << 20
GIVE_BACK_BYTES: Final = 32 << 20
"""After so many bytes that were decompressed."""


@contextmanager
def decompressed(file: BinaryIO) -> Iterator[BinaryIO]:
    """What a file holds, to be read while the block lasts.

    Args:
        file: On disk, not empty.

    Raises:
        OSError: At the end of the block, once everything that could be read was read: the file is broken or breaks off.
    """
    reader, writer = os.pipe()
    failed: list[Exception] = []
    with (
        mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped,
        io.BufferedReader(_GivingBack(reader, mapped), BUFFER_BYTES) as stream,
    ):

        def run() -> None:
            try:
                with os.fdopen(writer, "wb"):
                    _copy(mapped, f"/dev/fd/{writer}")
            except (OSError, cramjam.DecompressionError) as error:  # told below, in the thread that reads
                failed.append(error)

        thread = threading.Thread(target=run, name="zstd", daemon=True)
        thread.start()
        try:
            yield stream
        finally:
            is_whole = not stream.closed and not stream.read(1)
            stream.close()  # whoever left early ends the thread: its pipe is broken
            thread.join()
    if failed and is_whole:
        raise OSError(str(failed[0]))


class _GivingBack(io.FileIO):
    """The end of a pipe from which what was decompressed is read; gives the mapped file back to the system now and then."""

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
        del target  # the traceback of an error would keep it open, and whoever reads would wait for its end
