"""The quiet period of a shard that sets itself: which one a range has, what is learned from it, and when that is stored."""

from __future__ import annotations

import logging
import math
from collections.abc import Iterable

import pytest

from streams_app.delivery.batch import TP
from streams_app.folding.core.auto_quiet import LearnedGaps, packed_gaps, unpacked_gaps
from streams_app.folding.core.event import DetailedEvent
from streams_app.folding.core.shard_clock import RangeTime
from streams_app.folding.shard.quiet_period import ShardQuietPeriod, minutes_of
from tests.helpers.folding.auto_quiet import AUTO_FOLD, AUTO_GOAL, GROUPS, regular_events

MINUTE_MS, DAY_MS = 60_000, 86_400_000
NOW_MS = 1_700_000_000_000
DEFAULT_MS, AT_MOST_MS = AUTO_GOAL.default_ms, AUTO_GOAL.at_most_ms


def new() -> ShardQuietPeriod:
    found = ShardQuietPeriod.of(AUTO_FOLD, TP("t", 0))
    assert found is not None
    return found


def fold(period: ShardQuietPeriod, events: Iterable[DetailedEvent], now_ms: int) -> tuple[list[DetailedEvent], bytes]:
    """Fold a range whose times are those of its events; return its events as they are folded, and what is stored with its end."""
    time = period.begin(RangeTime(now_ms, None))
    read = list(period.read(events))
    stored = period.to_store(time.cap_ms)
    period.folded(time.cap_ms, has_stored=bool(stored))
    return read, stored


def fold_minutes(period: ShardQuietPeriod, minutes: int, from_ms: int = NOW_MS) -> list[bytes]:
    """Fold a range for each minute; return what was stored with each."""
    found = []
    for minute in range(minutes):
        begin_ms = from_ms + minute * MINUTE_MS
        found.append(fold(period, regular_events(begin_ms, begin_ms + MINUTE_MS), begin_ms + MINUTE_MS)[1])
    return found


def test_fold_with_a_fixed_quiet_period_has_none() -> None:
    fixed = AUTO_FOLD.model_copy(update={"quiet_period": AUTO_FOLD.max_hold})

    assert ShardQuietPeriod.of(fixed, TP("t", 0)) is None


def test_events_of_a_range_have_the_quiet_period_before_its_first_event() -> None:
    period = new()
    events = regular_events(NOW_MS, NOW_MS + 30 * MINUTE_MS)
    first, _ = fold(period, events, NOW_MS + DAY_MS)
    changed_ms = period.quiet_ms
    second, _ = fold(period, events[:1], NOW_MS + DAY_MS)

    assert {AT_MOST_MS - DEFAULT_MS} == {event.shorter_ms for event in first}
    assert changed_ms != DEFAULT_MS
    assert [AT_MOST_MS - changed_ms] == [event.shorter_ms for event in second]


def test_range_is_divided_where_a_minute_of_its_events_begins() -> None:
    ages_ms = [90_000, 80_000, 30_000, 95_000, 20_000, 0, -DAY_MS, 10_000, -2 * DAY_MS]
    begin_ms = NOW_MS // MINUTE_MS * MINUTE_MS
    events = [DetailedEvent(10 * at, begin_ms - age_ms, b"sg", {}) for at, age_ms in enumerate(ages_ms)]
    parts = [([event[0] for event in part], to) for part, to in minutes_of(events, 99, begin_ms)]

    assert [([0, 10], 10), ([20, 30, 40], 40), ([50, 60, 70, 80], 99)] == parts
    assert [([], 7)] == list(minutes_of([], 7, NOW_MS))


def test_events_that_are_read_again_have_the_quiet_period_of_their_range() -> None:
    period = new()
    events = regular_events(NOW_MS, NOW_MS + 30 * MINUTE_MS)
    time = period.begin(RangeTime(NOW_MS + DAY_MS, None))
    read = list(period.read(events))
    period.folded(time.cap_ms, has_stored=False)

    assert period.quiet_ms != DEFAULT_MS
    assert read == list(period.reread(events, time))


def test_range_of_a_former_owner_has_the_quiet_period_that_is_stored_with_it() -> None:
    period = new()
    time = period.begin(RangeTime(NOW_MS, None, 40_000))
    (event,) = period.read(regular_events(NOW_MS, NOW_MS + 1_000)[:1])

    assert (40_000, AT_MOST_MS - 40_000) == (time.quiet_ms, event.shorter_ms)


def test_range_of_a_former_owner_with_a_longer_limit_has_the_present_limit() -> None:
    period = new()
    period.begin(RangeTime(NOW_MS, None, 2 * AT_MOST_MS))
    (event,) = period.read(regular_events(NOW_MS, NOW_MS + 1_000)[:1])

    assert 0 == event.shorter_ms


def test_events_that_were_not_folded_are_not_learned() -> None:
    period = new()
    period.begin(RangeTime(NOW_MS + DAY_MS, None))
    list(period.read(regular_events(NOW_MS, NOW_MS + 30 * MINUTE_MS)))
    period.begin(RangeTime(NOW_MS + DAY_MS, None))
    period.folded(NOW_MS + DAY_MS, has_stored=False)

    assert DEFAULT_MS == period.quiet_ms


