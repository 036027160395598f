"""A user of Kafka with exactly the documented rights, and with fewer."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

import pytest
from aiokafka import TopicPartition
from aiokafka.errors import TopicAuthorizationFailedError
from aiokafka.protocol.admin import CreateAclsRequest

from streams_app.delivery.batch import TP
from streams_app.delivery.group_consumer import Member, PartitionCommit
from streams_app.kafka.group_offsets import in_group
from streams_app.kafka.member_requests import commit_as
from tests.conftest import Names, RedisServer
from tests.helpers.canaries import CANARIES, kafka_variables
from tests.helpers.kafka.topics import admin_of
from tests.helpers.worker.site import LIMIT_SECONDS, Site
from tests.helpers.worker.whole_app import GUARANTEES, WholeApp
from tests.servers.secured_kafka import ADMIN, WITH_RIGHTS, SecuredKafka
from tests.servers.tls import Authority

pytestmark = [pytest.mark.apache, pytest.mark.timeout(240)]

ALLOW, LITERAL, TOPIC, GROUP = 3, 3, 2, 3
OPERATIONS: Final = {"Read": 3, "Write": 4, "Create": 5, "Describe": 8, "DescribeConfigs": 10}
Grant = tuple[str, int, str]
"""An operation, and the kind and the name of the resource on which it is granted."""


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority.make(tmp_path_factory.mktemp("tls") / "ours")


@pytest.fixture(scope="module")
def secured_kafka(authority: Authority) -> Iterator[SecuredKafka]:
    passwords = {ADMIN: CANARIES["broker"], "worker": CANARIES["kafka"]}
    with SecuredKafka.start(authority, passwords, WITH_RIGHTS) as running:
        yield running


@pytest.fixture
async def app(
    secured_kafka: SecuredKafka, authority: Authority, redis_server: RedisServer, names: Names, tmp_path: Path
) -> WholeApp:
    """Return an application with its topics and tables, whose user has no right yet."""
    site = Site(names, secured_kafka.bootstrap_servers, redis_server.url, tmp_path)
    await WholeApp(site).prepare()
    return WholeApp(site, environment=kafka_variables(secured_kafka, authority, tmp_path))


def needed(app_id: str) -> set[Grant]:
    """Return the rights that a worker of the whole application needs."""
    dead_letters = [f"{app_id}.events.dead", f"{app_id}.dead", *(f"{app_id}.events.{name}.dead" for name in GUARANTEES)]
    groups = [app_id, *(f"{app_id}.{name}" for name in ("read-store.store", "live.seen", "journal.kept", *GUARANTEES))]
    topics = [("Read", f"{app_id}.{name}") for name in ("events", "folded", "again")]
    topics += [("Write", name) for name in (f"{app_id}.folded", *dead_letters)]
    return {*((right, TOPIC, name) for right, name in topics), *(("Read", GROUP, name) for name in groups)}


async def grant(secured_kafka: SecuredKafka, grants: Iterable[Grant]) -> None:
    async with admin_of(secured_kafka.bootstrap_servers) as admin:
        for operation, kind, name in grants:
            await admin._send_request(CreateAclsRequest(kind, name, LITERAL, "User:worker", "*", OPERATIONS[operation], ALLOW))


def errors(text: str) -> list[str]:
    """Return the errors among the findings of ``check``."""
    return [line.removeprefix("error").strip() for line in text.splitlines() if line.startswith("error ")]


async def test_application_runs_with_the_documented_rights(app: WholeApp, secured_kafka: SecuredKafka) -> None:
    await grant(secured_kafka, needed(app.settings.app_id))
    with app.worker() as worker:
        await worker.wait_ready()
        await app.send(10)
        await app.until_all_arrived()
        await app.site.send("events", [(b"k", b"no json")], headers=[("ce_type", b"account.changed")])
        checked = await app.run("check")
        code = await worker.terminate()

    assert ([], 0, 0) == (errors(checked.text), checked.code, code)
    assert "AuthorizationFailed" not in worker.log()


FEWER = {
    "source": ("Read", TOPIC, "{}.events", "source of fold folded"),
    "output": ("Write", TOPIC, "{}.folded", "output of fold folded"),
    "dead letters": ("Write", TOPIC, "{}.events.dead", "dead letters of fold folded"),
    "group": ("Read", GROUP, "{}", "fold folded"),
    "read by a store": ("Read", TOPIC, "{}.folded", "read store store"),
    "group of a store": ("Read", GROUP, "{}.read-store.store", "read store store"),
    "dead letters of a store": ("Write", TOPIC, "{}.dead", "dead letters of read store store"),
    "put back": ("Read", TOPIC, "{}.again", "put back for subscriber yes"),
    "group of a subscriber": ("Read", GROUP, "{}.yes", "subscriber yes"),
    "dead letters of a subscriber": ("Write", TOPIC, "{}.events.yes.dead", "dead letters of subscriber yes"),
    "group of a view": ("Read", GROUP, "{}.live.seen", "live view seen"),
    "group of a journal": ("Read", GROUP, "{}.journal.kept", "journal kept"),
}


@pytest.mark.parametrize("hides", [False, pytest.param(True, marks=pytest.mark.long)])
@pytest.mark.parametrize("fewer", FEWER)
async def test_check_and_worker_startup_name_the_missing_right(
    app: WholeApp, secured_kafka: SecuredKafka, fewer: str, hides: bool
) -> None:
    app_id = app.settings.app_id
    right, kind, name, why = FEWER[fewer]
    name = name.format(app_id)
    await grant(secured_kafka, needed(app_id) - {(right, kind, name)} | (set() if hides else {("Describe", kind, name)}))
    checked = await app.run("check")
    with app.worker() as worker:
        code = await worker.wait_exit(LIMIT_SECONDS)

    option = {TOPIC: "topic", GROUP: "group"}[kind]
    found = f"missing right: {right} on {option} {name} ({why}"
    granting = f"--add --allow-principal User:worker --operation {right} --{option} {name}\n"
    assert 1 == checked.code == code
    assert [found] == [error[: len(found)] for error in errors(checked.text)], checked.text
    assert granting in checked.text
    assert found in worker.log()
    assert granting in worker.log()
    assert "does not exist" not in checked.text + worker.log()


async def test_worker_of_one_component_needs_only_its_own_rights(app: WholeApp, secured_kafka: SecuredKafka) -> None:
    app_id = app.settings.app_id
    await grant(secured_kafka, {("Read", TOPIC, f"{app_id}.folded"), ("Write", TOPIC, f"{app_id}.dead")})
    with app.worker("--only", "store") as rejected:
        code = await rejected.wait_exit(LIMIT_SECONDS)
    await grant(secured_kafka, {("Read", GROUP, f"{app_id}.read-store.store")})
    with app.worker("--only", "store") as running:
        await running.wait_ready()

    assert 1 == code
    assert [f"missing right: Read on group {app_id}.read-store.store"] == re.findall(r"missing right: [^(]*[^( ]", rejected.log())


async def test_topics_without_the_right_to_describe_or_create_are_named(app: WholeApp, secured_kafka: SecuredKafka) -> None:
    app_id = app.settings.app_id
    hidden = await app.run("topics", "create")
    rights = needed(app_id)
    await grant(secured_kafka, rights)
    there = await app.run("topics", "create")
    async with admin_of(secured_kafka.bootstrap_servers) as admin:
        await admin.delete_topics([f"{app_id}.folded"])
    rejected = await app.run("topics", "create")

    assert (1, 0, 1) == (hidden.code, there.code, rejected.code), (hidden.text, there.text, rejected.text)
    assert f"does not allow user 'worker' what is needed on topic {app_id}.again, {app_id}.dead, " in hidden.text
    assert f"missing right: Create on topic {app_id}.folded: kafka-acls " in rejected.text


async def test_dead_letters_without_the_right_to_read_are_named(app: WholeApp, secured_kafka: SecuredKafka) -> None:
    await grant(secured_kafka, needed(app.settings.app_id))
    listed = await app.run("dead-letters", "list")

    assert 1 == listed.code, listed.text
    assert f"does not allow user 'worker' what is needed on topic {app.settings.app_id}.events.dead" in listed.text


async def test_commit_denied_for_its_topic_names_the_topic(app: WholeApp, secured_kafka: SecuredKafka) -> None:
    topic = f"{app.settings.app_id}.events"
    await grant(secured_kafka, {("Describe", TOPIC, topic), ("Read", GROUP, app.settings.app_id)})
    async with in_group(app.settings.kafka, app.settings.app_id) as consumer:
        consumer.assign([TopicPartition(topic, 0)])
        await consumer._client.force_metadata_update()
        with pytest.raises(TopicAuthorizationFailedError, match=re.escape(topic)):
            await commit_as(consumer, {TP(topic, 0): PartitionCommit(0, "")}, Member(-1, ""))
