"""Ends, beginnings and committed offsets of the sources, asked of the broker on a connection of its own.

A reader that is paused or cut off still "knows" the end its last fetch named: in an outage that says nothing. This client
neither reads nor joins the group, and asks for topics by name without ever having one created.
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
from streams_app.delivery.group_consumer import Committed
from streams_app.kafka.client import client_options
from streams_app.kafka.log_ends import EARLIEST, LATEST, READ_UNCOMMITTED, ask_offsets, by_topic
from streams_app.settings import KafkaSettings

REQUEST_MS: Final = 5_000
CLOSE_SECONDS: Final = 2.0
THOROUGH_EVERY: Final = 5
"""Ends are asked for each time; partitions, leaders, beginnings and commits, which seldom change, each fifth time."""


class SourceEnds:
    """The partitions of some topics, as the broker describes them; its last answers are kept while it is away.

    Attributes:
        ends: End of each partition, as ``read_committed`` sees it.
        high: Its high watermark: behind an open transaction it is beyond the end.
        begins: First offset of each partition.
        committed: Last commit of the group in each partition.
        missing: Topics that do not exist.
    """

    def __init__(self, kafka: KafkaSettings, group: str, topics: Sequence[str]) -> None:
        """Connects nothing yet; without topics it asks only whether the broker answers."""
        self.ends: dict[TP, int] = {}
        self.high: dict[TP, int] = {}
        self.begins: dict[TP, int] = {}
        self.committed: dict[TP, Committed] = {}
        self.missing: set[str] = set()
        self._kafka = kafka
        self._group = group
        self._topics = list(topics)
        self._client: AIOKafkaClient | None = None
        self._leaders: dict[TP, int] = {}
        self._asked = 0

    async def ask_once(self) -> None:
        """Asks the broker once; after a failure over a new connection.

        Raises:
            KafkaError, OSError, TimeoutError: The broker has not answered for every partition that exists.
        """
        try:
            client = self._client or await self._connect()
            # Where no leader is known there is nobody else who could show that the broker answers.
            if self._asked % THOROUGH_EVERY == 0 or not self._leaders:
                await self._ask_thoroughly(client)
            await ask_offsets(client, self._leaders, LATEST, self.ends)
            await ask_offsets(client, self._leaders, LATEST, self.high, READ_UNCOMMITTED)
        except BaseException:  # cancelled at a deadline, too: a reply that comes later would be taken for the next one's
            self._asked = 0
            await self.close()
            raise
        self._asked += 1

    async def close(self) -> None:
        """Closes the connection, also one that is broken."""
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
        """Asks which partitions there are and who leads them, where they begin, and what is committed."""
        client.cluster.update_metadata(await client.send(client.get_random_node(), MetadataRequest(self._topics, False)))
        known = client.cluster.topics(exclude_internal_topics=False) | client.cluster.unauthorized_topics
        self.missing = set(self._topics) - known
        if not self._topics:
            return  # a group that nobody belongs to need not be one that this client may look at
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
        # Beside an empty list; the first version of the reply has no such field.
        if code := getattr(reply, "error_code", 0):
            raise for_code(code)(self._group)
        self.committed |= {
            TP(topic, partition): Committed(offset, metadata or "")
            for topic, partitions in reply.topics
            for partition, offset, metadata, error in partitions
            if not error and offset >= 0
        }
