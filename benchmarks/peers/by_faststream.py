"""FastStream with Kafka; with ``PEERS_LATE``, an event is acknowledged after its call instead of before it (the default)."""

from __future__ import annotations

import asyncio
import os

from faststream import AckPolicy, FastStream
from faststream.kafka import KafkaBroker

from benchmarks.peers.recording import NAME, SERVER, record_event

WORKERS = int(os.environ.get("PEERS_WORKERS", "1"))
broker = KafkaBroker(os.environ[SERVER])
app = FastStream(broker)


@broker.subscriber(
    os.environ[NAME],
    group_id=os.environ[NAME],
    auto_offset_reset="earliest",
    session_timeout_ms=10_000,
    max_workers=WORKERS,
    ack_policy=AckPolicy.ACK if "PEERS_LATE" in os.environ else AckPolicy.ACK_FIRST,
)
async def recorded(event: dict[str, int | str]) -> None:
    """Notes an event."""
    await record_event(int(event["number"]))


if __name__ == "__main__":
    asyncio.run(app.run())
