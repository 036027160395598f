"""Cursors: the position of a reader of a journal, and where it starts (pure).

A cursor is ``<partition>-<offset>`` of the last entry that was read; those of several partitions are joined by commas. A partition
that is not in the cursor is read from its floor, the first stored offset, because no entry of the key was read there. If a reader
started at a point in time, its cursor ends with ``since-<ms>`` while some partitions have no state, or have not reached that time.
Partitions that are not in such a cursor start at that time.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, Literal

from streams_app.errors import CursorError
from streams_app.formatting import parse_moment

EXAMPLE: Final = "a cursor as in 3-1041 or 0-77,3-1041, earliest, latest, how long ago as in -24h, or a day as in 2026-08-20"

MAX_CHARACTERS: Final = 8_000
"""Maximum length of a cursor: some 600 partitions with offsets of eight digits."""

MAX_OFFSET: Final = 2**53 - 1
"""Maximum offset, because Redis scripts compute in doubles."""

MAX_PARTITION: Final = 9_999
"""Maximum partition number."""

_PAIR: Final = r"\d{1,5}-\d{1,16}"
_CURSOR: Final = re.compile(rf"{_PAIR}(,{_PAIR})*", re.ASCII)
_SINCE: Final = re.compile(r"(?:(?P<cursor>.*),)?since-(?P<ms>\d{1,16})", re.ASCII)
_LIKE_A_CURSOR: Final = re.compile(r"\d+-.*|.*,.*|\d{1,7}", re.DOTALL)
_DATE: Final = re.compile(r"\d{4}-\d\d-\d\d.*", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Start:
    """Where a reader of a journal starts.

    Attributes:
        kind: ``cursor``: after these offsets; ``earliest``: at the floor; ``latest``: after the fence; ``moment``: at the first
            entry of each partition that is not older than a time, and after ``positions`` in the partitions that have reached it.
        positions: Partition → last offset that was read.
        since_ms: The time of ``moment``, in ms.
    """

    kind: Literal["cursor", "earliest", "latest", "moment"]
    positions: Mapping[int, int] = field(default_factory=dict)
    since_ms: int = 0


def parse_start(text: str, now_ms: int) -> Start:
    """Parse the requested start of a reader: a cursor, a keyword, or a time.

    Args:
        text: A cursor, ``earliest``, ``latest``, a duration before now as in ``-24h``, an ISO time or day, or ms since 1970.
        now_ms: Wall clock.

    Raises:
        CursorError: The text is none of these.
    """
    match text:
        case "earliest":
            return Start("earliest")
        case "latest":
            return Start("latest")
    if len(text) <= MAX_CHARACTERS and _CURSOR.fullmatch(text):
        return Start("cursor", parse_cursor(text))
    if len(text) <= MAX_CHARACTERS and (since := _SINCE.fullmatch(text)):
        return Start("moment", {} if since["cursor"] is None else parse_cursor(since["cursor"]), int(since["ms"]))
    if len(text) > MAX_CHARACTERS or (_LIKE_A_CURSOR.fullmatch(text) and not _DATE.fullmatch(text)):
        raise _garbled(text)
    try:
        return Start("moment", since_ms=parse_moment(text, now_ms))
    except ValueError as error:
        raise _garbled(text) from error


def parse_cursor(text: str) -> dict[int, int]:
    """Parse a cursor without ``since``; return partition → last offset that was read.

    Raises:
        CursorError: The text is not a cursor, has a partition twice, or an offset or partition beyond the maximum.
    """
    if len(text) > MAX_CHARACTERS or not _CURSOR.fullmatch(text):
        raise _garbled(text)
    pairs = [(int(partition), int(offset)) for partition, _, offset in (pair.partition("-") for pair in text.split(","))]
    positions = dict(pairs)
    if len(positions) < len(pairs) or max(positions.values()) > MAX_OFFSET:
        raise _garbled(text)
    if max(positions) > MAX_PARTITION:
        fault = f"partition {max(positions)} of the cursor does not exist: no source has more than {MAX_PARTITION + 1:,}"
        raise CursorError(f"{fault}: write {EXAMPLE}")
    return positions


def cursor_text(positions: Mapping[int, int], since_ms: int | None = None) -> str:
    """Format a cursor, ``<partition>-<offset>,…``, with ``since-<ms>`` at the end if ``since_ms`` is given.

    Args:
        positions: Partition → last offset that was read; negative ones are left out.
        since_ms: Time at which the other partitions start; None: at their floor.
    """
    pairs = [f"{partition}-{offset}" for partition, offset in sorted(positions.items()) if offset >= 0]
    return ",".join(pairs if since_ms is None else [*pairs, f"since-{since_ms}"])


def _garbled(text: str) -> CursorError:
    shown = text if len(text) <= 60 else f"{text[:60]}…"  # noqa: PLR2004  # as many as a line of a terminal holds
    return CursorError(f"{shown!r} is nothing to begin at: write {EXAMPLE}")
