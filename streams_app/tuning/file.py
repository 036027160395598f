"""Events of a file of JSON lines, read into columns: each line is the value of a record, and one of its fields the time of it.

Whatever is wrong with a line is counted, with the number of the first such line, and the next one is read. A line longer than
``limits.value_bytes`` is passed over piece by piece.
"""

from __future__ import annotations

import gzip
import os
import sys
import zlib
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Final

from streams_app.codec import canonical_bytes, member_of
from streams_app.errors import BadEventError, BeyondDoubleError, ConfigurationError
from streams_app.fold import Fold
from streams_app.folding.reading.by_functions import reader_of
from streams_app.folding.reading.reader import Reading, decode_all
from streams_app.moments import moment_ms
from streams_app.settings import Limits
from streams_app.tuning.columns import Columns
from streams_app.tuning.tally import Tally, nobody
from streams_app.tuning.zstd import decompressed

STANDARD_INPUT: Final = Path("-")
BATCH_LINES: Final = 2_000
BATCH_BYTES: Final = 4_000_000
MOST_FIELDS: Final = 12
MANY_LATE: Final = 0.01
"""A larger share of lines that go back in time is no log's usual disorder."""

LIKELY_FROM_MS: Final = 946_684_800_000
"""The year 2000: a field that holds a later moment is likely to be a time."""

_GZIP: Final = b"\x1f\x8b"
_ZSTD: Final = b"\x28\xb5\x2f\xfd"
_MARK: Final = b"\xef\xbb\xbf"
"""Which some programs write before the first line."""


@dataclass(slots=True)
class Line:
    """A line as the record it stands for; its number is the offset."""

    offset: int
    timestamp: int | None
    key: bytes | None
    value: bytes


