"""Dramatiq with Redis and threads."""

from __future__ import annotations

import os
import sys

import dramatiq
from dramatiq.brokers.redis import RedisBroker

from benchmarks.peers.note import NAME, SERVER, note_sync

broker = RedisBroker(url=os.environ[SERVER], namespace=os.environ[NAME])
dramatiq.set_broker(broker)


@dramatiq.actor
def noted(number: int) -> None:
    """Notes an event."""
    note_sync(number)


if __name__ == "__main__":
    for each in range(int(sys.argv[1])):
        noted.send(each)
