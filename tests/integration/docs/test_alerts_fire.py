"""The rules for Prometheus, evaluated by `promtool`: each alert fires in its cases, and none fires for a healthy system."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Final, NamedTuple

import pytest
import yaml

from tests.servers.cache import ROOT

RULES = ROOT / "deploy" / "alerts.yml"
NAMES = re.findall(r"- alert: (\w+)", RULES.read_text("utf-8"))
Promtool = Callable[..., str]

ONE, OTHER = 'instance="a:8080", job="w"', 'instance="b:8080", job="w"'
SUBSCRIBER, FOLD, STORE, VIEW = 'subscriber="ship"', 'fold="likes"', 'store="read"', 'view="news"'


def series(name: str, *labels: str) -> str:
    """Return a series of the first worker."""
    return f"streams_app_{name}{{{', '.join([ONE, *labels])}}}"


OLDEST = series("subscriber_oldest_waiting_seconds", SUBSCRIBER)
RUNNING = series("subscriber_running_events", SUBSCRIBER)
WAITING = series("subscriber_waiting_events", SUBSCRIBER)
FINISHED = series("subscriber_finished_total", SUBSCRIBER, 'event="order.paid"', 'result="done"')
LOST = series("subscriber_finished_total", SUBSCRIBER, 'event="order.paid"', 'result="lost"')
DONE = series("subscriber_attempts_total", SUBSCRIBER, 'event="order.paid"', 'outcome="done"')
ERROR = series("subscriber_attempts_total", SUBSCRIBER, 'event="order.paid"', 'outcome="error"')
DEAD_LETTERS = series("subscriber_dead_letters_total", SUBSCRIBER, 'reason="failed"')
SUSPENDED = series("subscriber_suspended", SUBSCRIBER)
PUBLISHED = series("published_total", 'event="order.paid"', 'result="acknowledged"')
OPERATOR = series("waiting_for", SUBSCRIBER, 'what="operator"')
REDIS_FULL = series("waiting_for", SUBSCRIBER, 'what="redis-memory"')
INFO = series("build_info", 'app_id="social"', 'version="1"')
INFO_OTHER = INFO.replace(ONE, OTHER)
UP, UP_OTHER = f"up{{{ONE}}}", f"up{{{OTHER}}}"
STARTED = f"process_start_time_seconds{{{ONE}}}"
LAG = series("lag_events", FOLD)
FOLDED = series("events_folded_total", FOLD)
OVERDUE = series("oldest_overdue_seconds", FOLD)
REJECTED = series("dead_letters_total", FOLD, 'reason="not-json"')
KNOWN_LOSS = series("known_loss_events_total", FOLD)
WENT_BACK = series("log_went_back_events_total", 'name="likes"')
MISROUTED = series("misrouted_events_total", FOLD)
RESYNCS = series("resyncs_total", FOLD, 'cause="fence"')
STORE_UP = series("up", 'component="read_store.read"')
STORE_LAG = series("read_store_lag_records", STORE)
STORE_WRITES = series("read_store_writes_total", STORE, 'result="written"')
STORE_AGE = series("read_store_oldest_unsynced_seconds", STORE)
STORE_DEAD_LETTERS = series("read_store_dead_letters_total", STORE, 'reason="not-storable"')
STORE_LOSS = series("read_store_known_loss_records_total", STORE)
VIEW_STATE = series("live_state", VIEW).replace(ONE, OTHER)  # of a server of live views
VIEW_POLLS = series("live_look_seconds_count").replace(ONE, OTHER)
VIEW_LAG = series("live_lag_records", VIEW)
VIEW_READING = series("live_reading", VIEW)
VIEW_PAGES = series("live_pages", VIEW)
VIEW_PUT = series("live_events_total", VIEW, 'result="put"')
JOURNAL = 'journal="accounts"'
JOURNAL_LAG = series("journal_lag_records", JOURNAL)
JOURNAL_ENTRIES = series("journal_entries_total", JOURNAL)
JOURNAL_CUT = series("journal_dropped_segments_total", JOURNAL, 'cause="memory"')
JOURNAL_AGED = series("journal_dropped_segments_total", JOURNAL, 'cause="age"')
JOURNAL_GAP = series("journal_gap_offsets_total", JOURNAL)
JOURNAL_DAMAGED = series("journal_damaged_blocks_total", JOURNAL)
VIEW_REJECTED = series("live_events_total", VIEW, 'result="refused"')

LABELS: Final = {
    "app_id": "social", "instance": "a:8080", "job": "w", "fold": "likes", "store": "read", "subscriber": "ship", "view": "news",
    "journal": "accounts",
}  # fmt: skip


def not_ready(cause: str) -> str:
    return series("not_ready", f'cause="{cause}"')


def writes(cause: str) -> str:
    return series("redis_refuses_writes", f'cause="{cause}"')


class Case(NamedTuple):
    """A case in which an alert fires.

    Attributes:
        series: The values of each series, one a minute.
        labels: Labels of the alert: a name of :data:`LABELS`, or ``name=value``.
        minute: When the rules are evaluated.
    """

    series: dict[str, str]
    labels: str = ""
    minute: int = 90


FIRES: dict[str, list[Case]] = {
    "NoWorker": [
        Case({INFO: "1x80 stale _x9"}, "app_id"),
        Case({INFO: "1x20 stale _x800"}, "", 800),  # the application id is no longer known
        Case({INFO: "1x80 stale _x9", INFO_OTHER.replace("social", "shop"): "1x90"}, "app_id"),
        Case(
            {INFO: "1x80 stale _x9", INFO_OTHER: "1x90", VIEW_POLLS: "0+240x90"}, "app_id"
        ),  # the other one shows live views alone
    ],
    "WorkerDown": [Case({UP: "1x80 0x10", INFO: "1x80 stale _x9", UP_OTHER: "1x90", INFO_OTHER: "1x90"}, "instance job")],
    "WorkerCrashLoop": [Case({STARTED: "100x75 200x4 300x4 400x6", INFO: "1x90"}, "instance job")],
    "WorkerNotReady": [
        Case({not_ready(cause): "0x85 1x5"}, f"instance cause={cause}")
        for cause in ("kafka", "redis", "redis-memory", "topic", "subscriber", "stuck", "lifespan", "loop", "other")
    ],
    "WorkerNotStarted": [Case({not_ready(cause): "0x80 1x10"}, f"instance cause={cause}") for cause in ("start", "claim")],
    "ClockSkew": [Case({not_ready("clock-skew"): "0x80 1x10"}, "instance")],
    "RedisRefusesWrites": [Case({writes(cause): "0x85 1x5"}, f"cause={cause}") for cause in ("memory", "read-only", "other")],
    "NobodyRunsIt": [
        Case({LAG: "0x60 stale _x29", INFO: "1x90"}, "fold"),
        Case({RUNNING: "0x60 stale _x29", INFO: "1x90"}, "subscriber"),
        Case({STORE_LAG: "0x60 stale _x29", INFO: "1x90"}, "store"),
        Case({VIEW_PAGES: "7x60 stale _x29", INFO: "1x90"}, "view"),
        Case({JOURNAL_LAG: "0x60 stale _x29", INFO: "1x90"}, "journal"),
    ],
    "OpenTransaction": [
        Case({series("open_transaction_seconds", 'reader="folds"', 'topic="t"'): "0x80 0+60x10"}, "reader=folds topic=t"),
    ],
    "FoldStandsStill": [
        Case({LAG: "0x80 100+100x10", FOLDED: "0+100x80 8000x10"}, "fold"),
        Case({LAG: "0x86 1x4", FOLDED: "8000x90"}, "fold"),  # a quiet topic: one event that is not folded
        # The lag is known to a worker that has no partition, the counter to the one that has.
        Case({LAG: "5x90", FOLDED.replace(ONE, OTHER): "7x90"}, "fold"),
    ],
    "FoldFallsBehind": [Case({LAG: "0+6000x90", FOLDED: "0+600x90"}, "fold")],
    "FoldOverdue": [Case({OVERDUE: "0x80 60+60x10"}, "fold")],
    "DeadLetters": [
        Case({REJECTED: "0x85 1x5"}, "fold reason=not-json"),
        Case({REJECTED: "_x85 3x5"}, "fold reason=not-json"),  # before the worker was seen for the first time
    ],
    "KnownLoss": [
        Case({KNOWN_LOSS: "0x85 7x5"}, "fold"),
        Case({KNOWN_LOSS: "_x85 7x5"}, "fold"),
        Case({KNOWN_LOSS: "0x60 stale _x10 7x20"}, "fold"),
        Case({LOST: "0x85 7x5"}, "subscriber"),
        Case({LOST: "_x85 7x5"}, "subscriber"),
        Case({STORE_LOSS: "0x85 7x5"}, "store"),
        Case({STORE_LOSS: "_x85 7x5"}, "store"),
    ],
    "LogWentBack": [Case({WENT_BACK: "0x85 7x5"}, "name=likes"), Case({WENT_BACK: "_x85 7x5"}, "name=likes")],
    "MisroutedEvents": [Case({MISROUTED: "0x85 1x5"}, "fold")],
    "ClaimedAgainAndAgain": [Case({RESYNCS: "0+1x90"}, "fold")],
    "ReadStoreAway": [Case({STORE_UP: "1x88 0x2"}, "component=read_store.read")],
    "ReadStoreStandsStill": [
        Case({STORE_LAG: "0x80 9x10", STORE_WRITES: "0+9x80 720x10"}, "store"),
        Case({STORE_LAG: "5x90", STORE_WRITES: "0x90"}, "store"),  # it has never worked
    ],
    "ReadStoreBehind": [Case({STORE_AGE: "0x80 61+60x10"}, "store")],
    "ReadStoreDeadLetters": [
        Case({STORE_DEAD_LETTERS: "0x85 1x5"}, "store reason=not-storable"),
        Case({STORE_DEAD_LETTERS: "_x85 3x5"}, "store reason=not-storable"),
    ],
    "LiveViewBehind": [
        Case({VIEW_STATE: "0x85 2x5"}, "view"),
        Case({VIEW_STATE: "0x85 2x5", VIEW_STATE.replace(OTHER, ONE): "3x90"}, "view"),  # another server reports more
        Case({VIEW_LAG: "0x80 9x10", VIEW_PUT: "0+9x80 720x10"}, "view"),  # no server is scraped
    ],
    "LiveViewReading": [Case({VIEW_STATE: "0x80 3x10"}, "view"), Case({VIEW_READING: "0x80 1x10"}, "view")],
    "LiveViewIncomplete": [Case({VIEW_STATE: "0x80 1x10"}, "view")],
    "LiveViewDeadLetters": [
        Case({VIEW_REJECTED: "0x85 1x5"}, "view"),
        Case({VIEW_REJECTED: "_x85 3x5"}, "view"),
    ],
    "JournalStandsStill": [
        Case({JOURNAL_LAG: "0x80 9x10", JOURNAL_ENTRIES: "0+9x80 720x10"}, "journal"),
        Case({JOURNAL_LAG: "5x90", JOURNAL_ENTRIES: "0x90"}, "journal"),  # it has never worked
    ],
    "JournalCutShort": [Case({JOURNAL_CUT: "0x60 1x30"}, "journal cause=memory")],
    "JournalGap": [Case({JOURNAL_GAP: "0x60 7x30"}, "journal"), Case({JOURNAL_GAP: "_x85 7x5"}, "journal")],
    "JournalDamaged": [Case({JOURNAL_DAMAGED: "0x60 1x30"}, "journal"), Case({JOURNAL_DAMAGED: "_x85 1x5"}, "journal")],
    "SubscriberBackPressure": [
        Case({OLDEST: "0+30x90", RUNNING: "16x90"}, "subscriber"),
        Case({OLDEST: "0+30x90", RUNNING: " ".join(["1 1 0"] * 30)}, "subscriber"),  # a slot was seen between two events
    ],
    "SubscriberErrors": [
        Case({DONE: "0+90x90", ERROR: "0+10x90", DEAD_LETTERS: "0x90"}, "subscriber"),
        Case({DONE: "0+90x90", ERROR: "0x90", DEAD_LETTERS: "0x84 1x6"}, "subscriber"),  # the first dead letter of all
    ],
    "SubscriberSuspended": [Case({SUSPENDED: "0x89 1"}, "subscriber")],
    "NothingPublished": [
        Case({PUBLISHED: "0+100x500 50000x100"}, "event=order.paid", 562),
        Case({PUBLISHED: "0+100x500 50000x500"}, "event=order.paid", 980),  # and it continues to fire
    ],
    "NothingProcessed": [
        Case({WAITING: "5x90", FINISHED: "7x90"}, "subscriber"),
        Case({OPERATOR: "0x80 1x10", WAITING: "0x90", FINISHED: "7x90"}, "subscriber"),  # its events are not counted
    ],
    "SubscriberRedisFull": [Case({REDIS_FULL: "0x80 1x10"}, "subscriber")],
}

ALIVE = {INFO: "1x90", UP: "1x90"}
RESTARTED: dict[str, str] = {
    # One worker after the other ends, is away for a minute, and has to claim its partitions again.
    UP: "1x40 0 0 1x48", INFO: "1x40 stale _ 1x48", STARTED: "100x40 _ _ 200x48",
    UP_OTHER: "1x43 0 0 1x45", INFO_OTHER: "1x43 stale _ 1x45", STARTED.replace(ONE, OTHER): "100x43 _ _ 200x45",
    not_ready("start"): "0x40 _ _ 1 0x47", not_ready("claim"): "0x40 _ _ 1 1 0x46",
    LAG: "0x40 stale _ 500 300 0x46", FOLDED: "0+100x40 stale _ 0+100x48", OVERDUE: "0x40 stale _ 60 20 0x46",
    STORE_LAG: "0x40 stale _ 50 0x47", STORE_WRITES: "0+9x40 stale _ 0 0+9x47", STORE_AGE: "1x40 stale _ 70 1x47",
    STORE_UP: "1x40 stale _ 1x48", RUNNING: "1x40 stale _ 0x48", WAITING: "0x40 stale _ 9 0x47",
    VIEW_LAG: "0x40 stale _ 9 0x47", VIEW_PUT: "0+9x40 stale _ 0 0+9x47", VIEW_STATE: "0x40 2 0x49",
    FINISHED: "0+9x40 stale _ 0 0+9x47", REJECTED: "3x40 stale _ 0x48", KNOWN_LOSS: "0x40 stale _ 0x48", RESYNCS: "0x44 1x46",
}  # fmt: skip

SILENT: dict[str, dict[str, str]] = {
    "a worker that does what it should": ALIVE | {
        LAG: "0 12 3 0 7 0x85", FOLDED: "0+1000x90", OVERDUE: "0 1x89", STORE_UP: "1x90", STORE_LAG: "0 5x89",
        STORE_WRITES: "0+9x90", STORE_AGE: "1x90", SUSPENDED: "0x90",
        **{not_ready(cause): "0x90" for cause in ("start", "claim", "kafka", "clock-skew")},
        **{writes(cause): "0x90" for cause in ("memory", "read-only", "other")},
    },
    "a rolling restart": RESTARTED,
    "transactions that come and go": ALIVE | {
        series("open_transaction_seconds", 'reader="folds"', 'topic="t"'): " ".join(["0 5 1"] * 30),
        series("open_transaction_records", 'reader="folds"', 'topic="t"'): " ".join(["0 500 20"] * 30),
    },
    "rebalances, one after the other": ALIVE | {
        not_ready("claim"): " ".join(["0 0 1"] * 30), RESYNCS: "0x40 1x5 2x45", LAG: " ".join(["0 900 200"] * 30),
        FOLDED: "0+500x90",
    },
    "a rolling restart of the brokers": ALIVE | {not_ready("kafka"): "0x40 1 0 1 0 1 0x45", OVERDUE: "0x40 20 0 20 0 20 0x45"},
    "a fail-over of Redis": ALIVE | {not_ready("redis"): "0x40 1 0x49", writes("read-only"): "0x40 1 0x49"},
    "a scale-down": {INFO: "1x90", UP: "1x90", INFO_OTHER: "1x40 stale _x49", UP_OTHER: "1x40 stale _x49"},
    "workers that move to other addresses": {
        INFO: "1x40 stale _x49", UP: "1x40 stale _x49", LAG: "0x40 stale _x49", INFO_OTHER: "_x40 1x50", UP_OTHER: "_x40 1x50",
        LAG.replace(ONE, OTHER): "_x40 0x50", REJECTED: "7x40 stale _x49", REJECTED.replace(ONE, OTHER): "_x40 0x50",
    },
    "a live view that is read again after Redis was wiped": ALIVE | {
        VIEW_STATE: "0x40 3x3 0x46", VIEW_READING: "0x40 1x3 0x46", VIEW_LAG: "0x40 9000 6000 3000 0x47", VIEW_PUT: "0+3000x90",
    },
    "a server of live views, and nothing to show": ALIVE | {VIEW_STATE: "0x90", VIEW_POLLS: "0+240x90", INFO_OTHER: "1x90"},
    "an application that shows live views alone": {INFO_OTHER: "1x90", VIEW_POLLS: "0+240x90", UP_OTHER: "1x90"},
    "a live view of a quiet topic": ALIVE | {VIEW_LAG: "0x31 1 0x58", VIEW_PUT: "0x32 1x58", VIEW_PAGES: "7x90"},
    "a journal of a quiet topic, whose oldest day leaves": ALIVE | {
        JOURNAL_LAG: "0x31 1 0x58", JOURNAL_ENTRIES: "0x32 1x58", JOURNAL_AGED: "0x40 4x50", JOURNAL_CUT: "3x90",
        JOURNAL_GAP: "0x90", JOURNAL_DAMAGED: "0x90",
    },
    "a journal that is filed again after Redis was wiped": ALIVE | {
        JOURNAL_LAG: "0x40 9000 6000 3000 0x47", JOURNAL_ENTRIES: "0+3000x90",
    },
    "another program that is down": ALIVE | {'up{instance="c:1", job="other"}': "0x90"},
    "a quiet topic": ALIVE | {
        LAG: f"0x30 1 0x30 1 0x{90 - 62}", FOLDED: "0x30 1x31 2x29", STORE_LAG: "0x31 1 0x58", STORE_WRITES: "0x32 1x58",
    },
    "a backlog of half an hour that is worked off": ALIVE | {
        LAG: f"0x20 30000-1000x30 0x{90 - 52}", FOLDED: "0x20 0+1000x30 30000x40",
    },
    "a dead letter and a loss of long ago": ALIVE | {
        REJECTED: "3x90", KNOWN_LOSS: "7x90", MISROUTED: "4x90", STORE_LOSS: "2x90", WENT_BACK: "7x90", JOURNAL_GAP: "7x90",
    },
    "a backlog of a subscriber that is worked off": ALIVE | {OLDEST: "3000-30x90", RUNNING: "16x90"},
    "a subscriber that is idle now and then": ALIVE | {OLDEST: "0 1x89", RUNNING: "16 0x89"},
    "one attempt in fifty that fails": ALIVE | {DONE: "0+98x90", ERROR: "0+2x90", DEAD_LETTERS: "0x90"},
    "an event that is published every ten minutes": ALIVE | {PUBLISHED: "0x10 1x10 2x10 3x10 4x10 5x10 6x10 7x10 8x10"},
    "a subscriber without events": ALIVE | {WAITING: "0x90", FINISHED: "7x90"},
    "one that is slow": ALIVE | {WAITING: "5x90", FINISHED: "0 0+1x90"},
}  # fmt: skip
"""Healthy state → series, for which no alert fires within an hour and a half, except those of :data:`PAST`."""

PAST: Final = frozenset({"DeadLetters", "JournalGap", "KnownLoss", "LogWentBack"})
"""Alerts that a Prometheus without history fires once for counts from before its start."""

LONG: dict[str, str] = {
    "an event that is rare": "0x55 " + " ".join(f"{number}x95" for number in range(1, 14)),
    "an event that comes in bursts": "0+100x30 3000x300 3000+100x30 6000x300 6000+100x30 9000x300",
    "an event that is published by day": "0+10x600 6000x30 6000+10x300",
    "one that has never been published": "0x900",
}
"""Healthy state of a publisher → its counter over half a day and more."""


def judged(promtool: Promtool, folder: Path, tests: Sequence[Mapping[str, object]], rules: Path = RULES) -> str:
    """Return the output of ``promtool`` if everything is as expected, otherwise raise."""
    return promtool("test", "rules", str(written(folder / "judged.yml", tests, rules)))


def written(path: Path, tests: Sequence[Mapping[str, object]], rules: Path) -> Path:
    """Write tests of rules to a file."""
    # JSON is YAML.
    path.write_text(json.dumps({"rule_files": [str(rules)], "evaluation_interval": "30s", "tests": tests}))
    return path


@cache
def rules_by_alert() -> dict[str, dict[str, object]]:
    return {rule["alert"]: rule for group in yaml.safe_load(RULES.read_text("utf-8"))["groups"] for rule in group["rules"]}


def rule_alone(alert: str, folder: Path) -> Path:
    """Write the rule of one alert to a file: ``promtool`` evaluates every rule of its files at every step."""
    path = folder / f"{alert}.rule.yml"
    path.write_text(json.dumps({"groups": [{"name": "alone", "rules": [rules_by_alert()[alert]]}]}))
    return path


def given(found: dict[str, str]) -> list[dict[str, str]]:
    return [{"series": name, "values": values} for name, values in found.items()]


def firing(folder: Path, alert: str, cases: Sequence[Case]) -> Path:
    """Write tests that an alert fires as expected in each case, with these labels only."""
    expected = [[{"eval_time": f"{case.minute}m", "alertname": alert, "exp_alerts": [sent(alert, case.labels)]}] for case in cases]
    tests = [
        {"interval": "1m", "input_series": given(case.series), "alert_rule_test": one}
        for case, one in zip(cases, expected, strict=True)
    ]
    return written(folder / f"{alert}.yml", tests, rule_alone(alert, folder))


def sent(alert: str, labels: str) -> dict[str, dict[str, str]]:
    """Return an alert as it is sent."""
    rule = re.split(r"^      - alert: ", RULES.read_text("utf-8").partition(f"- alert: {alert}\n")[2], flags=re.MULTILINE)[0]
    words = [word.partition("=") for word in labels.split()]
    expected_labels = {name: value or LABELS[name] for name, _, value in words}
    texts = dict(re.findall(r'^          (summary|runbook): "(.*)"$', rule, re.MULTILINE))
    filled = {
        kind: re.sub(r"\{\{ \$labels\.(\w+) \}\}", lambda found: expected_labels.get(found[1], ""), text)
        for kind, text in texts.items()
    }
    filled = {
        kind: re.sub(r"\{\{ or \$labels\.(\w+) `([^`]+)` \}\}", lambda found: expected_labels.get(found[1], found[2]), text)
        for kind, text in filled.items()
    }
    severity = re.search(r"severity: (\w+)", rule)
    assert severity
    return {"exp_labels": {"severity": severity[1], **expected_labels}, "exp_annotations": filled}


def test_every_alert_has_a_case_in_which_it_fires() -> None:
    assert sorted(NAMES) == sorted(FIRES)


def test_each_alert_fires_in_each_of_its_cases(promtool: Promtool, tmp_path: Path) -> None:
    found = promtool("test", "rules", *[str(firing(tmp_path, alert, cases)) for alert, cases in FIRES.items()])

    assert len(FIRES) == found.count("SUCCESS")


@pytest.mark.long
@pytest.mark.parametrize("normal", SILENT)
def test_alerts_do_not_fire_in_normal_operation(normal: str, promtool: Promtool, tmp_path: Path) -> None:
    silent = [
        {"eval_time": f"{minute}m", "alertname": alert, "exp_alerts": []}
        for minute in range(1, 91)
        for alert in NAMES
        if minute > 70
        or alert not in PAST
        or ("long ago" not in normal and "other addresses" not in normal and "restart" not in normal)
    ]
    test = {"interval": "1m", "input_series": given(SILENT[normal]), "alert_rule_test": silent}

    assert "SUCCESS" in judged(promtool, tmp_path, [test])


@pytest.mark.long
@pytest.mark.parametrize("normal", LONG)
def test_occasionally_published_event_is_not_reported_as_missing(normal: str, promtool: Promtool, tmp_path: Path) -> None:
    silent = [{"eval_time": f"{minute}m", "alertname": "NothingPublished", "exp_alerts": []} for minute in range(5, 900, 5)]

    test = {"interval": "1m", "input_series": given({PUBLISHED: LONG[normal]}), "alert_rule_test": silent}

    assert "SUCCESS" in judged(promtool, tmp_path, [test], rule_alone("NothingPublished", tmp_path))


def test_missing_alert_would_be_detected(promtool: Promtool, tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match="SubscriberErrors"):
        promtool("test", "rules", str(firing(tmp_path, "SubscriberErrors", [Case({DONE: "0+90x90"}, "subscriber")])))


def test_false_alert_would_be_detected(promtool: Promtool, tmp_path: Path) -> None:
    silent = [{"eval_time": "88m", "alertname": "WorkerNotReady", "exp_alerts": []}]
    test = {"interval": "1m", "input_series": given({not_ready("kafka"): "1x90"}), "alert_rule_test": silent}

    with pytest.raises(AssertionError, match="WorkerNotReady"):
        judged(promtool, tmp_path, [test])


def test_compose_configuration_is_valid_for_prometheus(promtool: Promtool) -> None:
    assert "SUCCESS" in promtool("check", "config", str(ROOT / "deploy" / "prometheus.yml"))
