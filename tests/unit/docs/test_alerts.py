"""The rules for Prometheus use existing metrics and labels, and agree with their documentation."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.unit.docs.promql import unknown_labels
from tests.unit.docs.test_reference import columns, quoted

ROOT = Path(__file__).parents[3]
RULES = (ROOT / "deploy" / "alerts.yml").read_text("utf-8")
ALERTS = [part.partition("\n\n  ")[0] for part in re.split(r"^      - alert: ", RULES, flags=re.MULTILINE)[1:]]


def name_of(alert: str) -> str:
    return alert.splitlines()[0]


@pytest.mark.parametrize("alert", ALERTS, ids=name_of)
def test_alert_queries_metrics_by_existing_labels(alert: str) -> None:
    unknown = unknown_labels(alert)

    assert unknown
    assert {metric: set() for metric in unknown} == unknown


@pytest.mark.parametrize("alert", ALERTS, ids=name_of)
def test_alert_states_the_problem_and_the_action(alert: str) -> None:
    assert 1 == len(re.findall(r'^          summary: ".+\."$', alert, re.MULTILINE))
    assert 1 == len(re.findall(r'^          runbook: ".+\."$', alert, re.MULTILINE))


def test_each_stuck_condition_has_an_alert_and_states_the_normal_value() -> None:
    page = ROOT / "docs" / "reference" / "subscribers.md"
    stuck = quoted(columns(page, "## Monitoring", 3))

    assert set(stuck) == {name_of(alert) for alert in ALERTS if "streams-app-subscribers" in RULES.partition(alert)[0]}
    assert all(cell.strip() for cell in columns(page, "## Monitoring", 2))


def test_each_alert_has_a_documentation_row_with_meaning_and_action() -> None:
    page = ROOT / "docs" / "reference" / "alerts.md"

    assert [name_of(alert) for alert in ALERTS] == quoted(columns(page, "# Alerts", 0))
    assert all(cell.strip() for column in (1, 2) for cell in columns(page, "# Alerts", column))


def test_aggregation_labels_are_checked_against_the_aggregated_metric() -> None:
    expression = 'sum by (fold) (rate(streams_app_lag_events[1m])) or max by (store) (streams_app_up{component=~"x"})'

    assert {"streams_app_lag_events": set(), "streams_app_up": {"store"}} == unknown_labels(expression)


def test_labels_of_an_outer_aggregation_are_not_required_of_the_matched_metric() -> None:
    expression = "sum by (fold) (streams_app_lag_events and on (job) max by (store) (streams_app_up))"

    assert {"streams_app_lag_events": set(), "streams_app_up": {"store"}} == unknown_labels(expression)
