"""Parses and formats cursors of readers of a journal, and parses the start that a reader requests (pure).

A cursor consists of pairs ``<partition>-<offset>``, separated by commas: one for each partition from which the reader has received
an entry, with the offset of its last entry. A partition without a pair is read from its floor, the first stored offset.

A reader that started at a point in time has a cursor that ends with ``since-<ms>``, until the journal has stored events up to that
time in every partition. Until then, a partition without a pair is read from that time, not from its floor.
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
"""Maximum length of a cursor: enough for 600 partitions with offsets of eight digits."""

MAX_OFFSET: Final = 2**53 - 1
"""Maximum offset in a cursor. Redis scripts compute in doubles, which are not exact for larger numbers."""

MAX_PARTITION: Final = 9_999
"""Maximum partition number in a cursor."""

_PAIR: Final = r"\d{1,5}-\d{1,16}"
_CURSOR: Final = re.compile(rf"{_PAIR}(,{_PAIR})*", re.ASCII)
_SINCE: Final = re.compile(r"(?:(?P<cursor>.*),)?since-(?P<ms>\d{1,16})", re.ASCII)
_LIKE_A_CURSOR: Final = re.compile(r"\d+-.*|.*,.*|\d{1,7}", re.DOTALL)
_DATE: Final = re.compile(r"\d{4}-\d\d-\d\d.*", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Start:
    """Where a reader of a journal starts.

    Attributes:
        kind: With ``earliest``, the reader starts at the floor of each partition; with ``latest``, after the fence. With
            ``cursor``, it starts after ``positions``, and at the floor of other partitions. With ``moment``, it starts at the first
            entry of each partition that is not older than ``since_ms``; partitions in ``positions`` have reached that time before,
            so the reader continues after their offsets.
        positions: Last offset that was read in each partition, for ``cursor`` and ``moment``.
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
        CursorError: The text is none of these, or an invalid cursor.
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
    """Parse a cursor that consists of ``<partition>-<offset>`` pairs; return the last offset that was read in each partition.

    Raises:
        CursorError: The text is not a cursor, ends with a time as in ``since-<ms>``, names a partition twice, or has an offset or a
            partition above the maximum. :func:`parse_start` accepts a cursor with a time.
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
    """Format a cursor: ``<partition>-<offset>`` for each partition, joined by commas, then ``since-<ms>`` if there is a time.

    Args:
        positions: Last offset that was read in each partition; partitions with a negative one are left out.
        since_ms: Time from which partitions without a pair are read; None if they are read from their floor.
    """
    pairs = [f"{partition}-{offset}" for partition, offset in sorted(positions.items()) if offset >= 0]
    return ",".join(pairs if since_ms is None else [*pairs, f"since-{since_ms}"])


def _garbled(text: str) -> CursorError:
    shown = text if len(text) <= 60 else f"{text[:60]}…"  # noqa: PLR2004  # as many as a line of a terminal holds
    return CursorError(f"{shown!r} is nothing to begin at: write {EXAMPLE}")
