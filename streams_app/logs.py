"""Logging of a worker: one line an event, in words or as JSON, and libraries that repeat themselves are held back.

aiokafka says thousands of lines in the first minute of an outage, and hides the few that matter. One of a kind a minute is let
through, with the number of those that were not.
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

TEXT_FORMAT: Final = "%(asctime)s %(levelname)-7s %(name)s %(message)s"
LIBRARIES: Final = frozenset({"aiokafka", "aiohttp", "asyncio", "faust", "kafka", "mode"})
EVERY_MS: Final = 60_000
MOST_KINDS: Final = 1_000
OURS: Final = "streams_app"

_PLACE: Final = re.compile(r"(?:TopicPartition|TP)\(topic='([^']*)', partition=(\d+)\)")
_VARYING: Final = re.compile(r"0x[0-9a-f]+|\d+")
_ORDINARY: Final = frozenset({"Heartbeat failed for group %s because it is rebalancing"})
"""What libraries warn of although it belongs to every rebalance."""
_SPEC: Final = re.compile(r"%[-+ #0-9.]*[a-z%]")
_FIELD: Final = re.compile(r"\b([a-z_]+)=((?:%[-+ #0-9.]*[sdrfx])(?:-%[sd])*)(?=[\s;,]|$)")
_STANDARD: Final = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}


class HeldBack(logging.Filter):
    """Lets a library say a thing once a minute, and not at all what is no reason to warn.

    Two messages are of one kind if only numbers differ: of ports, offsets, nodes, seconds.
    """

    def __init__(self, clock: Clock | None = None) -> None:
        super().__init__()
        self._clock = clock or SystemClock()
        self._kinds: dict[tuple[str, int, str], tuple[int, int]] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether a record is written; one that is says how many were not."""
        if record.exc_info and record.exc_info[1] is None:
            record.exc_info = None  # the library says "exception" where it handles none: that would be "NoneType: None"
        if record.levelno < logging.WARNING or record.name.partition(".")[0] not in LIBRARIES:
            return True
        if record.msg in _ORDINARY:
            return False
        now_ms = self._clock.monotonic_ms()
        message = record.getMessage()
        kind = record.name, record.levelno, _VARYING.sub("#", message)
        since_ms, held = self._kinds.get(kind, (now_ms - EVERY_MS, 0))
        if now_ms - since_ms < EVERY_MS:
            self._kinds[kind] = since_ms, held + 1
            return False
        if len(self._kinds) >= MOST_KINDS:
            self._kinds.clear()
        self._kinds[kind] = now_ms, 0
        if held:
            record.msg, record.args = f"{message} (and {held} more like it since the last one)", ()
        return True


def _message(record: logging.LogRecord) -> str:
    """The message on one line, with partitions written as we write them."""
    return _PLACE.sub(r"\1-\2", " | ".join(record.getMessage().splitlines()))


class OneLine(logging.Formatter):
    """A line in words. What is wrong inside ourselves keeps its trace; of a library's only the error is told."""

    def __init__(self) -> None:
        super().__init__(TEXT_FORMAT)

    def format(self, record: logging.LogRecord) -> str:
        """The line."""
        message = _message(record)
        is_ours = record.name.partition(".")[0] not in LIBRARIES
        if record.exc_info and record.exc_info[1] is not None and not is_ours:
            error = record.exc_info[1]
            message += f" error={type(error).__name__}({' | '.join(str(error).splitlines())!r})"
        shown = logging.makeLogRecord({**vars(record), "msg": message, "args": ()})
        if not is_ours:
            shown.exc_info = shown.exc_text = shown.stack_info = None
        return super().format(shown)


class JsonLines(logging.Formatter):
    """One JSON object a line: ``time``, ``level``, ``logger``, ``message``, and each ``key=value`` of the message as a field."""

    def format(self, record: logging.LogRecord) -> str:
        """The line."""
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
        # Not the fast one: it refuses what users' errors may hold, lone surrogates and numbers of any size.
        return json.dumps(line, default=str)


def _fields(record: logging.LogRecord) -> Iterator[tuple[str, Any]]:
    """What the words of one of our messages name: ``source=%s-%d`` is one field, numbers stay numbers."""
    template, args = str(record.msg), record.args
    if record.name.partition(".")[0] != OURS or not isinstance(args, tuple):
        return
    for found in _FIELD.finditer(template):
        first = sum(spec[0] != "%%" for spec in _SPEC.finditer(template, 0, found.start(2)))
        mine = args[first : first + len(_SPEC.findall(found[2]))]
        is_number = len(mine) == 1 and (type(mine[0]) is int or (type(mine[0]) is float and math.isfinite(mine[0])))
        yield found[1], mine[0] if is_number else found[2] % mine


def hold_back_libraries() -> None:
    """Every handler of this process holds libraries back; whoever set up its logging (Faust's worker, a program) keeps the rest."""
    for handler in logging.getLogger().handlers:
        if not any(isinstance(each, HeldBack) for each in handler.filters):
            handler.addFilter(HeldBack())


def set_up_logging(log_level: str, log_format: str = "text") -> None:
    """One line an event on stderr.

    Args:
        log_level: Least level that is written.
        log_format: ``text`` or ``json``.
    """
    level = getattr(logging, log_level.upper())
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonLines() if log_format == "json" else OneLine())
    logging.basicConfig(level=level, handlers=[handler], force=True)
    logging.captureWarnings(capture=True)
    hold_back_libraries()
    for chatty in ("faust", "mode", "aiokafka", "aiohttp"):
        logging.getLogger(chatty).setLevel(logging.WARNING if level > logging.DEBUG else logging.NOTSET)
    # It names each request that fails, and shows what was in it; what matters of it is told by those who repeat it.
    logging.getLogger("opensearch").setLevel(logging.CRITICAL)
    if level > logging.DEBUG:
        # Ours wait for Redis in an outage, which is told otherwise.
        logging.getLogger("mode.timers").setLevel(logging.ERROR)
        # What it says at ERROR is that a broker knows no idempotent producers; the rest reaches our own log as an outcome.
        logging.getLogger("aiokafka.producer.sender").setLevel(logging.CRITICAL)
