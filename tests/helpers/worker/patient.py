"""A worker that takes 20 records at a time and does not look by itself whether it may go on: it has to be woken.

It may have few records in memory, and ends if it has more: the records of one partition, and those of a fetch in progress.

Run as ``python -m tests.helpers.worker.patient worker ...``.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from typing import Any
from unittest import mock

from streams_app.delivery.batch import Batch
from streams_app.folding.agents import processors
from streams_app.folding.agents.processor import FoldProcessor
from streams_app.kafka import consumer
from streams_app.kafka.consumer import FoldingConsumer
from streams_app.worker import faust_app

RECORDS = 20
MAX_IN_FLIGHT = 30
FOLD_SECONDS = 0.02
STUCK = "PATIENT_STUCK"
"""Environment variable with the digits of partitions that are never folded."""
WAIT_SECONDS = 3_600.0


class PatientProcessor(FoldProcessor):
    """A slow processor, so that other partitions are read meanwhile."""

    async def fold_once(self, batch: Batch) -> None:
        await asyncio.sleep(WAIT_SECONDS if str(batch.tp.partition) in os.environ.get(STUCK, "") else FOLD_SECONDS)  # a slow fold
        await super().fold_once(batch)


class PatientConsumer(FoldingConsumer):
    """A consumer that waits for an hour instead of a second."""

    def getmany(self, timeout: float) -> AsyncIterator[tuple[Any, Any]]:
        assert self._in_flight() <= MAX_IN_FLIGHT + 2 * RECORDS, f"{self._in_flight()} records are held"
        return super().getmany(WAIT_SECONDS)

    async def sleep(self, n: float, **options: Any) -> None:
        """Sleep longer than Faust, which sleeps for a second if every partition is paused."""
        await super().sleep(WAIT_SECONDS if n == 1 else n, **options)


if __name__ == "__main__":
    from streams_app.cli import main

    with (
        mock.patch.multiple(faust_app, FoldingConsumer=PatientConsumer, MAX_POLL_RECORDS=RECORDS),
        mock.patch.object(consumer, "BUFFERED_RECORDS", MAX_IN_FLIGHT),
        mock.patch.object(processors, "FoldProcessor", PatientProcessor),
    ):
        main()
