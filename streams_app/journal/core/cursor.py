"""Parses and formats cursors of readers of a journal, and parses the start that a reader requests (pure).

A cursor consists of the name of its journal, a colon, and pairs ``<partition>-<offset>``, separated by commas: one for each
partition from which the reader has received an entry, with the offset of its last entry. A partition without a pair is read from
its floor, the first stored offset. A cursor without a name is accepted for any journal: that is how commands print the position of
an entry, and how former versions wrote cursors.

A reader that started at a point in time has a cursor that ends with ``since-<ms>``, until the journal has stored events up to that
time in every partition. Until then, a partition without a pair is read from that time, not from its floor.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, Literal

from streams_app.errors import CursorError
from streams_app.formatting import MILLISECONDS_TO, milliseconds, parse_duration, parse_moment, time_text

EXAMPLE: Final = (
    "a cursor as in 3-1041 or accounts:0-77,3-1041, earliest, latest, how long ago as in -24h, or a day as in 2026-08-20"
)

FUTURE_MS: Final = 86_400_000
"""A start may be this much in the future, because clocks differ; later ones are mistakes, such as a wrong year."""

MAX_CHARACTERS: Final = 8_000
"""Maximum length of a cursor: enough for 600 partitions with offsets of eight digits."""

MAX_OFFSET: Final = 2**53 - 1
"""Maximum offset in a cursor. Redis scripts compute in doubles, which are not exact for larger numbers."""

MAX_PARTITION: Final = 9_999
"""Maximum partition number in a cursor."""

_PAIR: Final = r"\d{1,5}-\d{1,16}"
_CURSOR: Final = re.compile(rf"{_PAIR}(,{_PAIR})*", re.ASCII)
_SINCE: Final = re.compile(r"(?:(?P<cursor>.*),)?since-(?P<ms>\d{1,16})", re.ASCII)
_NAMED: Final = re.compile(rf"(?P<journal>[a-z0-9][a-z0-9_-]{{0,62}}):(?P<cursor>({_PAIR}|since-\d).*)", re.ASCII)
_ISO_TIME: Final = re.compile(r"\d{4}-\d\d-\d\d[Tt ].*", re.DOTALL)
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
        journal: Name of the journal that the cursor is of; "" if the start is no cursor, or the cursor has no name.
    """

    kind: Literal["cursor", "earliest", "latest", "moment"]
    positions: Mapping[int, int] = field(default_factory=dict)
    since_ms: int = 0
    journal: str = ""


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
    if len(text) > MAX_CHARACTERS:
        raise _garbled(text)
    named = None if _ISO_TIME.fullmatch(text) else _NAMED.fullmatch(text)
    journal, cursor = ("", text) if named is None else (named["journal"], named["cursor"])
    if _CURSOR.fullmatch(cursor):
        return Start("cursor", parse_cursor(cursor), journal=journal)
    if since := _SINCE.fullmatch(cursor):
        positions = {} if since["cursor"] is None else parse_cursor(since["cursor"])
        if int(since["ms"]) >= MILLISECONDS_TO:
            raise _garbled(text)
        return Start("moment", positions, int(since["ms"]), journal)
    if named is not None or (_LIKE_A_CURSOR.fullmatch(text) and not _DATE.fullmatch(text)):
        raise _garbled(text)
    return Start("moment", since_ms=_moment(text, now_ms))


def check_start(start: Start, journal: str, now_ms: int) -> None:
    """Check that a start is not a cursor of another journal, whose offsets mean other events, nor over a day in the future."""
    if start.journal not in ("", journal):
        raise CursorError(
            f"the cursor is of journal {start.journal}, not of {journal}: use one that {journal} returned, or begin at earliest"
        )
    is_cursor = start.journal or start.positions
    if start.since_ms > now_ms + FUTURE_MS and not is_cursor:
        raise CursorError(f"{time_text(start.since_ms)} is in the future: write {EXAMPLE}")


def parse_cursor(text: str) -> dict[int, int]:
    """Parse ``<partition>-<offset>`` pairs, without a time; return the last offset that was read in each partition."""
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


def cursor_text(positions: Mapping[int, int], since_ms: int | None = None, journal: str = "") -> str:
    """Format a cursor: the journal, ``<partition>-<offset>`` for each partition, then ``since-<ms>`` if there is a time.

    The result is empty if there is neither a partition nor a time.

    Args:
        positions: Last offset that was read in each partition; partitions with a negative one are left out.
        since_ms: Time from which partitions without a pair are read; None if they are read from their floor.
        journal: "" for a list of positions, such as the floors of a journal.
    """
    pairs = [f"{partition}-{offset}" for partition, offset in sorted(positions.items()) if offset >= 0]
    text = ",".join(pairs if since_ms is None else [*pairs, f"since-{since_ms}"])
    return f"{journal}:{text}" if journal and text else text


def _moment(text: str, now_ms: int) -> int:
    """Convert the time at which a reader starts to ms since 1970; a time before 1970 is a CursorError."""
    try:
        ago_ms = milliseconds(parse_duration(text.removeprefix("-")))
        since_ms = now_ms - ago_ms
    except ValueError as error:
        since_ms = -1 if isinstance(error.__cause__, OverflowError) else _point_in_time(text, now_ms)
    if since_ms < 0:
        raise CursorError(f"{_shown(text)} is before 1970: write {EXAMPLE}")
    return since_ms


def _point_in_time(text: str, now_ms: int) -> int:
    """Convert an ISO time or a number to ms since 1970; -1 if it is an earlier ISO time."""
    try:
        return parse_moment(text, now_ms)
    except ValueError as error:
        if _DATE.fullmatch(text) and text < "1970":
            return -1
        raise _garbled(text) from error


def _garbled(text: str) -> CursorError:
    return CursorError(f"{_shown(text)} is nothing to begin at: write {EXAMPLE}")


def _shown(text: str) -> str:
    return repr(text if len(text) <= 60 else f"{text[:60]}…")  # noqa: PLR2004  # as many as a line of a terminal holds
