"""Reads events from a file of JSON lines. If the events have a field with their time, it determines when they are produced.

Lines that are not JSON objects are produced unchanged, and become dead letters as they would in production.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import chain, islice
from pathlib import Path
from typing import Any, Final

import orjson

from streams_app.codec import at_path, canonical_bytes, member_of
from streams_app.demo.load import Update
from streams_app.errors import BadEventError
from streams_app.formatting import moment_ms
from streams_app.tuning.input_file import FAULTS, lines_of, opened

TIME_FIELDS: Final = (
    "time", "timestamp", "ts", "at", "time_ms", "timestamp_ms", "ts_ms", "event_time", "created_at", "updated_at", "date",
)  # fmt: skip
LONGEST_LINE_BYTES: Final = 16_000_000
SAMPLED_LINES: Final = 100


class EventReplay:
    """Supplies the events of a file at ``speed`` times the speed at which they happened, or at ``rate`` per second without times.

    Attributes:
        head: The first events of the file, to be checked before any event is produced.
        fault: Why the rest of the file cannot be read; None if no error has occurred so far.
    """

    def __init__(self, path: Path, *, group_key: str, rate: float, speed: float = 1.0) -> None:
        """Open the file; ``group_key`` is the field whose value becomes the record key.

        Raises:
            ConfigurationError: The file cannot be read.
        """
        self.fault: str | None = None
        self._path = path
        self._group_key = group_key
        self._step_ms = 1000 / rate
        self._speed = speed
        lines = self._lines()
        self.head = list(islice(lines, SAMPLED_LINES))
        self._updates = self._read(chain(self.head, lines))
        self._next = next(self._updates, None)

    @property
    def is_exhausted(self) -> bool:
        return self._next is None

    def until(self, now_ms: float) -> list[Update]:
        given = []
        while self._next is not None and self._next.at_ms <= now_ms:
            given.append(self._next)
            self._next = next(self._updates, None)
        return given

    @property
    def rate_text(self) -> str:
        """What determines the speed of the replay, as text for display."""
        fields = {name for line in self.head if (name := time_field_of(_decoded(line))) is not None}
        if fields:
            return f"by {', '.join(sorted(fields))}"
        return f"{1000 / self._step_ms:,.0f} events a second, as they have no time in {', '.join(TIME_FIELDS)}"

    def _lines(self) -> Iterator[bytes]:
        try:
            with opened(self._path, "--replay") as (file, _position):
                for _number, value in lines_of(file, LONGEST_LINE_BYTES):
                    if value:
                        yield value
        except FAULTS as error:
            self.fault = f"{self._path} cannot be read any further: {error}"

    def _read(self, lines: Iterable[bytes]) -> Iterator[Update]:
        begin_ms: float | None = None
        at_ms = 0.0
        for value in lines:
            event = _decoded(value)
            stamp_ms = time_of(event)
            if stamp_ms is None:
                at_ms += self._step_ms
            else:
                begin_ms = stamp_ms if begin_ms is None else begin_ms
                # A line with an earlier time follows immediately, because the log has the order of the file.
                at_ms = max(at_ms, (stamp_ms - begin_ms) / self._speed)
            yield Update(at_ms, self._key(event), value)

    def _key(self, event: Any) -> bytes | None:
        try:
            return canonical_bytes(member_of((at_path(event, self._group_key.split(".")),)))
        except BadEventError:
            return None


def time_field_of(event: Any) -> str | None:
    """Return the first of :data:`TIME_FIELDS` that has the time of an event; None if there is no such field."""
    if type(event) is not dict:
        return None
    return next((name for name in TIME_FIELDS if moment_ms(event.get(name)) is not None), None)


def time_of(event: Any) -> float | None:
    """Return the time of an event, in ms since 1970, from its :func:`time_field_of`; None if it has none."""
    field = time_field_of(event)
    return None if field is None else moment_ms(event[field])


def _decoded(value: bytes) -> Any:
    try:
        return orjson.loads(value)
    except orjson.JSONDecodeError:
        return None
