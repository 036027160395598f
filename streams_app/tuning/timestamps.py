"""Decides whether the times of the read events are good enough for ``tune`` to recommend a quiet period (pure).

``tune`` computes from these times which records each candidate quiet period would have given. If many of the times are wrong, so
are the records, and no candidate is recommended.
"""

from __future__ import annotations

from typing import Final

from streams_app.tuning.columns import LATE_STEPS_MS, Columns
from streams_app.tuning.read_counts import ReadCounts

MAX_SHARE: Final = 0.1
"""If at least this fraction of the read events is late, rejected or in the future, no quiet period is recommended."""

MANY_LATE: Final = 0.01
"""If a larger fraction of the lines is out of order, the advice is to sort the file; a log has fewer such lines."""

DATES_SHARE: Final = 0.5
"""If at least this fraction of the events has a time of midnight, the times are taken for dates."""

DAY_NUMBERS: Final = (32_874_000, 73_051_000)
"""Range of times, in ms, that look like day numbers of a spreadsheet for 1990 to 2099, read as seconds.

All of them lie within the first day of 1970.
"""


_ONE: Final = {"lines": "a line", "events": "an event"}


def timestamp_faults(columns: Columns, tally: ReadCounts, unit: str, quiet_ms: int) -> str | None:
    """Return why the events do not allow a recommendation, as sentences separated by semicolons; None if they do.

    An event counts as late from the largest of :data:`LATE_STEPS_MS` that does not exceed ``quiet_ms``, the quiet period that
    would be recommended: smaller delays are usual in a log.
    """
    if not columns.events:
        return None
    rejected = tally.rejected.total()
    counts = {
        "were rejected: see the reasons on stderr": rejected,
        _late_text(unit): _late(columns, quiet_ms),
        "have a time in the future: correct the clock, or the unit, of their producer": columns.future,
    }
    read = columns.events + rejected
    faults = []
    if sum(counts.values()) >= MAX_SHARE * read:
        faults = [f"{count:,} of {read:,} {unit} ({count / read:.1%}) {text}" for text, count in counts.items() if count]
    if columns.at_midnight >= DATES_SHARE * columns.events:
        faults.append(f"{columns.at_midnight:,} of {columns.events:,} times are midnight: they look like dates without a time")
    if DAY_NUMBERS[0] <= columns.from_ms and columns.to_ms < DAY_NUMBERS[1]:
        faults.append("all times lie within the first day of 1970: they look like day numbers of a spreadsheet")
    return "; ".join(faults) or None


def timestamp_remarks(columns: Columns, tally: ReadCounts, unit: str) -> list[str]:
    """Return remarks about late and future times, after all events were read."""
    remarks = []
    if late := int(columns.late[0]):
        share = late / tally.read
        remark = f"older than {_ONE[unit]} before them, whose time they get, as in a worker: {late:,} {unit} ({share:.1%})"
        remarks.append(f"{remark}; sort the file by time unless it is a log" if unit == "lines" and share > MANY_LATE else remark)
    if columns.future:
        remarks.append(f"with a time in the future, which counts as now: {columns.future:,} {unit}")
    return remarks


def _late(columns: Columns, quiet_ms: int) -> int:
    step = max(number for number, step_ms in enumerate(LATE_STEPS_MS) if number == 0 or step_ms <= quiet_ms)
    return int(columns.late[step])


def _late_text(unit: str) -> str:
    if unit == "lines":
        return "are older than a line before them: sort the file by time"
    return "are older than an event before them, perhaps one with a time in the future: choose another range by --from and --to"
