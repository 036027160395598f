"""Queries the ids that the broker gave topics when they were created, which identify their logs.

Offsets do not identify a log. If a topic is deleted, created again and filled, a client continues reading without an error; only
the topic id shows the change. aiokafka requests metadata in a version without ids (5), so this module has its own request (version
10, Kafka 2.8 and newer).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, Protocol
from uuid import UUID

from aiokafka.errors import IncompatibleBrokerVersion, NodeNotReadyError, for_code
from aiokafka.protocol.api import Request, RequestStruct, Response
from aiokafka.protocol.types import (
    Boolean,
    CompactArray,
    CompactString,
    Int16,
    Int32,
    Schema,
)

from streams_app.delivery.fingerprints import Incarnation

METADATA_KEY: Final = 3
UNKNOWN: Final = ""
"""The id of a topic whose broker has no topic ids."""


class _Uuid:
    """A UUID as sent by the broker; sixteen zero bytes mean that there is no id."""

    @staticmethod
    def encode(value: UUID) -> bytes:
        return value.bytes

    @staticmethod
    def decode(data: Any) -> UUID:
        return UUID(bytes=data.read(16))

    repr = staticmethod(repr)


class _Tags:
    """Tagged fields (KIP-482): none is sent, and all received ones are skipped. aiokafka 0.15 no longer has a type for them."""

    @staticmethod
    def encode(_: Any) -> bytes:
        return b"\0"

    @classmethod
    def decode(cls, data: Any) -> dict[int, bytes]:
        return {cls._number(data): data.read(cls._number(data)) for _ in range(cls._number(data))}

    @staticmethod
    def _number(data: Any) -> int:
        """Read an unsigned varint: seven bits per byte, the lowest first."""
        found, shift = 0, 0
        while True:
            (byte,) = data.read(1)
            found |= (byte & 0x7F) << shift
            if byte < 0x80:  # noqa: PLR2004  # the last byte has no high bit
                return found
            shift += 7

    repr = staticmethod(repr)


_PARTITION: Final = Schema(
    ("error_code", Int16), ("partition", Int32), ("leader", Int32), ("leader_epoch", Int32), ("replicas", CompactArray(Int32)),
    ("isr", CompactArray(Int32)), ("offline_replicas", CompactArray(Int32)), ("tags", _Tags),
)  # fmt: skip
_TOPIC: Final = Schema(
    ("error_code", Int16), ("topic", CompactString("utf-8")), ("topic_id", _Uuid), ("is_internal", Boolean),
    ("partitions", CompactArray(_PARTITION)), ("authorized_operations", Int32), ("tags", _Tags),
)  # fmt: skip
_BROKER: Final = Schema(
    ("node_id", Int32), ("host", CompactString("utf-8")), ("port", Int32), ("rack", CompactString("utf-8")), ("tags", _Tags),
)  # fmt: skip
_WANTED: Final = Schema(("topic_id", _Uuid), ("name", CompactString("utf-8")), ("tags", _Tags))


class _MetadataResponse(Response):
    API_KEY = METADATA_KEY
    API_VERSION = 10
    SCHEMA = Schema(
        ("throttle_time_ms", Int32), ("brokers", CompactArray(_BROKER)), ("cluster_id", CompactString("utf-8")),
        ("controller_id", Int32), ("topics", CompactArray(_TOPIC)), ("authorized_operations", Int32), ("tags", _Tags),
    )  # fmt: skip


class _MetadataRequestStruct(RequestStruct):
    API_KEY = METADATA_KEY
    API_VERSION = 10
    FLEXIBLE_VERSION = True
    RESPONSE_TYPE = _MetadataResponse
    SCHEMA = Schema(
        ("topics", CompactArray(_WANTED)), ("allow_auto_topic_creation", Boolean), ("with_cluster_operations", Boolean),
        ("with_topic_operations", Boolean), ("tags", _Tags),
    )  # fmt: skip


class _MetadataRequest(Request[_MetadataRequestStruct]):
    API_KEY = METADATA_KEY

    def __init__(self, topics: Sequence[str], with_rights: bool) -> None:
        self._topics = topics
        self._with_rights = with_rights

    def build(self, request_struct_class: type[_MetadataRequestStruct]) -> _MetadataRequestStruct:
        return request_struct_class([(UUID(int=0), topic, {}) for topic in self._topics], False, False, self._with_rights, {})


class Client(Protocol):
    """The methods of aiokafka's ``AIOKafkaClient`` that this module uses."""

    def get_random_node(self) -> int | None:
        """Return the id of a known broker; None if no broker is known."""

    async def send(self, node_id: int, request: Any) -> Any: ...


async def topic_ids(client: Client, topics: Sequence[str]) -> dict[str, str]:
    """Return each topic's id by name, as text; :data:`UNKNOWN` before Kafka 2.8. The query creates no topic.

    Raises:
        KafkaError: The broker is not available, or a topic does not exist.
    """
    return {topic: found for topic, (found, _) in (await _asked(client, topics)).items()}


async def incarnations(client: Client, topic: str) -> dict[int, Incarnation]:
    """Return the topic id and leader epoch of each partition, by partition number; empty before Kafka 2.8."""
    found, epochs = (await _asked(client, [topic]))[topic]
    return {number: Incarnation(found, epoch) for number, epoch in epochs.items()}


async def _asked(client: Client, topics: Sequence[str]) -> dict[str, tuple[str, dict[int, int]]]:
    """Return for each topic its id, and the leader epoch of each of its partitions by partition number."""
    answer = await described(client, topics)
    if answer is None:
        return {topic: (UNKNOWN, {}) for topic in topics}
    for code, name, *_ in answer:
        if code:
            raise for_code(code)(name)
    return {
        name: (str(found) if found.int else UNKNOWN, {number: epoch for _, number, _, epoch, *_ in partitions})
        for _, name, found, _, partitions, *_ in answer
    }


async def described(client: Client, topics: Sequence[str], *, with_rights: bool = False) -> list[Any] | None:
    """Return a tuple with the fields of ``_TOPIC`` for each topic; None before Kafka 2.8. The query creates no topic."""
    node = client.get_random_node()
    if node is None:
        raise NodeNotReadyError("no broker is known")
    try:
        answer = await client.send(node, _MetadataRequest(topics, with_rights))
    except (NotImplementedError, IncompatibleBrokerVersion):
        return None
    return list(answer.topics)
