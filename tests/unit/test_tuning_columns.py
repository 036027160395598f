"""What is kept of events, and what becomes of those that do not fit."""

from __future__ import annotations

from collections.abc import Iterable
from random import Random

import pytest

from streams_app.folding.core.closing import Bounds
from streams_app.folding.core.event import Event
from streams_app.tuning.columns import Columns
from streams_app.tuning.name_sets import NameSets
from streams_app.tuning.points import Curve
from streams_app.tuning.replay import curve_of

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


def filled(events: Iterable[Event], capacity: int, **options: int) -> Columns:
    columns = Columns(now_ms=NOW_MS, capacity=capacity, **options)
    columns.add(0, events)
    return columns


def replayed(events: Iterable[Event], capacity: int) -> Curve:
    return curve_of("f", filled(events, capacity), HOLD, [100, 1_000, 3_000_000])


def test_what_fits_is_exact_and_has_no_sample() -> None:
    assert None is replayed(bursts(100), 5_000).sample


def test_what_does_not_fit_is_a_sample_of_groups_whose_estimates_are_within_three_errors() -> None:
    events = bursts(6_000)
    exact, found = replayed(events, len(events)), replayed(events, len(events) // 3)

    assert found.sample is not None
    assert found.sample.ratio_error is not None
    assert (0.25, 0.001 < found.sample.ratio_error < 0.03) == (found.sample.share, True)
    for one, other in zip(exact.points, found.points, strict=True):
        assert abs(one.ratio - other.ratio) < 4 * found.sample.ratio_error
    assert found.points[-1].peak_open_groups == pytest.approx(exact.points[-1].peak_open_groups, rel=0.3)
    assert found.groups == pytest.approx(exact.groups, rel=0.1)


def test_of_a_sample_how_many_events_there_are_and_their_range_are_exact() -> None:
    events = bursts(3_000)
    exact, found = replayed(events, len(events)), replayed(events, 2_000)

    assert found.sample is not None
    assert (exact.events, exact.from_ms, exact.to_ms) == (found.events, found.from_ms, found.to_ms)


def test_of_a_group_in_the_sample_every_event_is_there() -> None:
    events = bursts(3_000)
    columns = filled(events, 10_000)
    columns.sort()
    kept = [member for _, _, member, _ in events if hash(member) % 2**64 < 2 ** (64 - columns.halvings)]

    assert (True, len(kept), len(set(kept))) == (columns.halvings > 0, len(columns.scores), columns.firsts.sum())


def test_any_number_of_events_takes_the_same_room() -> None:
    columns = filled(bursts(6_000), 2_000)

    assert (True, 2_000) == (columns.halvings >= 5, len(columns._scores))


def test_where_one_group_has_nearly_all_events_the_beginning_of_the_range_is_judged() -> None:
    events: list[Event] = [(at, 10 * at, b"sone", {}) for at in range(10_000)]
    curve = replayed(events, 4_000)

    assert curve.sample is not None
    assert (None, 10_000, 1, 99_990) == (curve.sample.ratio_error, curve.events, curve.groups, curve.to_ms)
    assert 0.1 < curve.sample.share < 0.5
    assert 0.999 < curve.points[0].ratio < 1


def test_sorted_columns_take_no_more_events() -> None:
    columns = filled(bursts(3), 1_000)
    columns.sort()

    with pytest.raises(RuntimeError, match="sorted"):
        columns.add(0, bursts(1))


def test_the_median_and_the_longest_gap_are_those_within_groups() -> None:
    stamps = [(0, b"sa"), (1, b"sb"), (5, b"sa"), (8, b"sb"), (100, b"sa"), (1_000, b"sc")]

    assert (7, 95) == filled([(at, stamp, member, {}) for at, (stamp, member) in enumerate(stamps)], 10).gaps()


def test_groups_with_one_event_each_have_no_gaps() -> None:
    assert None is filled([(at, at, b"s%d" % at, {}) for at in range(9)], 10).gaps()


def test_the_mean_length_of_keys_is_that_of_groups_not_of_events() -> None:
    events: list[Event] = [*((at, at, b"s1", {}) for at in range(98)), (98, 98, b"s1234567", {})]

    assert 5 == filled(events, 10_000).key_bytes


def test_sets_of_names_that_come_in_different_forms_are_kept_once_each() -> None:
    sets = NameSets(1_000)

    assert [0, 1, 0, 1] == sets.numbers([{"a": 1, "b": 2}, {"c": 0}, {"a": 3, "b": 4}, {"c": None}])
    assert {hash("a"), hash("b")} == set(sets.names_of(0))
    assert [2, 1] == sets.sizes().tolist()


def test_names_that_do_not_fit_are_counted_where_the_bound_is_far_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("streams_app.tuning.name_sets.MOST_BYTES", 5_000)
    columns = filled([(at, at, b"s%d" % (at % 100), {f"n{at}": 0, "m": 0}) for at in range(2_000)], 5_000, max_changed=1_000)
    curve = curve_of("f", columns, Bounds(1, 10**9, max_changed=1_000, sessions=True), [1_000])

    assert (True, None, 100) == (columns.sets.are_counted, curve.sample, curve.points[0].records)


def test_names_that_do_not_fit_make_a_sample_where_the_bound_is_near(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("streams_app.tuning.name_sets.MOST_BYTES", 14_000)
    columns = filled([(at, at, b"s%d" % (at % 500), {f"n{at}": 0, "m": 0}) for at in range(2_000)], 5_000, max_changed=3)
    curve = curve_of("f", columns, Bounds(1, 10**9, max_changed=3, sessions=True), [10_000])

    assert curve.sample is not None
    assert 2 * curve.groups == curve.points[0].records
