"""The benchmark of subscribers: which of several runs it shows."""

from __future__ import annotations

from benchmarks.subscribers import in_the_middle


def test_median_run_is_chosen_by_ratio_and_lists_the_ratios_of_all_runs() -> None:
    runs = [{"events_per_second": rate, "ratio_to_base": ratio} for rate, ratio in ((300, 0.3), (100, 0.5), (200, 0.4))]

    assert {"events_per_second": 200, "ratio_to_base": 0.4, "ratio_to_base_of_all_runs": [0.3, 0.4, 0.5]} == in_the_middle(runs)


def test_runs_without_a_baseline_are_ordered_by_rate() -> None:
    runs = [{"events_per_second": rate} for rate in (9, 30, 20)]

    assert {"events_per_second": 20, "events_per_second_of_all_runs": [9, 20, 30]} == in_the_middle(runs)


def test_single_run_is_shown_unchanged() -> None:
    assert {"events_per_second": 7} == in_the_middle([{"events_per_second": 7}])
