"""The rules for Prometheus speak of metrics and labels that there are, and the documentation of the rules."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from streams_app.metric_table import METRICS
from tests.unit.test_docs import columns, quoted

ROOT = Path(__file__).parents[2]
RULES = (ROOT / "deploy" / "alerts.yml").read_text("utf-8")
ALERTS = re.split(r"^      - alert: ", RULES, flags=re.MULTILINE)[1:]
LABELS = {metric.name: set(metric.labels) for metric in METRICS}


def name_of(alert: str) -> str:
    return alert.splitlines()[0]


@pytest.mark.parametrize("alert", ALERTS, ids=name_of)
def test_an_alert_asks_for_metrics_by_labels_that_they_have(alert: str) -> None:
    asked = re.findall(r"(streams_app_\w+)(?:\{([^}]*)\})?", alert)
    by = set(re.findall(r"by \((\w+)\)", alert))

    assert asked
    for metric, selected in asked:
        assert by | set(re.findall(r"(\w+)!?=", selected)) <= LABELS[metric]


@pytest.mark.parametrize("alert", ALERTS, ids=name_of)
def test_an_alert_says_what_is_the_matter_and_what_to_do(alert: str) -> None:
    assert 1 == len(re.findall(r'^          summary: ".+\."$', alert, re.MULTILINE))
    assert 1 == len(re.findall(r'^          runbook: ".+\."$', alert, re.MULTILINE))


def test_each_of_the_five_ways_to_get_stuck_has_an_alert_and_says_what_is_normal() -> None:
    page = ROOT / "docs" / "subscribers.md"

    assert [name_of(alert) for alert in ALERTS] == quoted(columns(page, "## Seeing it", 3))
    assert all(cell.strip() for cell in columns(page, "## Seeing it", 2))
