"""The curve from the counters of workers, compared with all events."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streams_app.folding.agents.window_statistics import WindowStatistics
from streams_app.folding.core.chunks import ChunkCutter
from streams_app.folding.core.closing import Bounds
from streams_app.folding.core.event import PlainEvent as Event
from streams_app.folding.core.shard_clock import RangeTime
from streams_app.health.metric_table import GAP_BUCKETS
from streams_app.health.metrics import Metrics
from streams_app.settings import Settings
from streams_app.tuning.live import LiveMetrics, combined, live_curve, live_metrics_in, live_windows, widest_interval

SETTINGS = Settings.model_validate(
    {"app_id": "a", "folds": [{"name": "f", "source": "s", "group_key": "g", "changed": "c", "quiet_period": "1m"}]}
)
NOW_MS = 1_700_000_000_000
GROUPS = [b"sa", b"sb", b"sc"]
BOUNDS_MS = [seconds * 1_000 for seconds in GAP_BUCKETS]


def page_of(events: Sequence[Event]) -> str:
    """Return the metrics page of a worker that has folded these events."""
    metrics = Metrics(SETTINGS)
    cutter = ChunkCutter(events, -1, len(events) - 1, Bounds.of(SETTINGS.folds[0]), keeps_values=False)
    WindowStatistics(SETTINGS.folds[0], metrics).folded(0, cutter.next(RangeTime(2 * NOW_MS, None), 0))
    metrics.events_folded.labels(fold="f").inc(len(events))
    return metrics.exposition().decode()


def live_metrics_of(page: str) -> LiveMetrics:
    statistics = live_metrics_in(page, "f")
    assert statistics is not None
    return statistics


def records(events: Sequence[Event], quiet_ms: int) -> int:
    """Count records, one event at a time: a group, and each longer gap, is one more record."""
    last: dict[bytes, int] = {}
    count = 0
    for _, at_ms, group, _ in events:
        count += group not in last or at_ms - last[group] > quiet_ms
        last[group] = at_ms
    return count


def log_of(steps: Sequence[tuple[int, bytes]]) -> list[Event]:
    events: list[Event] = []
    at_ms = NOW_MS
    for offset, (step_ms, group) in enumerate(steps):
        at_ms += step_ms
        events.append((offset, at_ms, group, {"n": 1}))
    return events


steps = st.tuples(
    st.one_of(st.integers(0, 100_000), st.sampled_from([1_000, 1_001, 60_000, 60_001, 90_000_000])), st.sampled_from(GROUPS)
)
logs = st.lists(steps, min_size=1, max_size=80).map(log_of)


@given(logs)
def test_curve_is_exact_at_the_bucket_bounds(events: list[Event]) -> None:
    curve = live_curve("f", live_metrics_of(page_of(events)), BOUNDS_MS, NOW_MS)

    assert [records(events, quiet_ms) for quiet_ms in BOUNDS_MS] == [point.records for point in curve.points]
    assert (len(events), len({event[2] for event in events}), None) == (curve.events, curve.groups, curve.sample)


@given(logs, st.sets(st.integers(1_000, 86_400_000), min_size=1))
def test_curve_is_within_the_reported_error_between_the_bounds(events: list[Event], windows: set[int]) -> None:
    statistics = live_metrics_of(page_of(events))
    curve = live_curve("f", statistics, windows, NOW_MS)
    doubt = widest_interval(statistics, curve)
    off = max(abs(point.records - records(events, point.quiet_ms)) for point in curve.points)

    assert off / len(events) <= (doubt[1] if doubt else 0) + 1 / len(events)  # an estimate is rounded to whole records
    assert sorted((point.records for point in curve.points), reverse=True) == [point.records for point in curve.points]


@given(logs)
def test_default_candidates_end_where_everything_is_folded(events: list[Event]) -> None:
    statistics = live_metrics_of(page_of(events))
    *before, last = live_windows(statistics, 1_000)

    assert {1_000} <= {*before, last} <= set(BOUNDS_MS)
    assert all(statistics.longer(quiet_ms) > 0 for quiet_ms in before)
    assert statistics.longer(last) == 0 or last == BOUNDS_MS[-1]


def test_configured_quiet_period_is_a_candidate() -> None:
    statistics = live_metrics_of(page_of(log_of([(0, b"sa"), (100_000, b"sa")])))

    assert 77_000 in live_windows(statistics, 77_000)


def metrics_with(begun: float, longer: float, error: float, share: float = 0.5) -> LiveMetrics:
    gaps = ((1_000.0, 0.0), (60_000.0, 100.0), (float("inf"), 100.0 + longer))
    return LiveMetrics(1_000, 50, begun, 5, gaps, share, error, NOW_MS)


def test_errors_of_several_workers_add_up_by_their_squares() -> None:
    both = combined([metrics_with(30, 70, 0.08), metrics_with(100, 200, 0.02)], 60_000)

    assert (2_000, 130, 270) == (both.events, both.begun, both.longer(60_000))
    assert ((0.08 * 100) ** 2 + (0.02 * 300) ** 2) ** 0.5 / 400 == pytest.approx(both.error)


def test_sample_is_reported_with_the_error_of_its_ratio() -> None:
    curve = live_curve("f", metrics_with(30, 70, 0.08), [60_000], NOW_MS + 5)
    assert curve.sample is not None

    assert 0.008 == pytest.approx(curve.sample.ratio_error)
    assert (0.5, 15, 500) == (curve.sample.share, curve.sample.groups, curve.sample.events)
    assert (NOW_MS, NOW_MS + 5) == (curve.from_ms, curve.to_ms)


def test_worker_without_the_fold_is_ignored() -> None:
    assert None is live_metrics_in(page_of(log_of([(0, b"sa")])), "g")


def test_workers_with_different_buckets_are_not_combined() -> None:
    one = live_metrics_of(page_of(log_of([(0, b"sa"), (5_000, b"sa")])))

    with pytest.raises(ValueError, match="they use different buckets"):
        combined([one, replace(one, gaps=one.gaps[1:])], 60_000)
