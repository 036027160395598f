"""Whether the times of the events that were read allow a recommendation (pure).

A replay believes the times it is given. Where many of them are wrong, its curve is a curve of the errors, and the best of its
candidates is no advice.
"""

from __future__ import annotations

from typing import Final

from streams_app.tuning.columns import LATE_STEPS_MS, Columns
from streams_app.tuning.read_counts import ReadCounts

MOST_SHARE: Final = 0.1
"""Of what was read: where as many are late, refused or to come, nothing is recommended."""

MANY_LATE: Final = 0.01
"""A larger share of lines that go back in time is no log's usual disorder."""

DATES_SHARE: Final = 0.5
"""Of the events: where so many have the time of midnight, it is taken for a date."""

DAY_NUMBERS: Final = (32_874_000, 73_051_000)
"""Read as seconds, in ms: the days of 1990 to 2099 as spreadsheets number them lie within the first day of 1970."""


_ONE: Final = {"lines": "a line", "events": "an event"}


def timestamp_faults(columns: Columns, tally: ReadCounts, unit: str, quiet_ms: int) -> str | None:
    """Why the events do not allow a recommendation; None where they do.

    Args:
        columns: The events that were read.
        tally: What was refused beside them.
        unit: What was read: ``events`` or ``lines``.
        quiet_ms: What would be recommended. Disorder that is shorter, or below a second, is that of every log, and does not count.

    Returns:
        Sentences that say what is wrong, and what to do.
    """
    if not columns.events:
        return None
    refused = tally.refused.total()
    counts = {
        "were refused: see the reasons on stderr": refused,
        _late_text(unit): _late(columns, quiet_ms),
        "have a time to come: correct the clock, or the unit, of whoever wrote them": columns.future,
    }
    read = columns.events + refused
    faults = []
    if sum(counts.values()) >= MOST_SHARE * read:
        faults = [f"{count:,} of {read:,} {unit} ({count / read:.1%}) {text}" for text, count in counts.items() if count]
    if columns.at_midnight >= DATES_SHARE * columns.events:
        faults.append(f"{columns.at_midnight:,} of {columns.events:,} times are midnight: they look like dates without a time")
    if DAY_NUMBERS[0] <= columns.from_ms and columns.to_ms < DAY_NUMBERS[1]:
        faults.append("all times lie within the first day of 1970: they look like day numbers of a spreadsheet")
    return "; ".join(faults) or None


def timestamp_remarks(columns: Columns, tally: ReadCounts, unit: str) -> list[str]:
    """What else to say about the times that were read, once all are."""
    notes = []
    if late := int(columns.late[0]):
        share = late / tally.read
        note = f"older than {_ONE[unit]} before them, and given its time, as in a worker: {late:,} {unit} ({share:.1%})"
        notes.append(f"{note}; sort the file by time if it is no log" if unit == "lines" and share > MANY_LATE else note)
    if columns.future:
        notes.append(f"with a time to come, which counts as now: {columns.future:,} {unit}")
    return notes


def _late(columns: Columns, quiet_ms: int) -> int:
    """How many events are too late to say anything about a quiet period."""
    step = max(number for number, step_ms in enumerate(LATE_STEPS_MS) if number == 0 or step_ms <= quiet_ms)
    return int(columns.late[step])


def _late_text(unit: str) -> str:
    if unit == "lines":
        return "are older than a line before them: sort the file by time"
    return "are older than an event before them, as all are after one whose time is ahead: choose another range by --from and --to"
