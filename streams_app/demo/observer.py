"""Observes the output of the demo: folded records and dead letters in their topics, and the metrics of the worker."""

from __future__ import annotations

import asyncio
from collections import deque
from dataclasses import dataclass, field
from typing import Any

import aiohttp
import orjson
from aiokafka import AIOKafkaConsumer, TopicPartition
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

from streams_app.fold import Fold
from streams_app.kafka.client import client_options
from streams_app.settings import Settings

LATEST = 6


@dataclass(slots=True)
class FoldOutput:
    """The output of a fold so far: counts, and the newest records.

    Attributes:
        records: Number of folded records, without duplicates.
        redelivered: Number of duplicates: records with an id that was read before.
        largest: The record with the most events; records that were split for their size do not count. None: there is none yet.
    """

    records: int = 0
    events: int = 0
    redelivered: int = 0
    dead_letters: int = 0
    latest: deque[dict[str, Any]] = field(default_factory=lambda: deque(maxlen=LATEST))
    largest: dict[str, Any] | None = None


class Observer:
    """Reads the folded records and dead letters of one fold from their topics, and counts them."""

    def __init__(self, settings: Settings, fold: Fold) -> None:
        self.seen = FoldOutput()
        self._fold = fold
        self.ids: set[str] = set()
        self._options = client_options(settings.kafka)
        self._consumer: AIOKafkaConsumer | None = None
        self._task: asyncio.Task[None] | None = None

    async def start(self, partitions: int) -> None:
        """Start reading the output topic and the dead-letter topic from their beginning, in the background."""
        # Not created in the constructor: a consumer that is never stopped logs an error when it is garbage-collected.
        self._consumer = consumer = AIOKafkaConsumer(**self._options, auto_offset_reset="earliest", fetch_max_wait_ms=200)
        await consumer.start()
        consumer.assign(
            [
                TopicPartition(topic, number)
                for topic in (self._fold.output, self._fold.dead_letters)
                for number in range(partitions)
            ]
        )
        self._task = asyncio.create_task(self._read(consumer), name="observer")

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        if self._consumer is not None:
            await self._consumer.stop()

    async def _read(self, consumer: AIOKafkaConsumer) -> None:
        while True:
            fetched = await consumer.getmany(timeout_ms=200)
            for tp, records in fetched.items():
                for record in records:
                    if tp.topic == self._fold.dead_letters:
                        self.seen.dead_letters += 1
                    else:
                        self._observe(orjson.loads(record.value))

    def _observe(self, record: dict[str, Any]) -> None:
        fold = record["fold"]
        if fold["id"] in self.ids:
            self.seen.redelivered += 1
            return
        self.ids.add(fold["id"])
        self.seen.records += 1
        self.seen.events += fold["events"]
        self.seen.latest.append(record)
        largest = self.seen.largest
        if "#" not in fold["id"] and (largest is None or largest["fold"]["events"] < fold["events"]):
            self.seen.largest = record


@dataclass(frozen=True, slots=True)
class WorkerGauges:
    """Those metrics of the worker that the demo shows or checks; a metric that is missing counts as 0.

    ``recomputed`` and ``retried`` are of the subscriber, ``read_store_lag`` counts folded records.
    """

    open_groups: int = 0
    lag_events: int = 0
    values_written: int = 0
    values_unchanged: int = 0
    read_store_lag: int = 0
    recomputed: int = 0
    retried: int = 0
    journaled: int = 0
    journal_bytes: int = 0


async def scrape(session: aiohttp.ClientSession, url: str) -> WorkerGauges | None:
    """Read the metrics of the worker; return None if it does not answer."""
    try:
        async with session.get(f"{url}/metrics") as reply:
            text = await reply.text()
    except (aiohttp.ClientError, TimeoutError):
        return None
    samples = [sample for family in text_string_to_metric_families(text) for sample in family.samples]
    return WorkerGauges(
        open_groups=_total(samples, "streams_app_open_groups"),
        lag_events=_total(samples, "streams_app_lag_events"),
        values_written=_total(samples, "streams_app_read_store_writes_total", result="written"),
        values_unchanged=_total(samples, "streams_app_read_store_writes_total", result="unchanged"),
        read_store_lag=_total(samples, "streams_app_read_store_lag_records"),
        recomputed=_total(samples, "streams_app_subscriber_finished_total", result="done"),
        retried=_total(samples, "streams_app_subscriber_attempts_total", outcome="error"),
        journaled=_total(samples, "streams_app_journal_entries_total"),
        journal_bytes=_total(samples, "streams_app_journal_bytes"),
    )


def _total(samples: list[Sample], name: str, **labels: str) -> int:
    return int(sum(s.value for s in samples if s.name == name and labels.items() <= s.labels.items()))
