"""Where a reader of a journal stands, and where it may begin (pure).

A cursor is ``<partition>-<offset>`` of the last entry that was had; those of several partitions are joined by commas. A partition
that a cursor does not name is read from its floor: nothing of the key was had there. The cursor of a reader that began at a moment
ends with ``since-<ms>`` as long as some partitions have no state, or have not come to the moment: those that it does not name begin
there.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, Literal

from streams_app.errors import CursorError
from streams_app.formatting import parse_moment

EXAMPLE: Final = "a cursor as in 3-1041 or 0-77,3-1041, earliest, latest, how long ago as in -24h, or a day as in 2026-08-20"

MOST_CHARACTERS: Final = 8_000
"""No cursor is longer: some 600 partitions with offsets of eight digits."""

MOST_OFFSET: Final = 2**53 - 1
"""Scripts count in doubles."""

MOST_PARTITION: Final = 9_999
"""No source has more: a cursor could not even name them."""

_PAIR: Final = r"\d{1,5}-\d{1,16}"
_CURSOR: Final = re.compile(rf"{_PAIR}(,{_PAIR})*", re.ASCII)
_SINCE: Final = re.compile(r"(?:(?P<cursor>.*),)?since-(?P<ms>\d{1,16})", re.ASCII)
_LIKE_A_CURSOR: Final = re.compile(r"\d+-.*|.*,.*|\d{1,7}", re.DOTALL)
_DATE: Final = re.compile(r"\d{4}-\d\d-\d\d.*", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Start:
    """Where a reader begins.

    Attributes:
        kind: ``cursor``: behind these offsets; ``earliest``: at the floor; ``latest``: behind the fence; ``moment``: with the first
            entry of each partition that is not older, and behind these offsets where it was come to before.
        positions: Partition → last offset that was had.
        since_ms: The moment.
    """

    kind: Literal["cursor", "earliest", "latest", "moment"]
    positions: Mapping[int, int] = field(default_factory=dict)
    since_ms: int = 0


def parse_start(text: str, now_ms: int) -> Start:
    """Where to begin, as people and programs write it.

    Args:
        text: A cursor, ``earliest``, ``latest``, how long ago, an ISO time or day, or ms since 1970.
        now_ms: Wall clock.

    Raises:
        CursorError: It is none of them.
    """
    match text:
        case "earliest":
            return Start("earliest")
        case "latest":
            return Start("latest")
    if len(text) <= MOST_CHARACTERS and _CURSOR.fullmatch(text):
        return Start("cursor", parse_cursor(text))
    if len(text) <= MOST_CHARACTERS and (since := _SINCE.fullmatch(text)):
        return Start("moment", {} if since["cursor"] is None else parse_cursor(since["cursor"]), int(since["ms"]))
    if len(text) > MOST_CHARACTERS or (_LIKE_A_CURSOR.fullmatch(text) and not _DATE.fullmatch(text)):
        raise _garbled(text)
    try:
        return Start("moment", since_ms=parse_moment(text, now_ms))
    except ValueError as error:
        raise _garbled(text) from error


def parse_cursor(text: str) -> dict[int, int]:
    """Partition → last offset that was had.

    Raises:
        CursorError: It is no cursor, names a partition twice, or one that no source has.
    """
    if len(text) > MOST_CHARACTERS or not _CURSOR.fullmatch(text):
        raise _garbled(text)
    pairs = [(int(partition), int(offset)) for partition, _, offset in (pair.partition("-") for pair in text.split(","))]
    positions = dict(pairs)
    if len(positions) < len(pairs) or max(positions.values()) > MOST_OFFSET:
        raise _garbled(text)
    if max(positions) > MOST_PARTITION:
        fault = f"partition {max(positions)} of the cursor is not there: no source has more than {MOST_PARTITION + 1:,}"
        raise CursorError(f"{fault}: write {EXAMPLE}")
    return positions


def cursor_text(positions: Mapping[int, int], since_ms: int | None = None) -> str:
    """The cursor of these positions; a partition of which nothing was had (below 0) is left out.

    Args:
        positions: Partition → last offset that was had.
        since_ms: The moment at which other partitions begin; None: at their floor.
    """
    pairs = [f"{partition}-{offset}" for partition, offset in sorted(positions.items()) if offset >= 0]
    return ",".join(pairs if since_ms is None else [*pairs, f"since-{since_ms}"])


def _garbled(text: str) -> CursorError:
    shown = text if len(text) <= 60 else f"{text[:60]}…"  # noqa: PLR2004  # as many as a line of a terminal holds
    return CursorError(f"{shown!r} is nothing to begin at: write {EXAMPLE}")
