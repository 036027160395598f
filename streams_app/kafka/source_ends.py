"""Reads the end, first offset and committed offset of each partition of the source topics, on a separate connection.

A reader that is paused or disconnected only knows the end in its last fetch reply, which is outdated in an outage. This client
neither fetches nor joins the group, and its requests never create a topic.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence
from typing import Final

from aiokafka.client import AIOKafkaClient, CoordinationType
from aiokafka.errors import KafkaConnectionError, KafkaError, for_code
from aiokafka.protocol.commit import OffsetFetchRequest
from aiokafka.protocol.metadata import MetadataRequest
from aiokafka.structs import TopicPartition

from streams_app.delivery.batch import TP
from streams_app.delivery.group_consumer import PartitionCommit
from streams_app.kafka.client import client_options
from streams_app.kafka.log_ends import EARLIEST, LATEST, READ_UNCOMMITTED, ask_offsets, by_topic
from streams_app.settings import KafkaSettings

REQUEST_MS: Final = 5_000
CLOSE_SECONDS: Final = 2.0
THOROUGH_EVERY: Final = 5
"""The first and every fifth call of :meth:`SourceEnds.ask_once` also query partitions, leaders, first offsets and commits.

The other calls only query the end offsets.
"""


class SourceEnds:
    """End offsets, first offsets and commits of the partitions of some topics, as the broker last reported them.

    Attributes:
        ends: Last stable offset of each partition.
        high: High watermark of each partition.
        committed: Last commit of the consumer group ``group`` in each partition.
    """

    def __init__(self, kafka: KafkaSettings, group: str, topics: Sequence[str]) -> None:
        """Create a client, without connecting. If ``topics`` is empty, the client only checks that the broker answers."""
        self.ends: dict[TP, int] = {}
        self.high: dict[TP, int] = {}
        self.begins: dict[TP, int] = {}
        self.committed: dict[TP, PartitionCommit] = {}
        self.missing: set[str] = set()
        self._kafka = kafka
        self._group = group
        self._topics = list(topics)
        self._client: AIOKafkaClient | None = None
        self._leaders: dict[TP, int] = {}
        self._asked = 0

    async def ask_once(self) -> None:
        """Query the end offsets once, and store them in the attributes; some calls query more, see :data:`THOROUGH_EVERY`.

        After a failure, the attributes retain the last replies, and the next call opens a new connection.

        Raises:
            KafkaError, OSError, TimeoutError: The broker has not answered for every existing partition.
        """
        try:
            client = self._client or await self._connect()
            # Without a known leader, this is the only request that shows whether the broker answers.
            if self._asked % THOROUGH_EVERY == 0 or not self._leaders:
                await self._ask_thoroughly(client)
            await ask_offsets(client, self._leaders, LATEST, self.ends)
            await ask_offsets(client, self._leaders, LATEST, self.high, READ_UNCOMMITTED)
        except BaseException:  # Also on cancellation at a deadline: the late reply could be taken for that of the next request.
            self._asked = 0
            await self.close()
            raise
        self._asked += 1

    async def close(self) -> None:
        """Close the connection, even if it is broken."""
        client, self._client = self._client, None
        if client is not None:
            with contextlib.suppress(KafkaError, OSError, TimeoutError):
                async with asyncio.timeout(CLOSE_SECONDS):
                    await client.close()

    async def _connect(self) -> AIOKafkaClient:
        self._client = AIOKafkaClient(**client_options(self._kafka), client_id="watchdog", request_timeout_ms=REQUEST_MS)
        try:
            await self._client.bootstrap()
        except KafkaConnectionError as error:
            raise KafkaConnectionError("cannot connect") from error
        return self._client

    async def _ask_thoroughly(self, client: AIOKafkaClient) -> None:
        """Read which topics exist, and the leader, the first offset and the commit of each of their partitions."""
        client.cluster.update_metadata(await client.send(client.get_random_node(), MetadataRequest(self._topics, False)))
        in_cluster = client.cluster.topics(exclude_internal_topics=False) | client.cluster.unauthorized_topics
        self.missing = set(self._topics) - in_cluster
        if not self._topics:
            return  # this client may lack the right to describe a group that is not used
        self._leaders = {
            TP(topic, partition): client.cluster.leader_for_partition(TopicPartition(topic, partition))
            for topic in self._topics
            for partition in client.cluster.partitions_for_topic(topic) or ()
        }
        await ask_offsets(client, self._leaders, EARLIEST, self.begins)
        coordinator = await client.coordinator_lookup(CoordinationType.GROUP, self._group)
        reply = await client.send(
            coordinator, OffsetFetchRequest(self._group, by_topic((tp, tp.partition) for tp in self._leaders))
        )
        # A reply with an error has an empty list; replies of the first version have no field for errors.
        if code := getattr(reply, "error_code", 0):
            raise for_code(code)(self._group)
        self.committed |= {
            TP(topic, partition): PartitionCommit(offset, metadata or "")
            for topic, partitions in reply.topics
            for partition, offset, metadata, error in partitions
            if not error and offset >= 0
        }
