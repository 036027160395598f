"""Reads the events of a file of JSON lines into columns: each line is a record value, and one of its fields is the record's time.

An unusable line is counted and skipped; for each kind of fault, the number of the first line is kept. A line longer than
``limits.value_bytes`` is skipped in pieces.
"""

from __future__ import annotations

import reprlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Final

from streams_app.codec import at_path, canonical_bytes, member_of
from streams_app.envelopes import HEADER
from streams_app.errors import BadEventError, BeyondDoubleError, ConfigurationError
from streams_app.fold import Fold
from streams_app.folding.reading.reader import RangeFaults, decode_all
from streams_app.folding.reading.readers import reader_of
from streams_app.formatting import guessed_format, moment_ms, time_text
from streams_app.settings import Limits
from streams_app.tuning.columns import Columns
from streams_app.tuning.input_file import FAULTS, lines_of, opened
from streams_app.tuning.read_counts import ReadCounts, ignore_progress
from streams_app.tuning.timestamps import timestamp_remarks

BATCH_LINES: Final = 2_000
BATCH_BYTES: Final = 4_000_000
MAX_FIELDS: Final = 12
LIKELY_FROM_MS: Final = 946_684_800_000
"""The year 2000: a field with a later time is suggested as the time field."""

BROKEN_OFF: Final = "broken-off"
"""Reason, in the counts of rejected lines, for the line at which the file cannot be read any further."""


@dataclass(slots=True)
class Line:
    """A line of the file in the shape of a consumer record; the line number is its offset."""

    offset: int
    timestamp: int | None
    key: bytes | None
    value: bytes


