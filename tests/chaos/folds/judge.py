"""The judge of a chaos run: reads topics, dead letters, committed offsets and the read store; never Redis, never logs."""

from __future__ import annotations

import asyncio
import contextlib
import json
import sqlite3
from dataclasses import dataclass, field

from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.errors import KafkaError
from aiokafka.structs import ConsumerRecord

from tests.chaos.folds.load import Ledger
from tests.chaos.stage import APP_ID, PARTITIONS, Stage
from tests.helpers.folding.checker import Outcome

SAMPLE_SECONDS = 0.5
LEAST_EVENTS = 1_000
LEAST_RECORDS = 100


@dataclass
class Sample:
    """Committed offsets at one time, and the size of the output just after it."""

    committed: dict[int, int]
    output_ends: dict[TopicPartition, int]


@dataclass
class Judge:
    """Reads the results of one run, and judges them at the end."""

    stage: Stage
    outcome: Outcome = field(default_factory=Outcome)
    dead: dict[str, int] = field(default_factory=dict)
    samples: list[Sample] = field(default_factory=list)
    went_back: list[str] = field(default_factory=list)
    _first_at: dict[str, tuple[TopicPartition, int]] = field(default_factory=dict)
    _dead_at: dict[str, tuple[TopicPartition, int]] = field(default_factory=dict)
    _tasks: list[asyncio.Task[None]] = field(default_factory=list)

    def start(self) -> None:
        """Start reading and sampling."""
        self._tasks = [asyncio.create_task(self._read()), asyncio.create_task(self._sample())]

    async def stop(self) -> None:
        """End."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def is_complete(self, ledger: Ledger) -> bool:
        """Whether every acknowledged event has been emitted."""
        return ledger.sent.keys() <= self.outcome.ids_of.keys() and ledger.bad <= self.dead.keys()

    def faults(self, ledger: Ledger) -> list[str]:
        """Return every violation."""
        everything = ledger.sent | {name: group for name, group in ledger.perhaps.items() if name in self.outcome.ids_of}
        found = self.outcome.faults(everything, is_exact=self.stage.kept_data)
        if missing := ledger.bad - self.dead.keys():
            found.append(f"{len(missing)} rejected events have no dead letter, e.g. {sorted(missing)[:5]}")
        if invented := self.dead.keys() - ledger.bad - ledger.perhaps_bad:
            found.append(f"{len(invented)} dead letters of events that were not sent, e.g. {sorted(invented)[:5]}")
        if len(ledger.sent) < LEAST_EVENTS or len(self.outcome.values) < LEAST_RECORDS:
            found.append(f"only {len(ledger.sent)} events and {len(self.outcome.values)} records: this proves nothing")
        return [*found, *self._committed_too_early(ledger), *self.went_back[:5], *self._read_store_faults()]

    def _committed_too_early(self, ledger: Ledger) -> list[str]:
        """Find events below a committed offset that were not delivered before the commit was observed."""
        where = self._first_at | self._dead_at
        by_partition: dict[int, list[tuple[int, str]]] = {number: [] for number in range(PARTITIONS)}
        for name, (partition, offset) in ledger.positions.items():
            by_partition[partition].append((offset, name))
        faults = []
        for events in by_partition.values():
            events.sort()
        done = dict.fromkeys(by_partition, 0)
        for sample in self.samples:
            for partition, committed in sample.committed.items():
                events = by_partition[partition]
                # Each event is judged by the first sample that covers it: later samples include more of the output.
                while done[partition] < len(events) and events[done[partition]][0] < committed:
                    name = events[done[partition]][1]
                    at = where.get(name)
                    if at is None or at[1] >= sample.output_ends.get(at[0], 0):
                        faults.append(f"{name} below the committed offset {committed} of partition {partition}, not delivered")
                    done[partition] += 1
        return faults[:5]

    def rebuilt(self) -> dict[tuple[str, str], tuple[int, object]]:
        """Return the required contents of the read store: for each cell, the value of the highest version."""
        cells: dict[tuple[str, str], tuple[int, object]] = {}
        for fold_id, value in self.outcome.values.items():
            group, version = self.outcome.groups[fold_id].decode(), value["fold"]["version"]
            for name, carried in value["metrics"].items():
                if version > cells.get((group, name), (-1, None))[0]:
                    cells[group, name] = version, carried
        return cells

    def stored(self) -> dict[tuple[str, str], tuple[int, object]]:
        """Return the actual contents of the read store."""
        with contextlib.closing(sqlite3.connect(self.stage.folder / "read.db", timeout=10)) as connection:
            rows = connection.execute("SELECT group_key, name, version, value FROM folded_values").fetchall()
        return {(group, name): (version, value) for group, name, version, value in rows}

    def _read_store_faults(self) -> list[str]:
        rebuilt, stored = self.rebuilt(), self.stored()
        wrong = [cell for cell in rebuilt.keys() | stored.keys() if rebuilt.get(cell) != stored.get(cell)]
        return [f"read store differs from a rebuild in {len(wrong)} cells, e.g. {wrong[:3]}"] if wrong else []

    async def _read(self) -> None:
        consumer = AIOKafkaConsumer(bootstrap_servers=self.stage.bootstrap, auto_offset_reset="earliest")
        await consumer.start()
        try:
            consumer.assign(_partitions("folded") + _partitions("dead"))
            while True:
                with contextlib.suppress(KafkaError):
                    for tp, records in (await consumer.getmany(timeout_ms=200)).items():
                        for record in records:
                            self._add(tp, record)
        finally:
            await consumer.stop()

    def _add(self, tp: TopicPartition, record: ConsumerRecord) -> None:
        if tp.topic == "dead":
            name = (record.value or b"").decode().removeprefix("bad ")
            self.dead[name] = self.dead.get(name, 0) + 1
            self._dead_at.setdefault(name, (tp, record.offset))
            return
        self.outcome.add(record)
        for name in json.loads(record.value)["metrics"]:
            self._first_at.setdefault(name, (tp, record.offset))

    async def _sample(self) -> None:
        versions: dict[tuple[str, str], int] = {}
        sources, outputs = _partitions("events"), _partitions("folded") + _partitions("dead")
        consumer = AIOKafkaConsumer(bootstrap_servers=self.stage.bootstrap, group_id=APP_ID, enable_auto_commit=False)
        await consumer.start()
        try:
            while True:
                await asyncio.sleep(SAMPLE_SECONDS)  # between two samples
                with contextlib.suppress(KafkaError, TimeoutError):
                    async with asyncio.timeout(10):
                        found = await consumer._coordinator.fetch_committed_offsets(sources)
                        committed = {tp.partition: position.offset for tp, position in found.items() if position.offset >= 0}
                        ends = await consumer.end_offsets(outputs)
                    if self.stage.is_apache:  # the embedded broker reports wrong end offsets
                        self.samples.append(Sample(committed, ends))
                now = await asyncio.to_thread(self.stage.versions)
                for cell, version in now.items():
                    if version < versions.get(cell, 0):
                        self.went_back.append(f"read store went back: {cell} from {versions[cell]} to {version}")
                versions = versions | now
        finally:
            await consumer.stop()


def _partitions(topic: str) -> list[TopicPartition]:
    return [TopicPartition(topic, number) for number in range(PARTITIONS)]
