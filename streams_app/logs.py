"""Configures the logging of a worker: one line for each log record, as text or JSON, and rate-limited lines of libraries.

aiokafka logs thousands of lines in the first minute of an outage, which hide the important ones. Therefore, only one line of each
kind is written in a minute; the next line of the same kind contains the number of suppressed lines.
"""

from __future__ import annotations

import json
import logging
import math
import re
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any, Final

from streams_app.clock import Clock, SystemClock
from streams_app.settings.databases import DATABASES

TEXT_FORMAT: Final = "%(asctime)s %(levelname)-7s %(name)s %(message)s"
LIBRARIES: Final = frozenset({"aiokafka", "aiohttp", "asyncio", "faust", "kafka", "mode", "opentelemetry"})
EVERY_MS: Final = 60_000
MAX_KINDS: Final = 1_000
OURS: Final = "streams_app"
TRACE_IDS: Final = ("trace_id", "span_id")
"""Attributes that a log record has if it was written within a span, see :mod:`streams_app.tracing.spans`."""

_PARTITION: Final = re.compile(r"(?:TopicPartition|TP)\(topic='([^']*)', partition=(\d+)\)")
_VARYING: Final = re.compile(r"0x[0-9a-f]+|\d+")
_ORDINARY: Final = frozenset({"Heartbeat failed for group %s because it is rebalancing"})
"""Warnings of libraries that are dropped, because they occur in every rebalance."""
_SPEC: Final = re.compile(r"%[-+ #0-9.]*[a-z%]")
_FIELD: Final = re.compile(r"\b([a-z_]+)=((?:%[-+ #0-9.]*[sdrfx])(?:-%[sd])*)(?=[\s;,]|$)")
_STANDARD: Final = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}


class RepeatFilter(logging.Filter):
    """Limits warnings and errors of libraries to one of each kind in a minute, and drops warnings that occur in every rebalance.

    Two messages of one logger and level are of the same kind if they differ only in numbers, such as ports, offsets or seconds.
    """

    def __init__(self, clock: Clock | None = None) -> None:
        super().__init__()
        self._clock = clock or SystemClock()
        self._kinds: dict[tuple[str, int, str], tuple[int, int]] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        """Return whether a log record is written. If records of its kind were suppressed, add their number to its message."""
        if record.exc_info and record.exc_info[1] is None:
            record.exc_info = None  # the library calls "exception" outside an except block, which would print "NoneType: None"
        if record.levelno < logging.WARNING or record.name.partition(".")[0] not in LIBRARIES:
            return True
        if record.msg in _ORDINARY:
            return False
        now_ms = self._clock.monotonic_ms()
        message = record.getMessage()
        kind = record.name, record.levelno, _VARYING.sub("#", message)
        since_ms, suppressed = self._kinds.get(kind, (now_ms - EVERY_MS, 0))
        if now_ms - since_ms < EVERY_MS:
            self._kinds[kind] = since_ms, suppressed + 1
            return False
        if len(self._kinds) >= MAX_KINDS:
            self._kinds.clear()
        self._kinds[kind] = now_ms, 0
        if suppressed:
            record.msg, record.args = f"{message} (and {suppressed} more like it since the last one)", ()
        return True


def _message(record: logging.LogRecord) -> str:
    """Return the message of a log record on one line, with each partition in the form ``topic-number``."""
    return _PARTITION.sub(r"\1-\2", " | ".join(record.getMessage().splitlines()))


class LineFormatter(logging.Formatter):
    """Formats a log record as one line of text.

    If the record has an error, the traceback follows the line. For records of libraries, the error is written in the line instead.
    """

    def __init__(self) -> None:
        super().__init__(TEXT_FORMAT)

    def format(self, record: logging.LogRecord) -> str:
        message = _message(record)
        is_ours = record.name.partition(".")[0] not in LIBRARIES
        if record.exc_info and record.exc_info[1] is not None and not is_ours:
            error = record.exc_info[1]
            message += f" error={type(error).__name__}({' | '.join(str(error).splitlines())!r})"
        for name in TRACE_IDS:
            if name in vars(record):
                message += f" {name}={vars(record)[name]}"
        shown = logging.makeLogRecord({**vars(record), "msg": message, "args": ()})
        if not is_ours:
            shown.exc_info = shown.exc_text = shown.stack_info = None
        return super().format(shown)


class JsonFormatter(logging.Formatter):
    """Formats a log record as one line of JSON.

    The line has the fields ``time``, ``level``, ``logger`` and ``message``, each ``key=value`` of the message as a field, extra
    attributes of the record, and ``traceback`` if there was an error.
    """

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname,
            "logger": record.name,
            "message": _message(record),
        }
        for name, value in (*_fields(record), *((name, value) for name, value in vars(record).items() if name not in _STANDARD)):
            line.setdefault(name, value)
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        # Not orjson: it rejects lone surrogates and large numbers, which errors of users may contain.
        return json.dumps(line, default=str)


def _fields(record: logging.LogRecord) -> Iterator[tuple[str, Any]]:
    """Yield key and value of each ``key=value`` in a message of this project; empty for other loggers.

    A value is a number if it is one numeric argument of the message; otherwise it is text, such as ``t-0`` for ``source=%s-%d``.
    """
    template, args = str(record.msg), record.args
    if record.name.partition(".")[0] != OURS or not isinstance(args, tuple):
        return
    for found in _FIELD.finditer(template):
        first = sum(spec[0] != "%%" for spec in _SPEC.finditer(template, 0, found.start(2)))
        mine = args[first : first + len(_SPEC.findall(found[2]))]
        is_number = len(mine) == 1 and (type(mine[0]) is int or (type(mine[0]) is float and math.isfinite(mine[0])))
        yield found[1], mine[0] if is_number else found[2] % mine


def hold_back_libraries() -> None:
    """Add a :class:`RepeatFilter` to every handler of the root logger that has none; change no other part of the logging setup."""
    for handler in logging.getLogger().handlers:
        if not any(isinstance(each, RepeatFilter) for each in handler.filters):
            handler.addFilter(RepeatFilter())


def set_up_logging(log_level: str, log_format: str = "text") -> None:
    """Configure logging to stderr, one line for each log record: ``text`` or ``json``."""
    level = getattr(logging, log_level.upper())
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter() if log_format == "json" else LineFormatter())
    logging.basicConfig(level=level, handlers=[handler], force=True)
    logging.captureWarnings(capture=True)
    hold_back_libraries()
    for chatty in ("faust", "mode", "aiokafka", "aiohttp"):
        logging.getLogger(chatty).setLevel(logging.WARNING if level > logging.DEBUG else logging.NOTSET)
    # These log each failed request with its content; callers report failures when they retry.
    for driver_logger in (database.driver_logger for database in DATABASES if database.driver_logger):
        logging.getLogger(driver_logger).setLevel(logging.CRITICAL)
    if level > logging.DEBUG:
        # Warns about tasks of this project that wait for Redis in an outage, which is reported elsewhere.
        logging.getLogger("mode.timers").setLevel(logging.ERROR)
        # At ERROR it only reports that a broker has no idempotent producers; this project logs the other outcomes.
        logging.getLogger("aiokafka.producer.sender").setLevel(logging.CRITICAL)
