"""Celery with Redis and threads; with ``PEERS_LATE``, a task is acknowledged after its call instead of before it."""

from __future__ import annotations

import os
import sys

from celery import Celery

from benchmarks.peers.recording import NAME, SERVER, record_event_sync

app = Celery(os.environ[NAME], broker=os.environ[SERVER])
app.conf.update(
    task_ignore_result=True,
    task_default_queue=os.environ[NAME],
    task_acks_late="PEERS_LATE" in os.environ,
    worker_hijack_root_logger=False,
)


@app.task(name="note")
def recorded(number: int) -> None:
    """Notes an event."""
    record_event_sync(number)


if __name__ == "__main__":
    with app.producer_pool.acquire() as producer:
        for each in range(int(sys.argv[1])):
            recorded.apply_async((each,), producer=producer)
