"""Findings of `streams-app check` about subscribers."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from streams_app import Catalogue, Event, Retries
from streams_app.delivery.batch import TP
from streams_app.delivery.group_consumer import PartitionCommit
from streams_app.delivery.offset_metadata import OffsetAndMetadata, commit_of
from streams_app.finding import Level, lasting
from streams_app.fold import Fold
from streams_app.settings import EventsSettings, Settings
from streams_app.subscribers.declaration.subscription import Subscription, subscriptions_of
from streams_app.subscribers.running.findings import commit_finding, field_findings, id_findings, key_findings, retention_findings
from streams_app.subscribers.state.initial_offsets import initial_commit
from tests.helpers.events.shop import OrderPaid, catalogue, order_paid, recompute, ship

HOUR_MS = 3_600_000
TPS = [TP("orders", 0), TP("orders", 1)]


def fold(**values: Any) -> Fold:
    given = {"name": "account-metrics", "source": "orders", "group_key": "order_id", "changed": "m", "quiet_period": "15m"}
    return Fold(**(given | values))


def subscriptions(*subscribers: Any) -> list[Subscription]:
    settings = Settings(app_id="social", folds=(fold(),), events=EventsSettings(catalogue="tests.helpers.events.shop:catalogue"))
    return list(subscriptions_of(Catalogue(catalogue.events, subscribers or catalogue.subscribers), settings))


@pytest.mark.parametrize(
    ("group_key", "found"),
    [
        ("order_id", []),
        (("order_id",), []),
        ("@key", []),
        (lambda event: "", []),
        ("customer", ["event order.paid is keyed by order_id, fold account-metrics groups by customer"]),
        (("order_id", "day"), ["event order.paid is keyed by order_id, fold account-metrics groups by order_id, day"]),
    ],
)
def test_folded_event_is_keyed_by_the_group(group_key: Any, found: list[str]) -> None:
    assert found == [one.text for one in key_findings([order_paid], [fold(group_key=group_key)])]


def test_folded_event_without_a_key_is_reported() -> None:
    event = Event("order.paid", OrderPaid, description="It was paid.", keyed_by=None, topic="orders")

    assert ["event order.paid is keyed by nothing, fold account-metrics groups by order_id"] == [
        one.text for one in key_findings([event], [fold()])
    ]


@pytest.mark.parametrize("format_", ["debezium", "cloudevents"])
def test_key_of_an_externally_published_event_is_not_judged_by_its_declaration(format_: Any) -> None:
    event = Event("order.paid", OrderPaid, description="It was paid.", keyed_by=None, topic="orders", format=format_)

    assert [] == list(key_findings([event], [fold()]))


@pytest.mark.parametrize(
    ("fields", "found"),
    [
        ({"group_key": "account_id", "changed": "metrics"}, []),
        ({"group_key": ("account_id", "day"), "changed": "metrics"}, []),
        ({"group_key": lambda event: "", "group_as": "account_id", "changed": "metrics"}, []),
        ({"group_key": "@key", "changed": "metrics"}, ["'account_id'"]),
        ({"group_key": "account", "changed": "metric"}, ["'account_id', 'metrics'"]),
    ],
)
def test_subscriber_requires_fields_that_the_records_of_its_fold_have(fields: dict[str, Any], found: list[str]) -> None:
    expected = [
        f"subscriber recompute: AccountChanged requires {names}, which no record of account-metrics has: each becomes a dead letter"
        for names in found
    ]

    assert expected == [one.text for one in field_findings(subscriptions(recompute), [fold(**fields)])]


@pytest.mark.parametrize(
    ("kept_hours", "level"), [(-1, Level.OK), (4, Level.OK), (3.9, Level.WARNING), (2, Level.ERROR), (None, Level.WARNING)]
)
def test_log_is_retained_for_twice_the_retries_and_the_patience(kept_hours: float | None, level: Level) -> None:
    (one,) = subscriptions(replace(ship, patience=timedelta(milliseconds=2 * HOUR_MS - ship.retry.total_ms)))
    kept_ms = -1 if kept_hours == -1 else int((kept_hours or 0) * HOUR_MS)

    (finding,) = retention_findings([one], {} if kept_hours is None else {"orders": kept_ms})

    assert level == finding.level


def test_longest_retry_rule_counts() -> None:
    (one,) = subscriptions(recompute)
    longest_ms = max(rule.total_ms for rule in recompute.retry.by.values())

    (finding,) = retention_findings([one], {one.topic: 2 * (longest_ms + HOUR_MS) - 1})

    assert Level.WARNING == finding.level


def test_duration_of_retries_is_formatted_for_people() -> None:
    few = replace(ship, retry=Retries(attempts=2, first="9s", factor=1, longest="9s"), patience=timedelta(seconds=5))
    (finding,) = retention_findings(subscriptions(few), {"orders": -1})

    assert "subscriber ship: orders keeps its log for ever, retries and patience take up to 14 s" == finding.text


@pytest.mark.parametrize(
    ("span_ms", "text"),
    [(0, "0 s"), (14_000, "14 s"), (1_500, "1.5 s"), (60_000, "1 min"), (4_248_000, "1 h 10 min"), (168 * HOUR_MS, "7 d")],
)
def test_durations_are_formatted_in_human_units(span_ms: int, text: str) -> None:
    assert text == lasting(span_ms)


def test_ids_are_counted_per_redis() -> None:
    assert ["subscriber ship remembers ids for 1h: about 120 bytes of Redis each, 432 kB for each event a second"] == [
        one.text for one in id_findings(subscriptions())
    ]


def test_fold_ids_do_not_detect_every_repetition() -> None:
    found = list(id_findings(subscriptions(replace(recompute, idempotent="no", retry=ship.retry))))

    assert [Level.OK, Level.WARNING] == [one.level for one in found]
    assert "under other ids" in found[1].text


@pytest.mark.parametrize(
    ("committed", "text"),
    [
        ({tp: initial_commit("ship", 7, "") for tp in TPS}, "its commits record what has begun"),
        ({TPS[0]: initial_commit("ship", 7, "")}, "has no commit in 1 of 2 partitions"),
        ({tp: PartitionCommit(7, "") for tp in TPS}, "the broker keeps no metadata with commits"),
        ({tp: commit_of({"ship": OffsetAndMetadata(7)}) for tp in TPS}, "the broker keeps no metadata with commits"),
    ],
    ids=["placed", "a partition is missing", "no metadata", "no metadata"],
)
def test_at_most_once_subscriber_needs_commits_that_say_what_has_started(committed: dict[TP, PartitionCommit], text: str) -> None:
    (one,) = subscriptions(ship)

    assert text in commit_finding(one, TPS, committed).text
