"""What is stored of events, and how events that do not fit are handled."""

from __future__ import annotations

import tracemalloc
from collections.abc import Iterable
from random import Random
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streams_app.folding.core.closing import Bounds
from streams_app.folding.core.event import PlainEvent as Event
from streams_app.tuning.columns import Columns, order_of
from streams_app.tuning.name_sets import NameSets
from streams_app.tuning.points import Curve
from streams_app.tuning.replay import curve_of
from streams_app.tuning.splitting import next_starts

NOW_MS = 10**12
HOLD = Bounds(1, 10**9, sessions=True)


def bursts(groups: int, seed: int = 1) -> list[Event]:
    """Groups with one to five bursts of one to nine events."""
    random = Random(seed)
    events = []
    for group in range(groups):
        for _ in range(random.randint(1, 5)):
            begin_ms = random.randrange(10_000_000)
            events += [(begin_ms + random.randrange(2_000), b"sgroup_%d" % group) for _ in range(random.randint(1, 9))]
    return [(at, stamp, member, {"n": None}) for at, (stamp, member) in enumerate(sorted(events))]


def filled(events: Iterable[Event], capacity: int, **options: Any) -> Columns:
    columns = Columns(now_ms=NOW_MS, capacity=capacity, **options)
    columns.add(0, events)
    return columns


def replayed(events: Iterable[Event], capacity: int) -> Curve:
    return curve_of("f", filled(events, capacity), HOLD, [100, 1_000, 3_000_000])


def test_columns_within_the_bound_are_exact_without_a_sample() -> None:
    assert None is replayed(bursts(100), 5_000).sample


