"""Coalesces records that are sent concurrently into one request per partition.

A broker answers a request in a few milliseconds and accepts one at a time per partition, so one request for each event would reach
only some hundred events a second. Records that arrive while a request of their partition is in flight are sent together in the next
one. The first record is sent at once, without a linger time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Final, TypeAlias

from aiokafka.errors import KafkaTimeoutError, ProducerClosed

from streams_app.delivery.batch import TP
from streams_app.delivery.producer import Outcomes, OutgoingRecord
from streams_app.kafka.producer import AckedProducer

MAX_TOGETHER: Final = 1_000
"""Maximum number of records in one request."""

_Line: TypeAlias = list[tuple[OutgoingRecord, asyncio.Future[BaseException | None]]]
"""Queued records of one partition, each with a future for its outcome."""


class CoalescingProducer:
    """Producer that combines records of concurrent sends into larger requests of an :class:`AckedProducer`.

    A partition that cannot be written does not delay the combined requests to other partitions.
    """

    def __init__(self, producer: AckedProducer, send_seconds: float) -> None:
        self._producer = producer
        self._send_seconds = send_seconds
        self._lines: dict[TP, _Line] = {}
        self._tasks: dict[TP, asyncio.Task[None]] = {}

    async def stop(self) -> None:
        """Close all connections within a few seconds; pending sends fail."""
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        # A task that is cancelled before its first step does not run its finally block, so the futures are resolved here.
        for line in self._lines.values():
            _resolve(line, [ProducerClosed()] * len(line))
        if tasks:
            await asyncio.wait(tasks)
        await self._producer.stop()

    async def send(self, records: Sequence[OutgoingRecord]) -> Outcomes:
        """Send a single record whose partition is known in a request that it shares with other such calls, and others at once.

        After ``send_seconds``, including the wait for the previous request, the outcome is a ``KafkaTimeoutError``.
        """
        tp = self._producer.next_partition(records[0]) if len(records) == 1 else None
        if tp is None:
            return await self._producer.send(records)
        outcome: asyncio.Future[BaseException | None] = asyncio.get_running_loop().create_future()
        self._lines.setdefault(tp, []).append((records[0]._replace(partition=tp.partition), outcome))
        if tp not in self._tasks:
            self._tasks[tp] = asyncio.create_task(self._send_line(tp), name=f"send to {tp}")
        try:
            async with asyncio.timeout(self._send_seconds):
                return [await outcome]
        except TimeoutError:
            return [KafkaTimeoutError(f"not acknowledged within {self._send_seconds:g} s")]

    async def _send_line(self, tp: TP) -> None:
        line = self._lines[tp]
        try:
            while line:
                # Skip records whose caller has timed out or was cancelled.
                going = [one for one in line[:MAX_TOGETHER] if not one[1].done()]
                del line[:MAX_TOGETHER]
                if going:
                    await self._send_together(going)
        finally:
            del self._lines[tp], self._tasks[tp]
            _resolve(line, [ProducerClosed()] * len(line))

    async def _send_together(self, going: _Line) -> None:
        outcomes: Outcomes = [ProducerClosed()] * len(going)
        try:
            outcomes = await self._producer.send([record for record, _ in going])
        except Exception as error:  # noqa: BLE001  # each waiting caller raises it
            outcomes = [error] * len(going)
        finally:
            _resolve(going, outcomes)


def _resolve(line: _Line, outcomes: Outcomes) -> None:
    for (_, outcome), result in zip(line, outcomes, strict=True):
        if not outcome.done():
            outcome.set_result(result)
