"""The topics and rights of a workload: of all that is declared, and of a worker that runs a part."""

from __future__ import annotations

import tomllib
from typing import Any

import pytest

from streams_app.kafka.admin import Topic
from streams_app.requirements.components import COMPONENTS, components_of, dead_letter_topics, inputs_of, rights_of, topics_of
from streams_app.requirements.workload import Workload, declared, without_subscribers
from streams_app.settings import Settings
from tests.helpers.events import shop

MORE: dict[str, Any] = {
    "read_stores": {"board": {"url": "sqlite:///board.db", "folds": ["account-metrics"], "source": "carried"}},
    "journals": {"accounts": {"source": "post-metric-updated", "key": "account_id"}},
}


@pytest.fixture
def settings() -> Settings:
    given = tomllib.loads(shop.SETTINGS)
    given["folds"]["account-metrics"]["keep"] = "last"
    return Settings.model_validate(
        given
        | {kind: [{"name": name, **section} for name, section in sections.items()] for kind, sections in MORE.items()}
        | {"folds": [{"name": name, **section} for name, section in given["folds"].items()]}
    )


def names(topics: list[Topic]) -> set[str]:
    return {topic.name for topic in topics}


def test_read_store_requires_the_outputs_it_reads_and_its_dead_letter_topic(settings: Settings) -> None:
    fold, (store,) = settings.fold("account-metrics"), settings.read_stores
    found = topics_of(Workload(settings, stores=settings.read_stores))

    assert [Topic(fold.output, "output", ("account-metrics",)), Topic(store.dead_letters, "dead letters", ("board",))] == found


def test_topic_with_several_roles_is_required_once_as_the_source_of_its_fold(settings: Settings) -> None:
    found = [topic for topic in topics_of(declared(settings)) if topic.name == "post-metric-updated"]

    assert [Topic("post-metric-updated", "source", ("account-metrics", "accounts"))] == found


def test_subscriber_requires_all_events_but_only_its_own_dead_letter_topic(settings: Settings) -> None:
    (subscription,) = Workload(settings).with_subscribers(["ship"]).subscriptions
    found = topics_of(Workload(settings).with_subscribers(["ship"]))

    assert {event.topic for event in shop.catalogue.events} | {subscription.dead_letters, "social.again"} == names(found)


def test_subscriber_that_is_not_enabled_is_declared_but_not_part_of_a_worker(settings: Settings) -> None:
    changed = settings.model_copy(update={"subscribers": (settings_of_subscriber("ship", is_enabled=False),)})
    subscribers = [
        {one.subscriber.name for one in workload.subscriptions}
        for workload in (declared(changed), without_subscribers(changed).with_subscribers())
    ]

    assert {"ship"} == subscribers[0] - subscribers[1]


def settings_of_subscriber(name: str, *, is_enabled: bool) -> Any:
    given = {"name": name, "enabled": is_enabled}
    return Settings.model_validate(tomllib.loads(shop.SETTINGS) | {"folds": [FOLD], "subscribers": [given]}).subscribers[0]


FOLD = {"name": "f", "source": "s", "group_key": "id", "changed": "m", "quiet_period": "1s"}


def test_every_required_topic_needs_a_right(settings: Settings) -> None:
    topics = topics_of(declared(settings))
    found = rights_of(without_subscribers(settings).with_subscribers(), topics)

    assert names(topics) == {right.name for right in found if right.kind == "topic"}


def test_rights_of_one_read_store_are_its_own(settings: Settings) -> None:
    workload = Workload(settings, stores=settings.read_stores)
    found = [f"{right.right} {right.kind} {right.name}" for right in rights_of(workload, topics_of(workload))]
    (store,) = settings.read_stores

    assert [
        f"Read topic {settings.fold('account-metrics').output}",
        f"Write topic {store.dead_letters}",
        f"Read group social.{store.group}",
    ] == found


def test_worker_requires_the_group_of_each_component_and_removal_has_its_keys(settings: Settings) -> None:
    found = components_of(declared(settings))

    groups = {component.what: component.group for component in found}
    assert ("social", "social.ship") == (groups["fold account-metrics"], groups["subscriber ship"])
    assert ("social.journal.accounts", True) == (groups["journal accounts"], "read store board" in groups)
    assert [True, False, True, True, True] == [kind.state is not None for kind, _ in COMPONENTS]
    assert {one.name for one in found} <= {name for kind, _ in COMPONENTS for name in kind.names(settings)}


def test_input_of_every_component_is_a_source_an_output_or_a_topic_of_events(settings: Settings) -> None:
    (subscription,) = Workload(settings).with_subscribers(["ship"]).subscriptions
    workload = Workload(settings, stores=settings.read_stores, journals=settings.journals, subscriptions=[subscription])

    assert {settings.fold("account-metrics").output, "post-metric-updated", subscription.topic} == inputs_of(workload)
    assert set(settings.sources) == inputs_of(Workload(settings, settings.folds))


def test_dead_letter_topic_is_found_by_the_header_and_the_name_of_its_component(settings: Settings) -> None:
    found = dead_letter_topics(declared(settings))
    (store,) = settings.read_stores

    assert settings.fold("account-metrics").dead_letters == found["fold", "account-metrics"]
    assert store.dead_letters == found["store", "board"]
    assert {"fold", "store", "subscriber"} == {header for header, _ in found}
