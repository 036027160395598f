"""A subscription combines declaration and settings; contradictions are errors."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from streams_app import Catalogue, Event, Settings
from streams_app.cli.options import named
from streams_app.errors import ConfigurationError
from streams_app.subscribers.declaration.loading import catalogue_of
from streams_app.subscribers.declaration.subscriber import Rate, Subscriber
from streams_app.subscribers.declaration.subscription import subscriptions_of
from tests.helpers.events.shop import SETTINGS, OrderPaid, catalogue, recompute, resources


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "streams.toml"


def load(file: Path, more: str = "", environ: Mapping[str, str] | None = None, before: str = SETTINGS) -> Settings:
    file.write_text(before + more, "utf-8")
    return Settings.load(file, environ or {})


def subscribers(settings: Settings) -> dict[str, Subscriber[Any, Any]]:
    return {one.subscriber.name: one.subscriber for one in subscriptions_of(catalogue, settings)}


def faults(settings: Settings, declared: Catalogue = catalogue) -> list[str]:
    with pytest.raises(ConfigurationError) as caught:
        subscriptions_of(declared, settings)
    return caught.value.faults


def test_settings_name_a_catalogue(file: Path) -> None:
    assert catalogue is catalogue_of(load(file))


@pytest.mark.parametrize(
    ("place", "fault"),
    [
        (
            "tests.helpers.events.shop:order_paid",
            "events.catalogue: tests.helpers.events.shop:order_paid is of type Event, not Catalogue",
        ),
        ("tests.helpers.events.shop:catalog", "events.catalogue: the module 'tests.helpers.events.shop' has no 'catalog'"),
        ("tests.no_shop:catalogue", "events.catalogue: there is no module 'tests.no_shop'"),
    ],
)
def test_invalid_catalogue_is_reported(file: Path, place: str, fault: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        catalogue_of(load(file, before=SETTINGS.replace("tests.helpers.events.shop:catalogue", place)))

    assert caught.value.faults[0].startswith(fault)


def test_subscriber_faults_beside_the_catalogue_are_reported_with_all_others(file: Path) -> None:
    sections = """
[subscribers.shp]
concurrency = 2
[subscribers.ship]
concurrency = "many"
timeout = "3h"
attempts = 0
"""
    file.write_text(f"frob = 1\n{SETTINGS}{sections}", "utf-8")
    with pytest.raises(ConfigurationError) as caught:
        named(file, None)

    assert [
        "subscribers.ship.concurrency: Input should be a valid integer, unable to parse string as an integer",
        "frob: unknown key",
        "subscribers.shp: there is no subscriber 'shp', did you mean 'ship'?",
        "subscribers.ship: retries: attempts = 0 must be a whole number between 1 and 1000",
        "subscribers.ship: timeout must be between 10ms and 1h",
    ] == caught.value.faults


@pytest.mark.parametrize(
    ("sections", "more"),
    [
        ("", []),
        ("[subscribers]\nship = 1\n", ["subscribers.0: Input should be a valid dictionary or instance of SubscriberSettings"]),
        ("[subscribers.Ship]\ntimeout = '3h'\n", ["subscribers.Ship.name: the name of a subscriber has a-z, 0-9, _ and -"]),
    ],
)
def test_incomparable_settings_do_not_suppress_other_faults(file: Path, sections: str, more: list[str]) -> None:
    file.write_text(f"frob = 1\n{SETTINGS}\n{sections}", "utf-8")
    with pytest.raises(ConfigurationError) as caught:
        named(file, None)

    assert len(more) + 1 == len(caught.value.faults)
    assert all(fault.startswith(begin) for fault, begin in zip(caught.value.faults, [*more, "frob"], strict=True))


def test_subscription_has_topic_group_and_dead_letter_topic(file: Path) -> None:
    assert [
        ("orders", "social.ship", "orders.ship.dead"),
        (
            "post-metric-updated.account-metrics",
            "social.recompute",
            "post-metric-updated.account-metrics.recompute.dead",
        ),
    ] == [(one.topic, one.group, one.dead_letters) for one in subscriptions_of(catalogue, load(file))]


def test_settings_override_the_declaration(file: Path) -> None:
    more = """
