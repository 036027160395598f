"""What `worker --only` runs, and the worker of an application without folds."""

from __future__ import annotations

from typing import Any

import pytest

from streams_app.errors import ConfigurationError
from streams_app.settings import EventsSettings, Settings
from streams_app.worker.faust_app import create_app
from streams_app.worker.selection import select

FOLD = {"name": "account-metrics", "source": "s", "group_key": "id", "changed": "m", "quiet_period": "15m"}
STORE = {"name": "dashboard", "url": "sqlite:///read.db", "folds": ["account-metrics"], "source": "carried"}


def settings(**more: Any) -> Settings:
    given = {"app_id": "social", "folds": [FOLD | {"keep": "last"}], "events": {"catalogue": "tests.helpers.events.shop:catalogue"}}
    return Settings.model_validate(given | more)


def test_name_selects_a_read_store_or_a_subscriber() -> None:
    runs = select(settings(read_stores=[STORE]), ["ship", "dashboard"])

    assert ["dashboard", "ship"] == runs.names


def test_all_enabled_subscribers_run_without_a_name() -> None:
    runs = select(settings(subscribers=[{"name": "ship", "enabled": False}]), ())

    assert (["recompute"], []) == (runs.subscribers, runs.stores)


def test_journals_run_without_a_name_and_by_their_own_name_only() -> None:
    given = settings(journals=[{"name": "accounts", "source": "s", "key": "id"}, {"name": "posts", "source": "s", "key": "@key"}])

    assert ["ship", "recompute", "accounts", "posts"] == select(given, ()).names
    assert (["posts"], True) == (select(given, ["posts"]).names, select(given, ["posts"]).uses_redis)


@pytest.mark.parametrize(
    ("names", "more", "fault"),
    [
        (
            ["shp"],
            {},
            "there is no read store, subscriber, live view or journal 'shp', did you mean 'ship'? (there are: ship, recompute)",
        ),
        (
            ["account-metrics"],
            {},
            "there is no read store, subscriber, live view or journal 'account-metrics', but a fold: workers without --only run "
            "all folds (there are: ship, recompute)",
        ),
        (
            ["ship"],
            {"events": EventsSettings()},
            "there is no read store, subscriber, live view or journal 'ship' (there are: none)\n"
            "subscribers are declared in a catalogue, and events.catalogue is not set",
        ),
        (["ship"], {"subscribers": [{"name": "ship", "enabled": False}]}, "subscriber 'ship' is not enabled"),
        (
            [],
            {"events": EventsSettings()},
            "there is nothing to run: no fold, no live view of a topic, no journal, and no subscriber that is enabled",
        ),
    ],
)
def test_unrunnable_selection_is_reported(names: list[str], more: dict[str, Any], fault: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        select(settings(**more), names)

    assert fault == str(caught.value)


def test_faust_needs_a_fold() -> None:
    with pytest.raises(ConfigurationError, match="there is no fold"):
        create_app(Settings(app_id="shop", events=EventsSettings(catalogue="tests.no_folds:catalogue")))
