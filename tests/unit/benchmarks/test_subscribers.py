"""Which run of several a benchmark of subscribers shows."""

from __future__ import annotations

from benchmarks.subscribers import in_the_middle


def test_the_run_in_the_middle_is_shown_by_its_ratio_with_the_ratios_of_all() -> None:
    runs = [{"events_per_second": rate, "ratio_to_base": ratio} for rate, ratio in ((300, 0.3), (100, 0.5), (200, 0.4))]

    assert {"events_per_second": 200, "ratio_to_base": 0.4, "ratio_to_base_of_all_runs": [0.3, 0.4, 0.5]} == in_the_middle(runs)


def test_what_has_no_base_is_ordered_by_its_pace() -> None:
    runs = [{"events_per_second": rate} for rate in (9, 30, 20)]

    assert {"events_per_second": 20, "events_per_second_of_all_runs": [9, 20, 30]} == in_the_middle(runs)


def test_one_run_is_shown_as_it_is() -> None:
    assert {"events_per_second": 7} == in_the_middle([{"events_per_second": 7}])
