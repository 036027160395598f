"""The last hour of metrics: gauges, rates, restarts and gaps."""

from __future__ import annotations

import math
from collections.abc import Mapping

import pytest

from streams_app.console.reading.history import EVERY_MS, MAX_SERIES, SLOTS, History
from streams_app.console.reading.samples import Labels, Samples

NOW = 1_700_000_000_000


def samples(values: Mapping[str, float], labels: Labels = (("fold", "f"),)) -> Samples:
    return Samples({(name, labels): value for name, value in values.items()})


def filled(counts: list[float | None], worker: str = "w", history: History | None = None) -> History:
    """Return a history with a counter and a gauge of each value, the last one at NOW; None: no sample."""
    found = history or History()
    for at, count in enumerate(counts):
        if count is not None:
            found.add(worker, NOW - (len(counts) - 1 - at) * EVERY_MS, samples({"done_total": count, "open": count}))
    return found


def test_rate_is_the_increase_a_second() -> None:
    history = filled([0, 50, 150])

    assert [None, 10, 20] == history.rate("done_total", NOW, {"fold": "f"}, slots=3)
    assert 15 == history.rate_now("done_total", NOW)
    assert 150 == history.increase("done_total", NOW, 3)


def test_rate_of_a_restarted_worker_counts_from_zero() -> None:
    assert [None, 10, 4] == filled([100, 150, 20]).rate("done_total", NOW, slots=3)


def test_rate_over_a_short_gap_is_spread_and_over_a_long_one_unknown() -> None:
    assert [None, 10, 10, 10] == filled([0, None, None, 150]).rate("done_total", NOW, slots=4)
    assert [None] * 9 == filled([0, *[None] * 7, 150]).rate("done_total", NOW, slots=9)


def test_rates_of_workers_are_added_and_gauges_added_or_compared() -> None:
    history = filled([0, 100], "b", filled([0, 50], "a"))

    assert [None, 30] == history.rate("done_total", NOW, slots=2)
    assert [0, 150] == history.gauge("open", NOW, slots=2)
    assert [0, 100] == history.gauge("open", NOW, how="max", slots=2)


def test_points_combine_several_samples() -> None:
    history = filled([0, 50, 100, 150])

    assert [10, 10] == history.rate("done_total", NOW, slots=4, step=2)
    assert [50, 150] == history.gauge("open", NOW, slots=4, step=2)


def test_counter_that_appears_was_zero_before() -> None:
    history = History()
    history.add("w", NOW - EVERY_MS, samples({"other": 1}))
    history.add("w", NOW, samples({"dead_total": 5}))

    assert 5 == history.increase("dead_total", NOW, 1)


def test_unknown_labels_and_names_have_no_points() -> None:
    history = filled([0, 50])

    assert [None] == history.rate("done_total", NOW, {"fold": "g"}, slots=1)
    assert history.rate_now("nothing", NOW) is None


def test_samples_older_than_an_hour_are_forgotten() -> None:
    history = filled([7])
    later = NOW + SLOTS * EVERY_MS

    assert {None} == set(history.gauge("open", later))
    assert later - (SLOTS - 1) * EVERY_MS == history.since_ms(later)


def test_series_beyond_the_maximum_are_counted_and_not_stored() -> None:
    history = History()
    history.add("w", NOW, Samples({(f"m{number}", ()): 1.0 for number in range(MAX_SERIES + 3)}))

    assert 3 == history.left_out
    assert [1.0] == history.gauge("m0", NOW, slots=1)
    assert [None] == history.gauge(f"m{MAX_SERIES + 2}", NOW, slots=1)


@pytest.mark.parametrize("value", [math.nan])
def test_gauge_that_is_not_a_number_is_unknown(value: float) -> None:
    history = History()
    history.add("w", NOW, samples({"open": value}))

    assert [None] == history.gauge("open", NOW, slots=1)


def test_workers_that_come_and_go_for_a_week_leave_no_more_than_the_last_hour() -> None:
    history, hour_ms = History(), 3_600_000
    most = 0
    for hour in range(7 * 24):
        for step in (0, SLOTS // 2):
            history.add(f"pod-{hour}", NOW + hour * hour_ms + step * EVERY_MS, samples({f"m{number}": 1.0 for number in range(40)}))
        most = max(most, sum(len(ring.rings()) for ring in history._workers.values()))

    assert 0 == history.left_out
    assert 40 <= most <= 3 * 40
    assert {None, 1.0} == set(history.gauge("m0", NOW + 7 * 24 * hour_ms - hour_ms))
