"""Patch of aiokafka's metadata requests: they never create a topic, and are not repeated without a pause.

aiokafka (0.14, ``protocol/metadata.py``) allows the broker to create each topic in a request. With ``auto.create.topics.enable``,
which is Kafka's default, the broker creates it with one partition, even for a command that only reads, or a worker whose source
was deleted. While a partition has no leader, aiokafka's producer (``producer/sender.py``) repeats the request as soon as it is
answered, several hundred times a second.
"""

from __future__ import annotations

import asyncio
from functools import wraps
from typing import Any

from aiokafka.client import AIOKafkaClient
from aiokafka.protocol.metadata import MetadataRequest

FIRST_VERSION_THAT_CAN_FORBID = 4
PAUSE_SECONDS = 0.1
"""Minimum time between two metadata requests of one client."""

_PAUSE = "streams_app_pause"
"""Name of an attribute added to clients: an event that is set when the pause is over."""


def limit_metadata_requests() -> None:
    """Patch the clients of this process. Further calls have no effect."""
    if hasattr(MetadataRequest.build, "__wrapped__"):
        return
    ask, update = MetadataRequest.build, AIOKafkaClient._metadata_update

    @wraps(ask)
    def build(self: MetadataRequest, version: Any) -> Any:
        self._allow_auto_topic_creation = False
        if version.API_VERSION < FIRST_VERSION_THAT_CAN_FORBID and self._topics:
            self._topics = None  # a request for all topics creates none
        return ask(self, version)

    @wraps(update)
    async def metadata_update(self: AIOKafkaClient, *args: Any) -> Any:
        pause: asyncio.Event | None = getattr(self, _PAUSE, None)
        if pause is not None:
            await pause.wait()
        try:
            return await update(self, *args)
        finally:
            over = asyncio.Event()
            setattr(self, _PAUSE, over)
            asyncio.get_running_loop().call_later(PAUSE_SECONDS, over.set)

    MetadataRequest.build = build
    AIOKafkaClient._metadata_update = metadata_update
