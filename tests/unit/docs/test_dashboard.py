"""The dashboard queries existing metrics and labels, and describes the normal state of each panel."""

from __future__ import annotations

import json
import re
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest

from streams_app.health.metric_table import METRICS
from tests.unit.docs.promql import unknown_labels
from tests.unit.docs.test_reference import columns

ROOT = Path(__file__).parents[3]
DASHBOARD = json.loads((ROOT / "deploy" / "grafana" / "dashboard.json").read_text("utf-8"))
PANELS = [panel for panel in DASHBOARD["panels"] if panel["type"] != "row"]
VARIABLES = {variable["name"] for variable in DASHBOARD["templating"]["list"]}


def title_of(panel: dict[str, Any]) -> str:
    return str(panel["title"])


def cells_of(panel: dict[str, Any]) -> set[tuple[int, int]]:
    place = panel["gridPos"]
    return {(place["x"] + right, place["y"] + down) for right in range(place["w"]) for down in range(place["h"])}


@pytest.mark.parametrize("panel", PANELS, ids=title_of)
def test_panel_queries_metrics_by_existing_labels(panel: dict[str, Any]) -> None:
    unknown = [unknown_labels(target["expr"]) for target in panel["targets"]]

    assert all(unknown)
    assert [{metric: set() for metric in asked} for asked in unknown] == unknown


@pytest.mark.parametrize("panel", PANELS, ids=title_of)
def test_panel_uses_variables_that_the_dashboard_declares(panel: dict[str, Any]) -> None:
    used = {name for target in panel["targets"] for name in re.findall(r"\$(\w+)", target["expr"])}

    assert used <= VARIABLES | {"__rate_interval"}


@pytest.mark.parametrize("panel", PANELS, ids=title_of)
def test_panel_states_the_normal_value(panel: dict[str, Any]) -> None:
    assert re.match(r"Normal: \S.*\.$", panel["description"])


@pytest.mark.parametrize(
    "variable", [one for one in DASHBOARD["templating"]["list"] if one["type"] == "query"], ids=lambda one: one["name"]
)
def test_variable_takes_the_values_of_an_existing_label(variable: dict[str, Any]) -> None:
    asked = re.fullmatch(r"label_values\((\w+), (\w+)\)", variable["query"])
    assert asked
    metric, label = asked.groups()

    assert {metric: set()} == unknown_labels(f"sum by ({label}) ({metric})")


def test_first_row_has_a_panel_for_each_of_the_five_stuck_conditions() -> None:
    documented = columns(ROOT / "docs" / "reference" / "subscribers.md", "## Monitoring", 0)
    row, *rest = DASHBOARD["panels"]

    assert "row" == row["type"]
    assert [name.strip().lower() for name in documented] == [title_of(panel).lower() for panel in rest[: len(documented)]]


def test_panels_have_unique_ids_and_positions() -> None:
    panels = DASHBOARD["panels"]

    assert len(panels) == len({panel["id"] for panel in panels})
    assert not [(title_of(one), title_of(other)) for one, other in combinations(panels, 2) if cells_of(one) & cells_of(other)]


@pytest.mark.parametrize("name", [one.name for one in METRICS if one.name.startswith("streams_app_open_transaction_")])
def test_records_hidden_by_transactions_have_a_panel(name: str) -> None:
    assert [title_of(panel) for panel in PANELS if any(name in target["expr"] for target in panel["targets"])]
