"""A chunk is sent group by group in byte order, without the groups up to the cursor."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streams_app.delivery.scripts import FencedError
from streams_app.folding.core.closing import Bounds
from streams_app.folding.core.event import FoldEvent
from streams_app.folding.core.model import OpenGroup
from streams_app.folding.shard.range_progress import ChunkProgress
from streams_app.folding.store.arguments import GroupPacker
from streams_app.folding.store.codec import INFO_FIELD
from tests.helpers.folding.scripts import BOUNDS, EPOCH, PARTITIONS, SESSIONS, chunk_of

EACH = replace(BOUNDS, max_events=1)
PACKING = GroupPacker(BOUNDS, EPOCH, PARTITIONS, keeps_values=True)
GROUPS = [b"sb", b"s\xff", b"j1", b"sa", b"s", b"sab"]
IN_ORDER = [b"j1", b"s", b"sa", b"sab", b"sb", b"s\xff"]


def progress_of(groups: Sequence[bytes], cursor: bytes = b"", asked: list[int] | None = None) -> ChunkProgress:
    """Return the progress of a range with two events for each group; ``asked`` counts how often they are read again."""
    events = [FoldEvent(at, 1_000, group, {"u": at}) for at, group in enumerate([*groups, *groups])]

    def reread() -> list[FoldEvent]:
        if asked is not None:
            asked.append(1)
        return events

    return ChunkProgress(chunk_of(events), cursor, reread)


def members(progress: ChunkProgress, most: int = 100) -> tuple[list[bytes], bool]:
    groups, is_last = progress.next_groups(most, PACKING, 0)
    return groups.values[0::2], is_last


@pytest.mark.parametrize(
    ("cursor", "most", "expected", "is_last"),
    [
        (b"", 100, IN_ORDER, True),
        (b"", 6, IN_ORDER, True),
        (b"", 5, IN_ORDER[:5], False),
        (b"s", 2, [b"sa", b"sab"], False),
        (b"sa", 100, [b"sab", b"sb", b"s\xff"], True),
        (b"sa\x00", 1, [b"sab"], False),
        (b"s\xff", 100, [], True),
        (b"z", 100, [], True),
    ],
)
def test_groups_beyond_the_cursor_are_sent_in_byte_order(cursor: bytes, most: int, expected: list[bytes], is_last: bool) -> None:
    assert (expected, is_last) == members(progress_of(GROUPS, cursor), most)


@given(st.sets(st.binary(min_size=1, max_size=3), min_size=1), st.integers(1, 5))
def test_each_group_is_sent_once_for_any_page_size(groups: set[bytes], most: int) -> None:
    progress = progress_of(sorted(groups, key=hash))
    found: list[bytes] = []
    is_last = False
    while not is_last:
        page, is_last = members(progress, most)
        found += page
        progress.advance_to(page[-1])

    assert sorted(groups) == found
    assert ([], True) == members(progress, most)


MANY_NAMES = {f"n{number}": 1 for number in range(500)}


@pytest.mark.parametrize(
    ("names", "later_ms", "expected"),
    [
        pytest.param({"u": 1}, 0, 100, id="narrow"),
        pytest.param(MANY_NAMES, 0, 16, id="many names"),
        pytest.param({"u": "v" * 25_000}, 0, 16, id="a large value"),
        pytest.param(MANY_NAMES, 20, 100, id="ended sessions of many names, which are one text each"),
        pytest.param({"u": "v" * 25_000}, 20, 16, id="ended sessions with a large value"),
    ],
)
def test_script_receives_fewer_groups_with_many_names_or_large_values(names: dict[str, Any], later_ms: int, expected: int) -> None:
    groups = [b"s%03d" % at for at in range(100)]
    events = [FoldEvent(at, 1_000, group, names) for at, group in enumerate(groups)]
    progress = ChunkProgress(chunk_of(events, SESSIONS), b"", lambda: events)
    progress.chunk.clock_ms += later_ms
    sent, is_last = progress.next_groups(1_000, GroupPacker(SESSIONS, EPOCH, PARTITIONS, keeps_values=True), 0)

    assert (expected, expected == len(groups)) == (len(sent.values) // 2, is_last)


def test_groups_that_a_script_did_not_fold_are_resent() -> None:
    progress = progress_of(GROUPS)
    members(progress, 4)
    progress.advance_to(b"s")

    assert ([b"sa", b"sab"], False) == members(progress, 2)


def test_cursor_behind_the_expected_one_means_that_redis_went_back() -> None:
    progress = progress_of(GROUPS)
    progress.advance_to(b"sab")
    progress.advance_to(b"sab")  # a reply was lost

    with pytest.raises(FencedError, match="range"):
        progress.advance_to(b"sa")
    assert b"sab" == progress.cursor


def test_requested_groups_are_split_and_their_events_read_once() -> None:
    asked: list[int] = []
    progress = progress_of(GROUPS, asked=asked)
    progress.detail({b"sa": None}, EACH)
    progress.detail({b"j1": None}, EACH)
    groups, _ = progress.next_groups(3, PACKING, 0)
    rest = dict(zip(groups.values[0::2], groups.values[1::2], strict=True))

    assert [1] == asked
    assert 4 == rest[b"s"][0]
    assert {b"j1": [2, 8], b"sa": [3, 9]} == {group: [run[0] for run in rest[group]] for group in (b"j1", b"sa")}
    assert {INFO_FIELD} == {run[2] for run in [*rest[b"j1"], *rest[b"sa"]]}


def test_group_is_split_in_the_same_way_only_once() -> None:
    progress = progress_of(GROUPS)
    progress.detail({b"sa": None, b"sb": None}, EACH)

    with pytest.raises(FencedError, match="detail"):
        progress.detail({b"sb": None}, EACH)


def test_group_sealed_meanwhile_is_split_anew() -> None:
    progress, two = progress_of(GROUPS), replace(BOUNDS, max_events=2)
    progress.detail({b"sa": OpenGroup(-1, 1_000, -1, 1_000, 1_000, events=1)}, two)
    before = rest_of(progress, b"sa", two)
    progress.detail({b"sa": None}, two)

    assert ([3, 9], [3]) == (before, rest_of(progress, b"sa", two))


def rest_of(progress: ChunkProgress, group: bytes, bounds: Bounds) -> list[int]:
    """Return the first offsets of the runs of a group that are sent."""
    groups, _ = progress.next_groups(100, GroupPacker(bounds, EPOCH, PARTITIONS, keeps_values=True), 0)
    return [run[0] for run in dict(zip(groups.values[0::2], groups.values[1::2], strict=True))[group]]
