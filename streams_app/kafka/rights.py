"""Queries the broker for the rights of this Kafka user on topics and groups.

A broker without an authorizer grants every right. A broker that does not report rights, as before Kafka 2.8, leaves them unknown,
and none counts as missing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from enum import IntEnum
from typing import Any, Final, NamedTuple

from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.errors import (
    GroupAuthorizationFailedError,
    IncompatibleBrokerVersion,
    KafkaError,
    TopicAuthorizationFailedError,
)
from aiokafka.protocol.admin import DescribeGroupsRequest_v3, DescribeGroupsResponse_v3
from aiokafka.protocol.api import Request, RequestStruct

from streams_app.errors import ConfigurationError
from streams_app.kafka.retriable import while_retriable
from streams_app.kafka.topic_ids import Client, described
from streams_app.settings import KafkaSettings

COORDINATOR_SECONDS: Final = 5.0
"""Timeout for finding the coordinator of a group; afterwards, the rights on the group count as unknown."""

TOPIC: Final = "topic"
GROUP: Final = "group"


class Right(IntEnum):
    """Operations that can be granted, with their numbers in Kafka's protocol."""

    READ = 3
    WRITE = 4
    CREATE = 5
    DESCRIBE = 8
    DESCRIBE_CONFIGS = 10

    def __str__(self) -> str:
        """Return the name of the operation in ``kafka-acls``."""
        return self.name.title().replace("_", "")


Granted = frozenset[Right] | None
"""The rights on a topic or a group; None if they are unknown."""


class RequiredRight(NamedTuple):
    """A right that a client needs on a resource, whose kind is ``topic`` or ``group``."""

    right: Right
    kind: str
    name: str
    why: str

    def __str__(self) -> str:
        return f"missing right: {self.right} on {self.kind} {self.name} ({self.why})"

    def command(self, kafka: KafkaSettings) -> str:
        return grant_command(kafka, self.right, self.kind, self.name)


def grant_command(kafka: KafkaSettings, right: Right, kind: str, name: str) -> str:
    """Return the ``kafka-acls`` command that grants a right on a ``topic`` or a ``group``."""
    who = f"--bootstrap-server {kafka.bootstrap_servers} --add --allow-principal User:{kafka.sasl_username or 'NAME'}"
    return f"kafka-acls {who} --operation {right} --{kind} {name}"


def missing_of(needed: Iterable[RequiredRight], granted: Mapping[tuple[str, str], Granted]) -> list[RequiredRight]:
    """Return the needed rights that are certainly missing (pure). Each right is returned once, with all its purposes.

    Args:
        granted: Rights by kind and name of the resource.
    """
    whys: dict[tuple[Right, str, str], list[str]] = {}
    for right, kind, name, why in needed:
        whys.setdefault((right, kind, name), []).append(why)
    return [
        RequiredRight(right, kind, name, ", ".join(dict.fromkeys(reasons)))
        for (right, kind, name), reasons in whys.items()
        if (found := granted.get((kind, name))) is not None and right not in found
    ]


async def require_kafka_rights(client: AIOKafkaAdminClient, kafka: KafkaSettings, needed: Iterable[RequiredRight]) -> None:
    """Check that the broker grants the needed rights.

    A missing right is an error and not an outage, because waiting does not grant it.
    """
    needed = list(needed)
    named = {kind: sorted({one.name for one in needed if one.kind == kind}) for kind in (TOPIC, GROUP)}
    if missing := missing_of(needed, await granted_rights(client, named[TOPIC], named[GROUP])):
        raise ConfigurationError([f"{one}: {one.command(kafka)}" for one in missing])


async def granted_rights(
    client: AIOKafkaAdminClient, topics: Sequence[str], groups: Sequence[str]
) -> dict[tuple[str, str], Granted]:
    """Return the rights of this user by kind and name; see :func:`rights_on_topics` and :func:`rights_on_groups`."""
    granted = {(TOPIC, name): found for name, found in (await rights_on_topics(client._client, topics)).items()}
    return granted | {(GROUP, name): found for name, found in (await rights_on_groups(client, groups)).items()}


async def rights_on_topics(client: Client, topics: Sequence[str]) -> dict[str, Granted]:
    """Return the rights of this user on each topic, by the name of the topic.

    The rights are empty for a topic that the broker hides from this user, and None if they are unknown. Topics that do not exist
    are left out. Before Kafka 2.8, the result is empty.
    """
    answer = await described(client, topics, with_rights=True) if topics else None
    return {
        name: frozenset() if code else _granted(operations)
        for code, name, _, _, _, operations, *_ in answer or ()
        if code in (0, TopicAuthorizationFailedError.errno)
    }


async def rights_on_groups(client: AIOKafkaAdminClient, groups: Sequence[str]) -> dict[str, Granted]:
    """Return the rights of this user on each group, by name; None if unknown. Groups without members or commits are included."""
    return dict(zip(groups, await asyncio.gather(*(_on_group(client, group) for group in groups)), strict=True))


async def _on_group(client: AIOKafkaAdminClient, group: str) -> Granted:
    try:
        answer = await client._client.send(await _coordinator(client, group), _DescribeGroupRequest(group))
        ((code, *_, operations),) = answer.groups
    except GroupAuthorizationFailedError:
        return frozenset()
    except (KafkaError, IncompatibleBrokerVersion, NotImplementedError, OSError, TimeoutError, ValueError):
        return None
    if code:
        return frozenset() if code == GroupAuthorizationFailedError.errno else None
    return _granted(operations)


async def _coordinator(client: AIOKafkaAdminClient, group: str) -> int:
    async with asyncio.timeout(COORDINATOR_SECONDS):
        return int(await while_retriable(lambda: client.find_coordinator(group)))


def _granted(operations: int) -> Granted:
    """Return the rights in a bit field of operations (pure); None without Describe, because the broker then hides the others."""
    found = frozenset(right for right in Right if operations >= 0 and operations & 1 << right)
    return found if Right.DESCRIBE in found else None


class _DescribeGroupStruct(RequestStruct):
    """A DescribeGroups request of version 3. Its response is parsed as version 3, which aiokafka's own request does not do."""

    API_KEY = DescribeGroupsRequest_v3.API_KEY
    API_VERSION = DescribeGroupsRequest_v3.API_VERSION
    RESPONSE_TYPE = DescribeGroupsResponse_v3
    SCHEMA = DescribeGroupsRequest_v3.SCHEMA


class _DescribeGroupRequest(Request[_DescribeGroupStruct]):
    API_KEY = DescribeGroupsRequest_v3.API_KEY

    def __init__(self, group: str) -> None:
        self._group = group

    def build(self, request_struct_class: type[_DescribeGroupStruct]) -> Any:
        return request_struct_class([self._group], True)