class LineReader:
    """Reads the events in the lines of one file, which is one partition, into columns.

    Attributes:
        fields: The fields that occur in the first events, each with its first value, for an error message about a wrong field
            name.
    """

    def __init__(
        self,
        fold: Fold,
        limits: Limits,
        columns: Columns,
        tally: ReadCounts,
        *,
        time: str,
        key: str | None = None,
        from_ms: int | None = None,
        to_ms: int | None = None,
    ) -> None:
        """Create the reader, without opening a file. Lines before ``from_ms``, and from ``to_ms`` on, are skipped.

        Args:
            time: The field with the time of an event, as a dotted path, see :func:`streams_app.formatting.moment_ms`.
            key: The field that replaces the record key, as a dotted path; None if the events have no record key.

        Raises:
            ConfigurationError: The fold reads the ids of events from a header, which lines do not have.
        """
        if isinstance(fold.dedupe_by, str) and fold.dedupe_by.startswith(HEADER):
            needs = f"fold {fold.name!r} has dedupe_by = {fold.dedupe_by!r}, and the lines of a file have no headers"
            raise ConfigurationError([f"--file: {needs}: use --from, or --journal"])
        self.fields: dict[str, Any] = {}
        self._reader = reader_of(fold, limits)
        self._limits = limits
        self._columns = columns
        self._tally = tally
        self._time = time
        self._time_path = time.split(".")
        self._key_path = key.split(".") if key else None
        self._from_ms, self._to_ms = from_ms, to_ms
        self._outside = 0
        self._outside_ms: tuple[int, int] | None = None

    def read(self, path: Path, on_progress: Callable[[ReadCounts], None] = ignore_progress) -> None:
        """Read a file, or standard input, to its end into the columns.

        If the file cannot be read to its end, the lines before the fault are used, and the fault is counted with the reason
        :data:`BROKEN_OFF`.

        Raises:
            ConfigurationError: The file cannot be opened.
        """
        try:
            with opened(path) as (file, position):
                for lines in self._batches(file):
                    self._add(lines)
                    self._tally.done = position()
                    on_progress(self._tally)
        except FAULTS as error:
            self._tally.read += 1
            self._tally.reject(BROKEN_OFF, f"line {self._tally.read:,}", f"the file cannot be read any further: {error}")
        self._tally.remarks += timestamp_remarks(self._columns, self._tally, "lines")
        on_progress(self._tally)

    def advice(self) -> str:
        """Return the cause and the remedy, for an error message, if the file has no usable line."""
        if not self._tally.read:
            return "there is nothing in it"
        if self._outside_ms is not None:
            first, last = map(time_text, self._outside_ms)
            return (
                f"no line that can be folded lies in the range of --from and --to; the times of the {self._outside:,} outside it "
                f"go from {first} to {last}"
            )
        if set(self._tally.rejected) == {BROKEN_OFF} and self._tally.read == 1:
            return "it cannot be read, see the reason above"
        if not self.fields:
            return f"none of its {self._tally.read:,} lines is a JSON object, and each should be one event"
        listed = ", ".join(list(self.fields)[:MAX_FIELDS])
        if set(self._tally.rejected) <= {"no-time", "bad-time"}:
            times = [name for name, value in self.fields.items() if (moment_ms(value) or 0) >= LIKELY_FROM_MS]
            try_it = f": try --time {times[0]}" if times else ""
            return f"no line has a time in {self._time!r}; the fields are {listed}{try_it}"
        return f"none of its {self._tally.read:,} lines can be folded, see the reasons above; the fields are {listed}"

    def _batches(self, file: BinaryIO) -> Iterator[list[Line]]:
        lines: list[Line] = []
        size = 0
        try:
            for number, value in self._lines(file):
                self._tally.read = number
                if not value:
                    continue
                lines.append(Line(number, None, None, value))
                size += len(value)
                if len(lines) >= BATCH_LINES or size >= BATCH_BYTES:
                    yield lines
                    lines, size = [], 0
        except FAULTS:
            yield lines  # the lines before the fault are used
            raise
        yield lines

    def _lines(self, file: BinaryIO) -> Iterator[tuple[int, bytes]]:
        """Yield the number and the content of each line; the content is empty if the line is too long."""
        most = self._limits.value_bytes
        for number, value in lines_of(file, most):
            if value is None:
                self._tally.reject("too-large", f"line {number:,}", f"more than {most:,} bytes, the limit of limits.value_bytes")
            yield number, value or b""

    def _add(self, lines: list[Line]) -> None:
        taken, decoded = [], []
        for line, value in zip(lines, decode_all(lines, self._limits), strict=True):
            event = value.rest if isinstance(value, BeyondDoubleError) else value
            if type(event) is not dict:
                fault = event if isinstance(event, BadEventError) else BadEventError("not-json", "there is nothing in it")
                self._tally.reject(fault.reason, f"line {line.offset:,}", fault.detail)
                continue
            if len(self.fields) < MAX_FIELDS:
                self.fields |= {name: event[name] for name in event if name not in self.fields}
            at_ms = self._time_of(line, event)
            if at_ms is None:
                continue
            line.timestamp = at_ms
            if self._key_path:
                line.key = _key_of(at_path(event, self._key_path))
            taken.append(line)
            decoded.append(value)
        faults = RangeFaults()
        self._columns.add(0, self._reader.events(taken, decoded, faults))
        self._tally.reject_all(faults.rejected, lambda number: f"line {number:,}")

    def _time_of(self, line: Line, event: dict[str, Any]) -> int | None:
        value = at_path(event, self._time_path)
        at_ms = None if value is None else moment_ms(value)
        if at_ms is None:
            missing = value is None
            detail = f"no field {self._time!r}" if missing else self._bad_time(value)
            self._tally.reject("no-time" if missing else "bad-time", f"line {line.offset:,}", detail)
            return None
        if self._is_outside(at_ms):
            return None
        return at_ms

    def _bad_time(self, value: Any) -> str:
        like = guessed_format(value)
        about = f", but looks like {like}" if like else ""
        text = value if type(value) is str else reprlib.repr(value)  # which does not follow deep nesting
        return f"{text[:40]!r} in {self._time!r} is not a time since 1970{about}"

    def _is_outside(self, at_ms: int) -> bool:
        if (self._from_ms is None or at_ms >= self._from_ms) and (self._to_ms is None or at_ms < self._to_ms):
            return False
        self._outside += 1
        first, last = self._outside_ms or (at_ms, at_ms)
        self._outside_ms = min(first, at_ms), max(last, at_ms)
        return True


def _key_of(value: Any) -> bytes | None:
    try:
        return canonical_bytes(member_of((value,)))
    except BadEventError:
        return None
