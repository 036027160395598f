"""Which offsets are finished, begun or neither, compared with a table of offsets; and what survives a crash."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streams_app.subscribers.state.intervals import Interval, IntervalSet
from streams_app.subscribers.state.offset_metadata import OffsetMetadata, decoded, encoded, fits, fitted
from streams_app.subscribers.state.offset_tracker import OffsetsAbove, OffsetTracker

FIRST = 7


def offsets_of(above: OffsetsAbove) -> set[int]:
    return {offset for run in above.finished for offset in range(*run)}


def read(window: OffsetTracker, *offsets: int) -> list[int]:
    return window.cover(window.end, max(offsets) + 1, offsets)


# Intervals


@given(st.lists(st.integers(0, 30), unique=True), st.integers(0, 31))
def test_interval_set_holds_added_offsets_not_below_the_dropped_ones(added: list[int], below: int) -> None:
    runs = IntervalSet()
    for offset in added:
        runs.add(offset)
    runs.drop_below(below)
    expected = {offset for offset in added if offset >= below}

    assert expected == {offset for offset in range(40) if offset in runs}
    assert expected == {offset for run in runs.all() for offset in range(*run)}
    assert all(one.end < other.begin for one, other in zip(runs.all(), runs.all()[1:], strict=False))
    assert [min(set(range(at, 41)) - expected) for at in range(40)] == [runs.after(at) for at in range(40)]


# Offset tracker


def test_watermark_stays_at_the_oldest_unfinished_offset() -> None:
    window = OffsetTracker(FIRST)
    read(window, 7, 8, 9)
    window.finish([8])
    window.finish([9])

    assert (7, OffsetsAbove((Interval(8, 10),))) == (window.low, window.above())


def test_skipped_offsets_do_not_hold_back_the_watermark() -> None:
    window = OffsetTracker(FIRST)

    assert [9] == window.cover(FIRST, 20, [9])
    assert 9 == window.low
    assert window.finish([9])
    assert 20 == window.low


def test_range_without_records_moves_the_watermark() -> None:
    window = OffsetTracker(FIRST)
    window.cover(FIRST, 20, [])

    assert 20 == window.low


def test_non_consecutive_range_is_rejected() -> None:
    with pytest.raises(ValueError, match="does not follow"):
        OffsetTracker(FIRST).cover(FIRST + 1, 20, [])


def test_record_is_accepted_only_once() -> None:
    window = OffsetTracker(FIRST)
    read(window, 7, 8)

    assert [9] == window.cover(FIRST, 10, [7, 8, 9])


def test_result_counts_once() -> None:
    window = OffsetTracker(FIRST)
    read(window, 7)

    assert [[7], []] == [window.finish([7]), window.finish([7])]


def test_only_unfinished_offsets_are_finished() -> None:
    window = OffsetTracker(7)
    window.cover(7, 11, [7, 9, 10])
    window.begin([9])
    window.finish([10])

    assert [9, 7] == window.finish([9, 8, 7, 10])
    assert (11, set()) == (window.low, set(window.begun))


def test_finished_offset_does_not_begin() -> None:
    window = OffsetTracker(FIRST)
    read(window, 7)
    window.finish([7])

    assert not window.begin([7])
    assert [] == list(window.begun)


def test_offsets_finished_in_the_metadata_are_skipped_and_others_are_read() -> None:
    window = OffsetTracker(FIRST, OffsetsAbove((Interval(9, 11),), (12,)))

    assert [7, 8, 11, 12] == read(window, *range(7, 13))


def test_metadata_beyond_the_reader_is_preserved() -> None:
    before = OffsetsAbove((Interval(9, 11), Interval(14, 20)), (12,))
    window = OffsetTracker(FIRST, before)
    read(window, 7, 8, 9)

    assert (7, before) == (window.low, window.above())


def test_watermark_passes_offsets_finished_in_the_metadata() -> None:
    window = OffsetTracker(FIRST, OffsetsAbove((Interval(8, 11),)))
    read(window, 7)
    window.finish([7])

    assert (11, OffsetsAbove()) == (window.low, window.above())


def test_offsets_finished_in_redis_are_skipped_and_added_to_the_metadata() -> None:
    window = OffsetTracker(FIRST, OffsetsAbove((Interval(9, 10),)))
    window.also_finished([Interval(0, FIRST + 1), Interval(10, 11), Interval(14, 15)])

    assert [8, 11, 12, 13] == read(window, *range(FIRST, 15))
    assert 8 == window.low
    assert {9, 10, 14} == offsets_of(window.required()) == offsets_of(window.above())


def test_begun_offset_that_ended_according_to_redis_is_finished_and_no_other_offset_is() -> None:
    window = OffsetTracker(FIRST, OffsetsAbove((Interval(9, 10),), (7, 10, 12)))
    window.also_ended([Interval(0, FIRST + 2), Interval(10, 11), Interval(14, 15)])

    assert [12] == list(window.begun)
    assert [8, 11, 12, 13, 14] == read(window, *range(FIRST, 15))
    assert 8 == window.low
    assert OffsetsAbove((Interval(9, 11),), (12,)) == window.required()


def test_started_event_whose_record_is_gone_is_finished() -> None:
    window = OffsetTracker(FIRST, OffsetsAbove((), (8,)))
    window.cover(FIRST, 20, [])

    assert (20, OffsetsAbove()) == (window.low, window.above())


def test_deferred_offset_has_not_begun() -> None:
    window = OffsetTracker(FIRST)
    read(window, 7)
    window.begin([7])
    window.put_off(7)

    assert (7, OffsetsAbove()) == (window.low, window.above())


def test_required_metadata_has_started_offsets_and_those_of_the_former_metadata() -> None:
    window = OffsetTracker(FIRST, OffsetsAbove((Interval(14, 16),)))
    read(window, 7, 8, 9, 10, 14)
    for offset in (8, 10):
        window.begin([offset])
    for offset in (8, 9):
        window.finish([offset])

    assert OffsetsAbove((Interval(8, 9), Interval(14, 16)), (10,)) == window.required()


# Comparison with a table of offsets, with crashes


class Consumer:
    """Reads a log, begins and finishes events, commits, crashes; it records its actions by offset."""

    def __init__(self, log: set[int], end: int, draw: Callable[[int], int], *, must: bool) -> None:
        self.log, self.end, self.draw, self.must = sorted(log), end, draw, must
        self.window = OffsetTracker(0)
        self.committed = (0, encoded(0, OffsetMetadata("id", OffsetsAbove())))
        self.begins: list[int] = []
        self.finished: set[int] = set()
        self.running: set[int] = set()
        self.waiting: set[int] = set()

    def metadata(self) -> OffsetMetadata:
        return OffsetMetadata("id", self.window.required() if self.must else self.window.above())

    def read(self) -> None:
        begin = self.window.end
        end = min(self.end, begin + 1 + self.draw(4))
        self.waiting |= set(self.window.cover(begin, end, [offset for offset in self.log if begin <= offset < end]))

    def begin(self) -> None:
        for offset in sorted(self.waiting - set(self.window.begun))[: 1 + self.draw(3)]:
            self.waiting.discard(offset)
            assert self.window.begin([offset])
            self.commit()
            self.begins.append(offset)
            self.running.add(offset)

    def finish(self) -> None:
        # An event that an earlier claim had begun is never begun again: it becomes a dead letter.
        at_hand = sorted(self.running | (self.waiting & set(self.window.begun)))
        if at_hand:
            offset = at_hand[self.draw(len(at_hand) - 1)]
            assert self.window.finish([offset])
            self.running.discard(offset)
            self.waiting.discard(offset)
            self.finished.add(offset)

    def commit(self) -> None:
        low = self.window.low
        assert low >= self.committed[0]
        assert set(range(low)) & set(self.log) <= self.finished
        assert offsets_of(self.window.above()) & set(self.log) <= self.finished
        self.committed = (low, encoded(low, self.metadata()))

    def crash(self) -> None:
        low, text = self.committed
        metadata = decoded(text, low, self.end)
        assert metadata is not None
        self.window = OffsetTracker(low, metadata.above)
        self.running.clear()
        self.waiting.clear()


@pytest.mark.parametrize("must", [False, True], ids=["every offset is recorded", "required offsets are recorded"])
@given(data=st.data(), log=st.sets(st.integers(0, 14)), schedule=st.lists(st.sampled_from("rrbbfffcx"), max_size=60))
def test_events_are_neither_repeated_nor_skipped_in_any_schedule(
    data: st.DataObject, log: set[int], schedule: list[str], must: bool
) -> None:
    consumer = Consumer(log, 15, lambda most: data.draw(st.integers(0, most)), must=must)
    steps = {"r": consumer.read, "b": consumer.begin, "f": consumer.finish, "c": consumer.commit, "x": consumer.crash}
    for step in [*schedule, *"xrrrrrrrrrrrrrrr", *"bf" * 30, "c"]:
        steps[step]()

    assert log == consumer.finished
    assert len(set(consumer.begins)) == len(consumer.begins)
    assert 15 == consumer.committed[0]


@given(st.data(), st.sets(st.integers(0, 60), min_size=1))
def test_required_metadata_never_grows_when_events_end(data: st.DataObject, begun: set[int]) -> None:
    window = OffsetTracker(0)
    read(window, *range(61))
    window.begin(begun)
    sizes = [len(encoded(window.low, OffsetMetadata("", window.required())))]
    for offset in data.draw(st.permutations(range(61))):
        window.finish([offset])
        sizes.append(len(encoded(window.low, OffsetMetadata("", window.required()))))

    assert sorted(sizes, reverse=True) == sizes


@given(st.sets(st.integers(1, 2_000), max_size=900), st.integers(30, 400))
def test_truncated_metadata_omits_the_highest_offsets_and_invents_nothing(finished: set[int], max_bytes: int) -> None:
    window = OffsetTracker(0)
    read(window, *range(2_001))
    window.finish(finished)
    whole = OffsetMetadata("", window.above())
    text = fitted(0, whole, max_bytes)
    found = decoded(text, 0, 2_001)

    assert found is not None
    assert len(text) <= max_bytes
    assert whole.above.finished[: len(found.above.finished)] == found.above.finished
    assert fits(0, whole, max_bytes) == (whole == found)