def test_what_was_learned_is_stored_once_a_minute_and_after_a_change() -> None:
    period = new()
    begin_ms = NOW_MS
    seconds = [
        fold(period, regular_events(NOW_MS + n * 1_000, NOW_MS + n * 1_000 + 1_000), NOW_MS + n * 1_000)[1] for n in range(150)
    ]
    begin_ms += 150_000

    assert [1, 61, 121] == [at for at, stored in enumerate(seconds) if stored]
    before = period.quiet_ms
    while period.quiet_ms == before:
        fold_minutes(period, 1, begin_ms)
        begin_ms += MINUTE_MS
    stored = fold(period, regular_events(begin_ms, begin_ms + 10), begin_ms)[1]
    assert period.quiet_ms == unpacked_gaps(stored).quiet_ms
    assert b"" == fold(period, regular_events(begin_ms + 10, begin_ms + 20), begin_ms)[1]


def test_next_owner_continues_with_what_was_stored() -> None:
    period, following = new(), new()
    stored = fold_minutes(period, 20)[-1]
    following.take_over(stored)

    assert DEFAULT_MS != following.quiet_ms
    assert unpacked_gaps(stored).quiet_ms == following.quiet_ms
    following.take_over(b"")
    assert DEFAULT_MS == following.quiet_ms


def test_quiet_period_of_other_limits_begins_with_the_default() -> None:
    period = new()
    period.take_over(packed_gaps(LearnedGaps((7_000, 9_000), 9_000, [0.0] * 3)))

    assert DEFAULT_MS == period.quiet_ms


GAPS = LearnedGaps.nothing(AUTO_GOAL)
COUNTS = len(GAPS.counts)


@pytest.mark.parametrize(
    "stored",
    [
        b"\x01",
        b"\x80",
        packed_gaps(GAPS)[:-1],
        packed_gaps(GAPS) + b"\x00" * 40_000,
        packed_gaps(LearnedGaps(GAPS.candidates, 1, [0.0] * COUNTS)),
        packed_gaps(LearnedGaps(GAPS.candidates, DEFAULT_MS, [0.0])),
        packed_gaps(LearnedGaps(GAPS.candidates, DEFAULT_MS, [math.nan] * COUNTS, events=1.0)),
        packed_gaps(LearnedGaps(GAPS.candidates, DEFAULT_MS, [-1.0] * COUNTS, events=1.0)),
        packed_gaps(LearnedGaps(GAPS.candidates, DEFAULT_MS, [500.0] * COUNTS)),
        packed_gaps(LearnedGaps(GAPS.candidates, DEFAULT_MS, [0.0] * COUNTS, weight=0)),
        packed_gaps(LearnedGaps(GAPS.candidates, DEFAULT_MS, [0.0] * COUNTS, clock_ms=2**63)),
        packed_gaps(LearnedGaps(GAPS.candidates, DEFAULT_MS, [0.0] * COUNTS, left_out_ms=-(2**60))),
        packed_gaps(LearnedGaps(GAPS.candidates, DEFAULT_MS, [0.0] * COUNTS, groups={2**40: 1})),
    ],
    ids=[
        "number", "empty map", "cut off", "too long", "other period", "few counts", "nan", "negative", "no events", "weight",
        "clock", "left out", "hash",
    ],
)  # fmt: skip
def test_stored_value_that_is_not_valid_is_ignored_and_reported(stored: bytes, caplog: pytest.LogCaptureFixture) -> None:
    period = new()
    period.take_over(stored)
    fold_minutes(period, 12)

    assert ["WARNING"] == [record.levelname for record in caplog.records if "is not valid" in record.message]
    assert "fold=f source=t-0" in caplog.text


def test_each_change_is_logged_with_its_folding_ratios(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    period = new()
    fold_minutes(period, 30)

    changes = [record.message for record in caplog.records if "quiet period changed" in record.message]
    assert changes
    assert "from 1m to 2m" in changes[0]
    assert "folding ratio of" in changes[0]


# Clocks that jump, and silence


def test_quiet_period_holds_for_a_week_without_events() -> None:
    period = new()
    fold_minutes(period, 40)
    before = period.quiet_ms
    for day in range(7):
        fold(period, [], NOW_MS + day * DAY_MS)
    fold(period, regular_events(NOW_MS + 8 * DAY_MS, NOW_MS + 8 * DAY_MS + 1_000), NOW_MS + 8 * DAY_MS + 1_000)

    assert before == period.quiet_ms


def test_timestamps_in_the_future_do_not_stop_the_learning() -> None:
    period = new()
    (event,) = regular_events(NOW_MS, NOW_MS + 1_000)[:1]
    fold(period, [event._replace(timestamp_ms=NOW_MS + 365 * DAY_MS)], NOW_MS)
    fold_minutes(period, 30)

    assert DEFAULT_MS != period.quiet_ms


@pytest.mark.parametrize("timestamp_ms", [-1, 0, NOW_MS - DAY_MS], ids=["none", "zero", "old"])
def test_events_without_a_time_or_with_an_old_one_change_nothing(timestamp_ms: int) -> None:
    period = new()
    fold_minutes(period, 40)
    before = period.quiet_ms
    odd = [event._replace(timestamp_ms=timestamp_ms) for event in regular_events(NOW_MS, NOW_MS + 10 * MINUTE_MS)]
    read, _ = fold(period, odd, NOW_MS + 41 * MINUTE_MS)

    assert before == period.quiet_ms
    assert len(odd) == len(read)
    assert GROUPS >= len({event.group for event in read})
