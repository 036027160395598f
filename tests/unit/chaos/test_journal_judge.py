"""The judge of ``make chaos-journal`` detects violations and accepts correct readings."""

from __future__ import annotations

from dataclasses import replace

import pytest

from streams_app.journal.reading.entries import Entry, Gap
from tests.chaos.journal.judge import Event, Judge, Reading

KEY = b"a"
TOPIC = {
    0: {offset: Event(KEY if offset % 2 else b"b", 1_000 + offset, b"%d" % offset, (("h", None),)) for offset in range(10)},
    1: {0: Event(KEY, 5, None)},
}


def entry(offset: int, partition: int = 0) -> Entry:
    event = TOPIC[partition][offset]
    return Entry(f"{partition}-{offset}", event.time_ms, event.value, event.headers, partition, offset)


def gap(first: int, last: int, why: str = "removed") -> Gap:
    return Gap(first, last, why, 0, f"0-{last}")


REMOVED = {0: {2, 4, 8}, 1: set[int]()}
FLOORS = {0: 9, 1: 0}


def judged(
    *items: Entry | Gap,
    up_to: int | None = None,
    after: dict[int, int] | None = None,
    floors: dict[int, int] | None = None,
    began: dict[int, int] | None = None,
    since_ms: int | None = None,
    fence: int = 9,
) -> Judge:
    judge = Judge(TOPIC, REMOVED, floors)
    cursor = {0: 0, 1: 0} if after is None and began is None else after or {}
    ends = {} if up_to is None else {0: up_to}
    judge.judge(Reading(KEY, cursor, list(items), ends, began or {}, since_ms, {0: fence}))
    return judge


@pytest.mark.parametrize(
    "judge",
    [
        judged(entry(1), entry(3), entry(5), up_to=6),
        judged(entry(1), entry(3)),
        judged(gap(1, 4), entry(5), up_to=6, floors={0: 5, 1: 0}),
        judged(entry(1), gap(2, 8), entry(9), up_to=9),
        judged(entry(1), gap(3, 4)),
        judged(entry(0, partition=1), entry(5), entry(7), after={}),
        judged(entry(1), entry(0, partition=1), entry(3), after={0: 0}),
        judged(entry(3), began={0: 2}),
        judged(entry(5), began={0: 0}),
        judged(up_to=4, began={0: 0}),
        judged(entry(3), entry(5), began={0: 0}, since_ms=1_003),
        judged(gap(1, 2), entry(5), began={0: 0}, since_ms=1_005),
        judged(up_to=9, began={0: 0}, since_ms=1_010),
        judged(entry(7), entry(9), began={0: 0}, since_ms=1_010, floors=FLOORS, fence=6),
        judged(entry(1), entry(3), began={0: 0}, since_ms=1_003),
    ],
    ids=[
        "all",
        "up to its position",
        "gap at the begin",
        "gap in between",
        "gap with events of another key",
        "from the floor",
        "in order of each partition",
        "from the floor at its begin",
        "from a floor that rose",
        "nothing of the key from a floor that rose",
        "from a time",
        "from a time after a gap",
        "no entry is new enough",
        "an older entry that was stored after the reading began",
        "an older entry that was stored again after Redis had lost data",
    ],
)
def test_entries_once_in_order_or_reported_as_removed_are_accepted(judge: Judge) -> None:
    assert judge.wrong == []


@pytest.mark.parametrize(
    ("judge", "why"),
    [
        (judged(entry(3)), "lacks 1 events in (0, 2]"),
        (judged(entry(1), entry(5)), "lacks 1 events in (1, 4]"),
        (judged(entry(1), up_to=9), "lacks 4 events"),
        (judged(up_to=9), "lacks 5 events"),
        (judged(entry(1), entry(1)), "twice, or out of order"),
        (judged(entry(1), entry(3), entry(1)), "twice, or out of order"),
        (judged(entry(1), after={0: 1}), "twice, or out of order"),
        (judged(replace(entry(1), value=b"2")), "its bytes differ"),
        (judged(replace(entry(1), value=None)), "its bytes differ"),
        (judged(replace(entry(1), at_ms=7)), "its bytes differ"),
        (judged(replace(entry(1), headers=())), "its bytes differ"),
        (judged(entry(1), entry(2)), "no such event of the key"),
        (judged(entry(1), replace(entry(9), offset=11)), "no such event of the key"),
        (judged(gap(1, 2, "damaged")), "the topic has them"),
        (judged(gap(1, 2, "retention")), "the topic has them"),
        (judged(gap(2, 4)), "lacks 1 events in (0, 1]"),
        (judged(entry(3), gap(1, 4), after={0: 2}), "twice, or out of order"),
        (judged(gap(1, 8), floors={0: 5, 1: 0}), "the journal begins at 5"),
        (judged(gap(1, 5)), "no removed range ends there"),
        (judged(entry(7), began={0: 0}), "lacks 1 events in (4, 6]"),
        (judged(up_to=6, began={0: 0}), "lacks 1 events in (4, 6]"),
        (judged(entry(5), entry(9), began={0: 4}), "lacks 1 events in (5, 8]"),
        (judged(entry(7), began={0: 0}, since_ms=1_003), "lacks 1 events in (4, 6]"),
        (judged(entry(1), began={0: 0}, since_ms=1_003, floors=FLOORS), "older than requested"),
        (judged(entry(3), began={0: 0}, since_ms=1_005, floors=FLOORS, fence=3), "older than requested"),
        (judged(entry(3), entry(7), began={0: 0}, since_ms=1_003), "lacks 1 events in (3, 6]"),
    ],
)
def test_missing_repeated_changed_and_unannounced_entries_are_violations(judge: Judge, why: str) -> None:
    assert why in judge.wrong[0]


@pytest.mark.parametrize(("since_ms", "is_right"), [(1_003, True), (1_004, False)])
def test_late_event_may_follow_a_gap_with_the_first_requested_event(since_ms: int, *, is_right: bool) -> None:
    late = TOPIC[0][5]._replace(time_ms=1_001)
    judge = Judge({**TOPIC, 0: {**TOPIC[0], 5: late}}, REMOVED, FLOORS)
    items: list[Entry | Gap] = [gap(1, 4), replace(entry(5), at_ms=1_001)]
    judge.judge(Reading(KEY, {}, items, {}, {0: 0}, since_ms, {0: 9}))

    assert is_right is not any("older than requested" in one for one in judge.wrong)


def test_run_that_judged_too_little_is_a_violation() -> None:
    judge = judged(entry(1), up_to=1)
    judge.require(1, 1)
    assert judge.wrong == []

    judge.require(1, 2)
    judge.require(2, 1)

    assert len(judge.wrong) == 2
    assert "only 1 readings and 1 entries" in judge.wrong[0]