[subscribers.ship]
concurrency = 2
rate = "9/m"
timeout = "1m"
attempts = 3
first = "2s"
longest = "10s"
remember = "2h"
patience = "5m"
start = "latest"
enabled = false
"""
    ship = subscribers(load(file, more))["ship"]

    assert (2, Rate(9, 60_000), timedelta(minutes=1)) == (ship.concurrency, ship.rate, ship.timeout)
    assert (3, 2_000, 10_000, 3) == (ship.retry.attempts, ship.retry.first_ms, ship.retry.longest_ms, ship.retry.factor)
    assert ("no", 2, 5, "latest", False) == (
        ship.idempotent, ship.remember / timedelta(hours=1), ship.patience / timedelta(minutes=1), ship.start, ship.is_enabled
    )  # fmt: skip


def test_declaration_applies_without_an_override(file: Path) -> None:
    found = subscribers(load(file, "[subscribers.recompute]\nattempts = 3\n"))["recompute"]

    assert (3, recompute.retry.never, recompute.retry.by) == (found.retry.attempts, found.retry.never, found.retry.by)
    assert ("key", 16) == (found.ordered, found.concurrency)


def test_environment_overrides_the_file(file: Path) -> None:
    environ = {"STREAMS_APP_SUBSCRIBERS_SHIP_CONCURRENCY": "3"}

    assert 3 == subscribers(load(file, "[subscribers.ship]\nconcurrency = 2\n", environ))["ship"].concurrency


def test_delivery_guarantee_is_not_a_setting(file: Path) -> None:
    with pytest.raises(ConfigurationError) as caught:
        load(file, '[subscribers.ship]\nidempotent = "yes"\n')

    assert [
        "subscribers.ship.idempotent: is not a setting: what a function may suffer is declared beside it, in @subscriber(…)"
    ] == caught.value.faults


def test_subscriber_settings_require_a_catalogue_that_declares_them(file: Path) -> None:
    with pytest.raises(ConfigurationError) as caught:
        load(file, "[subscribers.ship]\nconcurrency = 2\n", before=SETTINGS.split("[events]", maxsplit=1)[0])

    assert ["subscribers are declared in a catalogue: name it as events.catalogue"] == caught.value.faults


def test_all_faults_are_reported_together(file: Path) -> None:
    more = '[subscribers.shipp]\nconcurrency = 2\n[subscribers.ship]\nconcurrency = 0\ntimeout = "6m"\nrate = "9"\n'

    assert [
        "subscribers.shipp: there is no subscriber 'shipp', did you mean 'ship'?",
        "subscribers.ship: rate = '9' is not a number of 1 to 1000000 and a unit, as in 50/s, 100/m, 1000/h",
        "subscribers.ship: concurrency = 0 must be a whole number between 1 and 1000",
        "subscribers.ship: timeout must not be longer than 5m with idempotent = 'no': a rebalance waits for running attempts",
    ] == faults(load(file, more))


def test_fold_and_subscriber_cannot_share_a_name(file: Path) -> None:
    settings = load(file, before=SETTINGS.replace("account-metrics", "recompute"))

    assert [
        "subscriber 'recompute': there is no fold 'account-metrics'",
        "'recompute' is both a fold and a subscriber",
    ] == faults(settings)


def test_event_topic_cannot_be_the_output_of_a_fold(file: Path) -> None:
    event = Event("order.paid", OrderPaid, description="It was paid.", keyed_by=None, topic="post-metric-updated.account-metrics")

    assert ["event 'order.paid': the topic 'post-metric-updated.account-metrics' holds what a fold writes"] == faults(
        load(file), Catalogue(events=(event,), lifespan=resources)
    )


STORE = """
[read_stores.dashboard]
url = "sqlite:////tmp/r.db"
folds = ["account-metrics"]
source_url = "sqlite:////tmp/w.db"
sql = "select 1"
"""


@pytest.mark.parametrize(
    ("topic", "fault"),
    [
        ("orders", "event 'order.paid': the topic 'orders' holds the dead letters of a read store"),
        ("orders.ship.dead", "subscriber 'ship': its dead-letter topic 'orders.ship.dead' has another use"),
        ("social.again", "the topic 'social.again' holds replayed events of subscribers, and has another use"),
    ],
)
def test_read_store_needs_a_separate_dead_letter_topic(file: Path, topic: str, fault: str) -> None:
    assert [fault] == [one for one in faults(load(file, f'{STORE}dead_letters = "{topic}"\n')) if "recompute" not in one]


def test_replay_topic_has_no_other_use(file: Path) -> None:
    settings = load(file, before=SETTINGS.replace("post-metric-updated", "social.again"))

    assert ["the topic 'social.again' holds replayed events of subscribers, and has another use"] == faults(settings)
