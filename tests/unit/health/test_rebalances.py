"""Partitions and rebalances of consumer groups in the metrics."""

from __future__ import annotations

import pytest

from streams_app.health.metrics import Metrics
from streams_app.settings import Settings

GROUP = "shop"
ONE, TWO, OTHER = ("a", 0), ("a", 1), ("b", 0)


def value(metrics: Metrics, name: str, **labels: str) -> float | None:
    return metrics.registry.get_sample_value(f"streams_app_{name}", {"consumer_group": GROUP, **labels})


@pytest.fixture
def metrics() -> Metrics:
    return Metrics(Settings.model_validate({"app_id": "shop", "journals": [{"name": "j", "source": "a", "key": "@key"}]}))


@pytest.mark.parametrize(
    ("after", "change"),
    [([ONE, TWO, OTHER], "gained"), ([ONE], "lost"), ([ONE, OTHER], "moved"), ([ONE, TWO], "same"), ([], "lost")],
)
def test_rebalance_is_counted_by_what_it_changes(metrics: Metrics, after: list[tuple[str, int]], change: str) -> None:
    metrics.rebalanced(GROUP, [ONE, TWO], 1_000)
    metrics.rebalanced(GROUP, after, 5_000)
    counts = {one: value(metrics, "rebalances_total", change=one) for one in ("joined", "gained", "lost", "moved", "same")}

    assert {"joined": 1, "gained": 0, "lost": 0, "moved": 0, "same": 0} | {change: 1} == counts
    assert [1, 5] == [value(metrics, "last_rebalance_timestamp_seconds", change=one) for one in ("joined", change)]


def test_partitions_are_counted_by_topic_and_a_lost_topic_has_none(metrics: Metrics) -> None:
    metrics.rebalanced(GROUP, [ONE, TWO, OTHER], 0)
    metrics.rebalanced(GROUP, [OTHER], 0)

    assert [0, 1] == [value(metrics, "assigned_partitions", topic=topic) for topic in ("a", "b")]
