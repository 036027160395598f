"""Which reported removals a chaos run of journals accepts."""

from __future__ import annotations

import pytest

from streams_app.settings import JournalSettings
from tests.chaos.journal.judge import Event
from tests.chaos.journal.removals import MAX_OVERHEAD, Removals

DAY_MS = 86_400_000
NOW_MS = 100 * DAY_MS
EVENTS = 100
JOURNAL = JournalSettings(name="days", source="days", key="@key", keep="30d", max_bytes=1_000_000)
SIZE = 1_000_000 // 50 - MAX_OVERHEAD - 2
"""Size of a value by which 50 events are exactly what the journal may keep."""


def removed(*lines: str, may_be_full: bool = False) -> Removals:
    young = {offset: Event(b"a", NOW_MS - DAY_MS, bytes(SIZE)) for offset in range(2, EVENTS)}
    topic = {0: {0: Event(b"a", 5, None), 1: Event(b"a", NOW_MS - 40 * DAY_MS, None), **young}}
    log = "".join(f"2026-11-25 19:00:00,000 INFO streams_app.journal {line}\n" for line in lines)
    return Removals(log, topic, JOURNAL, NOW_MS, may_be_full=may_be_full)


def dropped(first: int, last: int, cause: str = "size") -> str:
    return f"removed a segment journal=days source=days-0 offsets={first}-{last} day=2026-11-24 cause={cause}"


def claimed(floor: int, state: str = "kept") -> str:
    return f"claimed journal=days source=days-0 floor={floor} fence=90 state={state}"


@pytest.mark.parametrize(
    ("found", "floors"),
    [
        (removed(), [0]),
        (removed(dropped(0, 20), dropped(21, 30), claimed(31)), [21, 31]),
        (removed(dropped(0, 1, "age")), [2]),
        (removed(dropped(30, 60, "memory"), may_be_full=True), [61]),
        (removed(dropped(0, 20), claimed(31)), [21, 31]),
        (removed(claimed(0, "new")), [0]),
        (removed(claimed(2, "new")), [2]),
    ],
    ids=["nothing", "for size", "for age", "Redis was full", "unreported", "new from offset 0", "new from the first event to keep"],
)
def test_journal_may_begin_after_the_segments_that_it_had_to_remove(found: Removals, floors: list[int]) -> None:
    assert found.wrong == []
    assert [floor for floor in range(EVENTS + 1) if found.begins(0, floor)] == sorted({0, *floors})


@pytest.mark.parametrize(
    ("found", "why"),
    [
        (removed(dropped(50, 60)), "all later events take at most 1000000 bytes of 1000000"),
        (removed(dropped(0, 2, "age")), "events that the journal must keep"),
        (removed(dropped(0, 2, "memory")), "Redis was never full"),
        (removed(dropped(0, 49), claimed(61)), "offsets 50 to 60 of partition 0 were removed"),
        (removed(claimed(3, "new")), "was created again at 3"),
    ],
)
def test_removal_of_retained_segments_is_a_violation(found: Removals, why: str) -> None:
    (wrong,) = found.wrong
    assert why in wrong
