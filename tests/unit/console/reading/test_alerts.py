"""Alerts that hold now are those of ``deploy/alerts.yml``, by the same names and severities."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import yaml

from streams_app.console.reading.alerts import RULES, Facts, alerts_of
from streams_app.console.reading.history import EVERY_MS, History
from streams_app.console.reading.samples import Samples

ROOT = Path(__file__).parents[4]
NOW = 1_700_000_000_000


def holding(values: Mapping[tuple[str, str], list[float]], label: str = "fold") -> list[tuple[str, str, str]]:
    """Return the alerts after metrics had some values, the last one now: (name, value of the label) → values."""
    history = History()
    length = max(map(len, values.values()))
    samples = Samples({})
    for at in range(length):
        samples = Samples({(name, ((label, about),)): column[at] for (name, about), column in values.items() if at < len(column)})
        history.add("w", NOW - (length - 1 - at) * EVERY_MS, samples)
    return [(alert.rule, alert.severity, alert.about) for alert in alerts_of(Facts(history, [samples], NOW))]


def test_rules_have_the_names_and_severities_of_the_file() -> None:
    groups = yaml.safe_load((ROOT / "deploy" / "alerts.yml").read_text("utf-8"))["groups"]
    severities = {rule["alert"]: rule["labels"]["severity"] for group in groups for rule in group["rules"]}

    assert {rule.name: rule.severity for rule in RULES}.items() <= severities.items()


def test_fold_stands_still_if_events_wait_and_none_was_folded_for_three_minutes() -> None:
    waiting, folded = [5.0] * 40, [9.0] * 40

    assert [("FoldStandsStill", "critical", "f")] == holding({("lag_events", "f"): waiting, ("events_folded_total", "f"): folded})
    assert [] == holding({("lag_events", "f"): waiting, ("events_folded_total", "f"): [*folded[:-1], 10.0]})
    assert [] == holding({("lag_events", "f"): [*waiting[:-1], 0.0], ("events_folded_total", "f"): folded})
    assert [] == holding({("lag_events", "f"): waiting[:20], ("events_folded_total", "f"): folded[:20]})


def test_gauge_above_its_limit_is_an_alert() -> None:
    assert [("FoldOverdue", "critical", "f")] == holding({("oldest_overdue_seconds", "f"): [61.0]})
    assert [] == holding({("oldest_overdue_seconds", "f"): [60.0]})


def test_counter_that_has_grown_is_an_alert() -> None:
    assert [("KnownLoss", "critical", "f")] == holding({("known_loss_events_total", "f"): [0.0, 3.0]})
    assert [] == holding({("known_loss_events_total", "f"): [3.0, 3.0]})
    assert [("LogWentBack", "critical", "f")] == holding({("log_went_back_events_total", "f"): [0.0, 3.0]}, "name")
