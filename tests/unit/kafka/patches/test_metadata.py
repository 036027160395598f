"""The requests for topic metadata that clients send to brokers."""

from __future__ import annotations

import asyncio

import pytest
from aiokafka.client import AIOKafkaClient
from aiokafka.cluster import ClusterMetadata
from aiokafka.protocol.metadata import (
    MetadataRequest,
    MetadataRequest_v0,
    MetadataRequest_v1,
    MetadataRequest_v3,
    MetadataRequest_v4,
    MetadataRequest_v5,
)

from streams_app.kafka.client import client_options
from streams_app.settings import KafkaSettings


@pytest.mark.parametrize("version", [MetadataRequest_v4, MetadataRequest_v5])
@pytest.mark.parametrize("allowed", [None, True])
def test_metadata_request_for_a_topic_does_not_create_it(version, allowed: bool | None) -> None:
    client_options(KafkaSettings())
    request = MetadataRequest(["a"], allowed).build(version)

    assert (["a"], False) == (request.topics, request.allow_auto_topic_creation)


@pytest.mark.parametrize(("version", "every"), [(MetadataRequest_v0, []), (MetadataRequest_v1, None), (MetadataRequest_v3, None)])
def test_metadata_request_covers_all_topics_if_the_broker_cannot_disable_creation(version, every: list[str] | None) -> None:
    client_options(KafkaSettings())

    assert every == MetadataRequest(["a"]).build(version).topics


def test_metadata_request_for_brokers_only_is_unchanged() -> None:
    client_options(KafkaSettings())

    assert [] == MetadataRequest([]).build(MetadataRequest_v5).topics


async def test_immediately_repeated_metadata_request_is_delayed(monkeypatch: pytest.MonkeyPatch) -> None:
    client_options(KafkaSettings())
    client = AIOKafkaClient()
    monkeypatch.setattr("streams_app.kafka.patches.metadata.PAUSE_SECONDS", 3_600)
    await client._metadata_update(ClusterMetadata(), set())
    second = asyncio.create_task(client._metadata_update(ClusterMetadata(), set()))
    await asyncio.wait({second}, timeout=0.05)
    was_waiting = not second.done()
    client.streams_app_pause.set()
    await second

    assert was_waiting
