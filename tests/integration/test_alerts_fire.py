"""The rules for Prometheus, judged by `promtool`: each alert fires in its case, and not where all is well."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.servers.cache import ROOT, ServerUnavailableError

RULES = ROOT / "deploy" / "alerts.yml"
Promtool = Callable[..., str]

OLDEST = 'streams_app_subscriber_oldest_waiting_seconds{subscriber="ship"}'
RUNNING = 'streams_app_subscriber_running_events{subscriber="ship"}'
WAITING = 'streams_app_subscriber_waiting_events{subscriber="ship"}'
FINISHED = 'streams_app_subscriber_finished_total{subscriber="ship", event="order.paid", result="done"}'
DONE = 'streams_app_subscriber_attempts_total{subscriber="ship", event="order.paid", outcome="done"}'
ERROR = 'streams_app_subscriber_attempts_total{subscriber="ship", event="order.paid", outcome="error"}'
LETTERS = 'streams_app_subscriber_dead_letters_total{subscriber="ship", reason="failed"}'
PUBLISHED = 'streams_app_published_total{event="order.paid", result="acknowledged"}'
OPERATOR = 'streams_app_waiting_for{subscriber="ship", what="operator"}'
REDIS_FULL = 'streams_app_waiting_for{subscriber="ship", what="redis-memory"}'

FIRES = {
    "SubscriberBackPressure": {OLDEST: "0+30x90", RUNNING: "16x90"},
    "SubscriberErrors": {DONE: "0+90x90", ERROR: "0+10x90", LETTERS: "0x90"},
    "NothingPublished": {PUBLISHED: "0+100x10 1000x80"},
    "NothingProcessed": {WAITING: "5x90", FINISHED: "7x90"},
    "SubscriberRedisFull": {REDIS_FULL: "0x80 1x10"},
}
"""Alert → series, a value a minute, of which it fires after an hour and a half."""

SILENT = {
    "a backlog that is worked off": {OLDEST: "3000-30x90", RUNNING: "16x90"},
    "a subscriber that is idle now and then": {OLDEST: "0 1x89", RUNNING: "16 0x89"},
    "one attempt in fifty that fails": {DONE: "0+98x90", ERROR: "0+2x90", LETTERS: "0x90"},
    "a letter of an hour ago": {DONE: "0+90x90", ERROR: "0x90", LETTERS: "0x20 1x70"},
    "an event that is published every ten minutes": {PUBLISHED: "0x10 1x10 2x10 3x10 4x10 5x10 6x10 7x10 8x10"},
    "a subscriber without events": {WAITING: "0x90", FINISHED: "7x90"},
    "one that is slow": {WAITING: "5x90", FINISHED: "0 0+1x90"},
    "a Redis that was full": {REDIS_FULL: "1x10 0x80"},
    "a command that was run in the end": {OPERATOR: "1x80 0x10", WAITING: "5x80 0x10", FINISHED: "7x80 7+1x10"},
}
"""What is normal → series, of which nothing fires."""


def firing(promtool: Promtool, folder: Path, series: dict[str, str], expected: list[str], alert: str) -> str:
    """What ``promtool`` writes where an alert fires for these, and for nothing else, after an hour and a half; else it raises."""
    judged = {
        "rule_files": [str(RULES)],
        "evaluation_interval": "1m",
        "tests": [{
            "interval": "1m",
            "input_series": [{"series": name, "values": values} for name, values in series.items()],
            "alert_rule_test": [{"eval_time": "90m", "alertname": alert, "exp_alerts": [told(alert, one) for one in expected]}],
        }],
    }  # fmt: skip
    path = folder / "judged.yml"
    path.write_text(json.dumps(judged))  # JSON is YAML
    return promtool("test", "rules", str(path))


def told(alert: str, name: str) -> dict[str, dict[str, str]]:
    """An alert as it is sent."""
    rule = RULES.read_text("utf-8").partition(f"alert: {alert}\n")[2]
    label = "event" if alert == "NothingPublished" else "subscriber"
    texts = dict(re.findall(r'^          (summary|runbook): "(.*)"$', rule, re.MULTILINE)[:2])
    texts = {kind: text.replace(f"{{{{ $labels.{label} }}}}", name) for kind, text in texts.items()}
    severity = re.search(r"severity: (\w+)", rule)
    assert severity
    return {"exp_labels": {"severity": severity[1], label: name}, "exp_annotations": texts}


@pytest.mark.parametrize("alert", FIRES)
def test_an_alert_fires_in_its_case(alert: str, promtool: Promtool, tmp_path: Path) -> None:
    name = "order.paid" if alert == "NothingPublished" else "ship"

    assert "SUCCESS" in firing(promtool, tmp_path, FIRES[alert], [name], alert)


@pytest.mark.parametrize("normal", SILENT)
@pytest.mark.parametrize("alert", FIRES)
def test_no_alert_fires_of_what_is_normal(normal: str, alert: str, promtool: Promtool, tmp_path: Path) -> None:
    assert "SUCCESS" in firing(promtool, tmp_path, SILENT[normal], [], alert)


def test_an_alert_that_is_missed_would_be_seen(promtool: Promtool, tmp_path: Path) -> None:
    with pytest.raises(ServerUnavailableError, match="SubscriberErrors"):
        firing(promtool, tmp_path, FIRES["SubscriberErrors"], [], "SubscriberErrors")


def test_a_subscriber_that_waits_for_a_command_is_told_though_nobody_counts_its_events(promtool: Promtool, tmp_path: Path) -> None:
    series = {OPERATOR: "0x80 1x10", WAITING: "0x90", FINISHED: "7x90"}

    assert "SUCCESS" in firing(promtool, tmp_path, series, ["ship"], "NothingProcessed")


def test_back_pressure_is_told_though_a_slot_was_seen_between_two_events(promtool: Promtool, tmp_path: Path) -> None:
    series = {OLDEST: "0+30x90", RUNNING: " ".join(["1 1 0"] * 30)}

    assert "SUCCESS" in firing(promtool, tmp_path, series, ["ship"], "SubscriberBackPressure")


def test_the_first_letter_of_all_is_told(promtool: Promtool, tmp_path: Path) -> None:
    series = {DONE: "0+90x90", ERROR: "0x90", LETTERS: "0x84 1x6"}

    assert "SUCCESS" in firing(promtool, tmp_path, series, ["ship"], "SubscriberErrors")


def test_the_configuration_of_the_compose_file_is_one_that_prometheus_takes(promtool: Promtool) -> None:
    assert "SUCCESS" in promtool("check", "config", str(ROOT / "deploy" / "prometheus.yml"))
