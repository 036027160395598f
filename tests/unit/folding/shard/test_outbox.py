"""The owner's copy of the outbox: which records are sent, and when an entry of several records leaves Redis."""

from __future__ import annotations

from itertools import chain
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streams_app.folding.core.record import SealedGroup
from streams_app.folding.shard.outbox import Outbox, ranges_of
from streams_app.folding.store.replies import OutboxEntry


def record(first: int, last: int | None = None, group: bytes = b"s") -> SealedGroup:
    return SealedGroup(group, first, first if last is None else last, 1, 0, 0, "quiet", 0, 1, {})


def entry(*offsets: int) -> OutboxEntry:
    """Return an entry with a record of a group of its own at each of these offsets."""
    return OutboxEntry([record(at, group=b"s%d" % at) for at in offsets], min(offsets))


def outbox_with(*entries: OutboxEntry) -> Outbox:
    outbox = Outbox()
    for one in entries:
        outbox.add(one)
    return outbox


def offsets_in(outbox: Outbox) -> list[int]:
    return [one.first_offset for one in outbox]


def finish(outbox: Outbox, sent: list[SealedGroup]) -> list[tuple[int, int, int]]:
    """Remove acknowledged records; return the ranges of entries that Redis has to remove."""
    ranges = outbox.ranges(outbox.finished(sent))
    outbox.remove(sent)
    return ranges


def test_whole_blocks_are_sent_together_and_only_a_larger_one_is_split() -> None:
    outbox = outbox_with(entry(0, 1), entry(2, 3, 4), entry(5))

    assert [[0], [0, 1], [0, 1], [0, 1, 2, 3, 4], [0, 1, 2, 3, 4, 5]] == [
        [one.first_offset for one in outbox.first(most)] for most in (1, 2, 4, 5, 9)
    ]


def test_entry_leaves_redis_with_the_last_of_its_records() -> None:
    outbox = outbox_with(entry(0, 4), entry(2, 3))
    zero, four, two, three = outbox
    found = [(finish(outbox, sent), len(outbox), outbox.entries) for sent in ([zero, two], [three], [four])]

    assert [([], 2, 2), ([(2, 2, 1)], 1, 1), ([(0, 0, 1)], 0, 0)] == found


def test_records_with_one_first_offset_but_other_last_offsets_are_different_records() -> None:
    outbox = outbox_with(OutboxEntry([record(0, 5)], 0), OutboxEntry([record(0, 7), record(8)], 0))
    short, long, other = outbox
    outbox.is_exact = False
    finish(outbox, [short, other])

    assert [long] == list(outbox)


def test_entries_with_one_first_offset_are_removed_together() -> None:
    """Scripts that failed half-way leave several; Redis removes entries by their first offsets."""
    outbox = Outbox()
    outbox.load([entry(0, 1, 2), entry(0, 1), entry(5)])
    *others, last = outbox
    entries = outbox.entries

    assert ([], [(0, 5, 3)]) == (finish(outbox, [last]), finish(outbox, others))
    assert (3, 0) == (entries, outbox.entries)


@pytest.mark.parametrize(
    "entries",
    [
        pytest.param(
            [OutboxEntry([record(1), record(9, group=b"z")], 1), OutboxEntry([record(4, group=b"z")], 4)], id="later first"
        ),
        pytest.param([OutboxEntry([record(4, group=b"z"), record(1, group=b"z")], 1)], id="one entry"),
    ],
)
def test_records_of_a_group_are_sent_in_the_order_of_their_events_after_the_outbox_was_read(entries: list[OutboxEntry]) -> None:
    outbox = Outbox()
    outbox.load(entries)

    assert sorted(offsets_in(outbox)) == offsets_in(outbox)


def test_entries_that_were_read_are_separate_blocks_if_no_group_is_in_the_wrong_order() -> None:
    outbox = Outbox()
    outbox.load([entry(0, 9), entry(1, 2)])
    sent = [one for one in outbox if one.first_offset in (1, 2)]

    assert [(1, 1, 1)] == finish(outbox, sent)


layouts = st.lists(st.lists(st.integers(0, 12), min_size=1, max_size=4, unique=True), max_size=5)


@given(layouts, st.booleans(), st.booleans(), st.data())
def test_entry_is_removed_once_all_its_records_are_acknowledged_and_never_before(
    layout: list[list[int]], is_read: bool, is_exact: bool, data: Any
) -> None:
    """Entries may have records in common. Redis is a list of entries; a range with another number of entries is not removed."""
    entries = sorted((entry(*sorted(offsets)) for offsets in layout), key=lambda one: one.first_offset)
    stored = list(entries)
    outbox = Outbox()
    if is_read:
        outbox.load(entries)
    else:
        outbox = outbox_with(*entries)
    outbox.is_exact = is_exact
    acknowledged: set[int] = set()
    for _ in range(50):
        if not len(outbox):
            break
        asked = outbox.first(data.draw(st.integers(1, 6)))
        sent = [one for one in asked if data.draw(st.booleans())] or asked
        acknowledged |= {one.first_offset for one in sent}
        for low, high, number in finish(outbox, sent):
            inside = [one for one in stored if low <= one.first_offset <= high]
            if len(inside) == number:
                stored = [one for one in stored if one not in inside]
                assert acknowledged.issuperset(chain.from_iterable(map(offsets_of, inside)))
        if outbox.is_exact and is_read:
            assert len(stored) == outbox.entries

    assert not len(outbox)
    assert not is_read or [] == stored


def offsets_of(one: OutboxEntry) -> list[int]:
    return [found.first_offset for found in one.records]


@given(st.sets(st.integers(0, 30)), st.sets(st.integers(0, 30)))
def test_acknowledged_ranges_cover_what_was_sent_and_nothing_pending(sent: set[int], others: set[int]) -> None:
    entries = sent | others
    ranges = ranges_of(sent, entries)
    covered = [at for low, high, count in ranges for at in entries if low <= at <= high]

    assert sorted(sent) == sorted(covered)
    assert others - sent or len(ranges) <= 1
    assert [count for *_, count in ranges] == [sum(low <= at <= high for at in entries) for low, high, _ in ranges]