def test_columns_beyond_the_bound_are_a_sample_of_groups_with_estimates_within_three_errors() -> None:
    events = bursts(6_000)
    exact, found = replayed(events, len(events)), replayed(events, len(events) // 3)

    assert found.sample is not None
    assert found.sample.ratio_error is not None
    assert (0.25, 0.001 < found.sample.ratio_error < 0.03) == (found.sample.share, True)
    for one, other in zip(exact.points, found.points, strict=True):
        assert abs(one.ratio - other.ratio) < 4 * found.sample.ratio_error
    assert found.points[-1].peak_open_groups == pytest.approx(exact.points[-1].peak_open_groups, rel=0.3)
    assert found.groups == pytest.approx(exact.groups, rel=0.1)


def test_number_and_range_of_events_are_exact_in_a_sample() -> None:
    events = bursts(3_000)
    exact, found = replayed(events, len(events)), replayed(events, 2_000)

    assert found.sample is not None
    assert (exact.events, exact.from_ms, exact.to_ms) == (found.events, found.from_ms, found.to_ms)


def test_every_event_of_a_sampled_group_is_present() -> None:
    events = bursts(3_000)
    columns = filled(events, 10_000)
    columns.sort()
    kept = [member for _, _, member, _ in events if hash(member) % 2**64 < 2 ** (64 - columns.halvings)]

    assert (True, len(kept), len(set(kept))) == (columns.halvings > 0, len(columns.after_ms), columns.firsts.sum())


def test_memory_is_constant_for_any_number_of_events() -> None:
    columns = filled(bursts(6_000), 2_000)

    assert (True, 2_000) == (columns.halvings >= 5, len(columns._scores))


def test_beginning_of_the_range_is_judged_if_one_group_has_nearly_all_events() -> None:
    events: list[Event] = [(at, 10 * at, b"sone", {}) for at in range(10_000)]
    curve = replayed(events, 4_000)

    assert curve.sample is not None
    assert (None, 10_000, 1, 99_990) == (curve.sample.ratio_error, curve.events, curve.groups, curve.to_ms)
    assert 0.1 < curve.sample.share < 0.5
    assert 0.999 < curve.points[0].ratio < 1


def test_sorted_columns_accept_no_more_events() -> None:
    columns = filled(bursts(3), 1_000)
    columns.sort()

    with pytest.raises(RuntimeError, match="sorted"):
        columns.add(0, bursts(1))


def test_median_and_longest_gap_are_within_groups() -> None:
    stamps = [(0, b"sa"), (1, b"sb"), (5, b"sa"), (8, b"sb"), (100, b"sa"), (1_000, b"sc")]

    assert (7, 95) == filled([(at, stamp, member, {}) for at, (stamp, member) in enumerate(stamps)], 10).gaps()


def test_groups_with_one_event_each_have_no_gaps() -> None:
    assert None is filled([(at, at, b"s%d" % at, {}) for at in range(9)], 10).gaps()


def test_mean_key_length_is_that_of_groups_and_not_of_events() -> None:
    events: list[Event] = [*((at, at, b"s1", {}) for at in range(98)), (98, 98, b"s1234567", {})]

    assert 5 == filled(events, 10_000).key_bytes


def test_mean_length_of_names_is_in_bytes() -> None:
    sets = NameSets(1_000)
    sets.numbers([{"ä": 1, "abcd": 1}])

    assert 3.0 == sets.name_bytes


def test_equal_sets_of_names_in_different_forms_are_stored_once() -> None:
    sets = NameSets(1_000)

    assert [0, 1, 0, 1] == sets.numbers([{"a": 1, "b": 2}, {"c": 0}, {"a": 3, "b": 4}, {"c": None}])
    assert {hash("a"), hash("b")} == set(sets.names_of(0))
    assert [2, 1] == sets.sizes().tolist()


@pytest.mark.parametrize("max_changed", [3, 1_000])
def test_names_beyond_the_memory_bound_make_a_sample(max_changed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("streams_app.tuning.name_sets.MAX_BYTES", 14_000)
    columns = filled([(at, at, b"s%d" % (at % 500), {f"n{at}": 0, "m": 0}) for at in range(2_000)], 5_000, max_changed=max_changed)
    curve = curve_of("f", columns, Bounds(1, 10**9, max_changed=max_changed, sessions=True), [10_000])

    assert curve.sample is not None
    assert (2 if max_changed == 3 else 1) * curve.groups == curve.points[0].records


def test_repeated_names_are_stored_once_and_drop_no_group(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("streams_app.tuning.name_sets.MAX_BYTES", 14_000)
    monkeypatch.setattr("streams_app.tuning.name_sets.MAX_CACHED_BYTES", 4_000)
    # 200 sets of two names take 5 600 bytes.
    events: list[Event] = [(at, at, b"s%d" % (at % 500), {f"n{at % 200}": 0, "m": 0}) for at in range(20_000)]
    columns = filled(events, 25_000, max_changed=3)

    assert (0, True) == (columns.halvings, len(columns.sets) < 500)
    columns.sort()
    names = [set(columns.sets.names_of(number)) for number in columns.numbers.tolist()]
    assert {frozenset(each) for each in names} == {frozenset({hash(f"n{at}"), hash("m")}) for at in range(200)}


def test_names_of_merely_counted_events_are_not_stored() -> None:
    columns = filled([(at, at, b"s%d" % (at % 9), {f"n{at}": 0}) for at in range(10_000)], 1_000)

    assert columns.is_cut
    assert len(columns.sets) <= 2_000


def test_name_sets_are_deduplicated_within_a_bounded_table() -> None:
    sets = NameSets(1_000)
    for number in range(4_000):
        sets.numbers([{f"{number}_{name}": None for name in range(100)}])

    assert sum(map(len, sets._numbers)) < 16_000_000 / 70


def test_names_of_a_very_large_group_are_loaded_for_one_window_at_a_time() -> None:
    columns = filled([(at, at, b"sa", {f"n{at % 50}": None, "m": None}) for at in range(50_000)], 60_000, max_changed=20)
    columns.sort()
    tracemalloc.start()
    found = next_starts(columns, Bounds(1, 10**9, max_changed=20, sessions=True))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()

    assert found is not None
    assert [19, 20, 21] == found[:3].tolist()
    assert peak < 3_000_000


def test_error_of_a_sample_is_independent_of_the_block_size(monkeypatch: pytest.MonkeyPatch) -> None:
    events = bursts(1_000)
    one = replayed(events, len(events) // 3)
    monkeypatch.setattr("streams_app.tuning.replay._BLOCK", 7)

    assert one == replayed(events, len(events) // 3)


PREFIXES = st.sampled_from([0, 1 << 24, 5 << 24, 1 << 62])


@given(st.lists(st.builds(lambda prefix, rest: prefix | rest, PREFIXES, st.integers(0, 2))), st.sampled_from([2, 3, 1 << 19]))
def test_groups_are_distinguished_by_all_bits_of_their_hashes_and_keep_their_event_order(hashes: list[int], block: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("streams_app.tuning.columns._BLOCK", block)
        order, firsts = order_of(np.array(hashes, np.uint64), 0)
    by_hash = sorted(range(len(hashes)), key=lambda at: (hashes[at], at))

    assert by_hash == order.tolist()
    assert [number == 0 or hashes[at] != hashes[by_hash[number - 1]] for number, at in enumerate(by_hash)] == firsts.tolist()