class LineReader:
    """Reads the lines of one file.

    Attributes:
        fields: The first fields that occur in events, for whoever named a wrong one.
    """

    def __init__(
        self, fold: Fold, limits: Limits, columns: Columns, tally: Tally, *, time: str, key: str | None = None, now_ms: int
    ) -> None:
        """Reads nothing yet.

        Args:
            fold: By which the events would be folded.
            limits: Of the settings.
            columns: Get the events; a file is one partition.
            tally: Counts what is read and refused.
            time: The field that tells when an event happened, see :func:`streams_app.moments.moment_ms`; a dotted path.
            key: The field that stands for the record key.
            now_ms: Wall clock.
        """
        self.fields: dict[str, Any] = {}
        self._reader = reader_of(fold, limits)
        self._limits = limits
        self._columns = columns
        self._tally = tally
        self._time = time
        self._time_path = time.split(".")
        self._key_path = key.split(".") if key else None
        self._now_ms = now_ms
        self._newest_ms = 0
        self._late = self._future = 0

    def read(self, path: Path, on_progress: Callable[[Tally], None] = nobody) -> None:
        """Reads a file, or standard input, to its end.

        Raises:
            ConfigurationError: It cannot be opened.
        """
        try:
            with opened(path) as (file, position):
                for lines in self._batches(file):
                    self._add(lines)
                    self._tally.done = position()
                    on_progress(self._tally)
        except (OSError, EOFError, zlib.error) as error:
            self._tally.notes.append(f"the file cannot be read beyond line {self._tally.read:,}: {error}")
        if self._late:
            share = self._late / self._tally.read
            self._tally.notes.append(
                f"older than a line before them, and given its time, as in a worker: {self._late:,} lines ({share:.1%})"
                + ("; sort the file by time if it is no log" if share > MANY_LATE else "")
            )
        if self._future:
            self._tally.notes.append(f"with a time to come, which counts as now: {self._future:,} lines")
        on_progress(self._tally)

    def advice(self) -> str:
        """What to do where no line could be used."""
        if not self._tally.read:
            return "there is nothing in it"
        if not self.fields:
            return f"none of its {self._tally.read:,} lines is a JSON object, and each should be one event"
        listed = ", ".join(list(self.fields)[:MOST_FIELDS])
        if set(self._tally.refused) <= {"no-time", "bad-time"}:
            times = [name for name, value in self.fields.items() if (moment_ms(value) or 0) >= LIKELY_FROM_MS]
            try_it = f": try --time {times[0]}" if times else ""
            return f"no line has a time in {self._time!r}; the fields are {listed}{try_it}"
        return f"none of its {self._tally.read:,} lines can be folded, see the reasons above; the fields are {listed}"

    def _batches(self, file: BinaryIO) -> Iterator[list[Line]]:
        lines: list[Line] = []
        size = 0
        for number, value in self._lines(file):
            self._tally.read = number
            if not value:
                continue
            lines.append(Line(number, None, None, value))
            size += len(value)
            if len(lines) >= BATCH_LINES or size >= BATCH_BYTES:
                yield lines
                lines, size = [], 0
        yield lines

    def _lines(self, file: BinaryIO) -> Iterator[tuple[int, bytes]]:
        """Number and content of each line; nothing of one that is too long."""
        most = self._limits.value_bytes
        number = 0
        while piece := file.readline(most + 2):
            number += 1
            value = piece.strip() if number > 1 else piece.removeprefix(_MARK).strip()
            if len(value) > most:
                self._tally.refuse("too-large", f"line {number:,}", f"more than {most:,} bytes, the limit of limits.value_bytes")
                value = b""
            yield number, value
            while piece and not piece.endswith(b"\n"):
                piece = file.readline(most + 2)

    def _add(self, lines: list[Line]) -> None:
        taken, decoded = [], []
        for line, value in zip(lines, decode_all(lines, self._limits), strict=True):
            event = value.rest if isinstance(value, BeyondDoubleError) else value
            if type(event) is not dict:
                fault = event if isinstance(event, BadEventError) else BadEventError("not-json", "there is nothing in it")
                self._tally.refuse(fault.reason, f"line {line.offset:,}", fault.detail)
                continue
            if len(self.fields) < MOST_FIELDS:
                self.fields |= {name: event[name] for name in event if name not in self.fields}
            at_ms = self._time_of(line, event)
            if at_ms is None:
                continue
            line.timestamp = at_ms
            if self._key_path:
                line.key = _key_of(_at(event, self._key_path))
            taken.append(line)
            decoded.append(value)
        reading = Reading()
        self._columns.add(0, self._reader.events(taken, decoded, reading))
        self._tally.refuse_all(reading.refused, lambda number: f"line {number:,}")

    def _time_of(self, line: Line, event: dict[str, Any]) -> int | None:
        value = _at(event, self._time_path)
        at_ms = None if value is None else moment_ms(value)
        if at_ms is None:
            missing = value is None
            detail = f"no field {self._time!r}" if missing else f"{str(value)[:40]!r} in {self._time!r} is no time"
            self._tally.refuse("no-time" if missing else "bad-time", f"line {line.offset:,}", detail)
            return None
        if at_ms < self._newest_ms:
            self._late += 1
        else:
            self._newest_ms = int(at_ms)
        if at_ms > self._now_ms:
            self._future += 1
        return int(at_ms)


@contextmanager
def opened(path: Path) -> Iterator[tuple[BinaryIO, Callable[[], int]]]:
    """A file as a stream of what was compressed into it, and a function that says how many of its bytes are read.

    Raises:
        ConfigurationError: It cannot be opened.
    """
    with ExitStack() as stack:
        try:
            if path == STANDARD_INPUT:
                file: Any = sys.stdin.buffer
                head = file.peek(len(_ZSTD))[: len(_ZSTD)]
            else:
                file = stack.enter_context(path.open("rb"))
                head = file.peek(len(_ZSTD))[: len(_ZSTD)]
        except OSError as error:
            raise ConfigurationError([f"--file: cannot read {path}: {error.strerror}"]) from error
        if head.startswith(_GZIP):
            yield stack.enter_context(gzip.GzipFile(fileobj=file)), lambda: _told(file)  # type: ignore[misc]  # it is one
        elif head.startswith(_ZSTD):
            if path == STANDARD_INPUT:
                raise ConfigurationError(["--file -: standard input is compressed by zstd: pipe it through `zstd -dc`"])
            yield stack.enter_context(decompressed(file)), lambda: 0
        else:
            yield file, lambda: _told(file)


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


def _at(event: Any, path: list[str]) -> Any:
    for step in path:
        if type(event) is not dict:
            return None
        event = event.get(step)
    return event


def _key_of(value: Any) -> bytes | None:
    try:
        return canonical_bytes(member_of((value,)))
    except BadEventError:
        return None
