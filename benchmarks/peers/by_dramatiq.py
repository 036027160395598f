"""Dramatiq with Redis and threads."""

from __future__ import annotations

import os
import sys

import dramatiq
from dramatiq.brokers.redis import RedisBroker

from benchmarks.peers.recording import NAME, SERVER, record_event_sync

broker = RedisBroker(url=os.environ[SERVER], namespace=os.environ[NAME])
dramatiq.set_broker(broker)


@dramatiq.actor
def recorded(number: int) -> None:
    """Notes an event."""
    record_event_sync(number)


if __name__ == "__main__":
    for each in range(int(sys.argv[1])):
        recorded.send(each)
