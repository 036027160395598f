"""The dead letters of a read store: written before its progress passes them, and applied after a fix."""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from aiokafka import AIOKafkaConsumer
from aiokafka.structs import ConsumerRecord

from streams_app.delivery.batch import TP
from streams_app.delivery.rejected_event import RejectedEvent
from streams_app.errors import TryAgainError
from streams_app.health.metrics import Metrics
from streams_app.operations.reset_read_store import reset_versions
from streams_app.read_store.core.merge import BEFORE_RESET, Cell, CellChange
from streams_app.read_store.core.store import CheckpointStep, Counts, NotStorableError
from streams_app.read_store.sync.dead_letters import StoreDeadLetterWriter
from streams_app.read_store.sync.store_sync import StoreSync
from streams_app.settings import Settings
from tests.conftest import KafkaServer, Names
from tests.helpers.cli.commands import run
from tests.helpers.kafka.records import Raw
from tests.helpers.kafka.topics import create_topics, produce, read_topic
from tests.helpers.manual_clock import ManualClock
from tests.helpers.read_store.stores import P0, Postgres, StoreHarness, sync_on
from tests.helpers.waiting import wait_until
from tests.integration.read_store.reading import PARTITIONS, Member, PostgresReading

LIMIT_SECONDS = 60


def folded(names: Any, version: int = 1, group: str = "g") -> bytes:
    return json.dumps({"id": group, "m": names, "fold": {"name": "f", "version": version}}).encode()


@dataclass
class DeadLetterReading(PostgresReading):
    """A store in PostgreSQL with a dead-letter topic."""

    @property
    def dead(self) -> str:
        return f"{self.names.app_id}.read-store.dashboard.dead"

    async def kept(self, count: int) -> list[ConsumerRecord]:
        return await read_topic(self.bootstrap, self.dead, until=lambda found: len(found) >= count, timeout_seconds=LIMIT_SECONDS)

    def settings(self) -> Settings:
        return Settings.model_validate(self.config())


@pytest.fixture
async def reading(kafka: KafkaServer, names: Names, postgresql_url: str, tmp_path: Path) -> DeadLetterReading:
    made = DeadLetterReading(names, kafka.bootstrap_servers, tmp_path / "write.db", url=postgresql_url)
    await create_topics(kafka.bootstrap_servers, [made.topic, made.dead], PARTITIONS)
    return made


def headers_of(dead_letter: ConsumerRecord) -> dict[str, str]:
    return {name: value.decode() for name, value in dead_letter.headers}


async def settled(member: Member) -> None:
    await wait_until(lambda: member.lag() == 0, LIMIT_SECONDS, "everything is synced")


async def test_record_with_an_unstorable_value_is_a_dead_letter_and_its_other_names_are_written(
    reading: DeadLetterReading,
) -> None:
    bad = folded({"bad": "a\0b", "good": 1})
    harness = Postgres(reading.url)
    await harness.store.initialise()
    sent = [(b"g", bad), (b"g", b"no record"), (b"g", folded({"next": 2}, 2))]
    await produce(reading.bootstrap, reading.topic, sent, partition=1)
    async with reading.member() as member:
        kept = sorted(await reading.kept(2), key=lambda dead_letter: headers_of(dead_letter)["source-offset"])
        await wait_until(
            lambda: member.value("read_store_writes_total", store="dashboard", result="written") == 2, LIMIT_SECONDS, "written"
        )
        counted = [
            member.value("read_store_dead_letters_total", store="dashboard", reason=reason)
            for reason in ("not-storable", "not-a-record")
        ]
    rows = [(name, value) for _, name, value, *_ in await harness.rows()]
    await harness.close()
    first, second = (headers_of(dead_letter) for dead_letter in kept)

    assert [(b"g", bad), (b"g", b"no record")] == [(dead_letter.key, dead_letter.value) for dead_letter in kept]
    assert ("dashboard", reading.topic, "1", "0", "not-storable", "the value holds U+0000", reading.names.app_id) == tuple(
        first[name] for name in ("store", "source-topic", "source-partition", "source-offset", "reason", "error", "app-id")
    )
    assert ("1", "not-a-record", "not JSON") == (second["source-offset"], second["reason"], second["error"])
    assert "fold" not in first
    assert ([1, 1], [("good", "1"), ("next", "2")]) == (counted, rows)


async def test_progress_does_not_pass_an_unacknowledged_dead_letter(harness: StoreHarness) -> None:
    settings = Settings.model_validate({
        "app_id": "t",
        "kafka": {"bootstrap_servers": "127.0.0.1:1"},
        "folds": [{"name": "f", "source": "s", "group_key": "id", "changed": "m", "keep": "last", "quiet_period": "1s"}],
        "read_stores": [harness.settings.model_dump()],
    })  # fmt: skip
    sync = StoreSync(settings, settings.read_store(None), Metrics(settings), ManualClock(50))
    with pytest.raises(TryAgainError, match=r"t\.read-store\.dashboard\.dead does not acknowledge dead letters"):
        await sync_on(sync, [Raw(0, key=b"g", value=folded({"likes": 1})), Raw(1, key=b"g", value=b"no record")], 2)
    await sync.close()

    assert ({}, []) == (await harness.store.checkpoints(), await harness.rows())


async def test_dead_letter_is_not_repeated_while_the_store_is_awaited(reading: DeadLetterReading) -> None:
    settings = reading.settings()
    sync = StoreSync(settings, settings.read_store(None), Metrics(settings), ManualClock(50))
    records = [Raw(0, key=b"g", value=b"no record")]
    step = CheckpointStep(P0._replace(topic=reading.topic), None, 1)
    for _ in range(3):
        with pytest.raises(TryAgainError, match="read-store init"):
            await sync.sync_once(step, records)
    await sync.store.initialise()
    await sync.sync_once(step, records)
    await sync.sync_once(step._replace(after=1, to=2), [Raw(1, key=b"g", value=b"the last")])
    await sync.close()

    assert [b"no record", b"the last"] == [dead_letter.value for dead_letter in await reading.kept(2)]


async def test_value_rejected_while_writing_is_a_dead_letter_and_the_rest_is_written(reading: DeadLetterReading) -> None:
    settings = reading.settings()
    sync = StoreSync(settings, settings.read_store(None), Metrics(settings), ManualClock(50))
    await sync.store.initialise()
    apply = sync.store.apply

    async def numbers_only(changes: list[CellChange], step: CheckpointStep, now_ms: int) -> Counts:
        if wrong := {change.cell: "is a text" for change in changes if isinstance(change.value, str)}:
            raise NotStorableError(wrong)
        return await apply(changes, step, now_ms)

    sync.store.apply = numbers_only  # type: ignore[method-assign,assignment]  # a column of numbers only
    record = Raw(0, key=b"g", value=folded({"likes": 1, "shares": "x"}))
    result = await sync.sync_once(CheckpointStep(P0._replace(topic=reading.topic), None, 1), [record])
    await sync.close()
    (dead_letter,) = await reading.kept(1)

    assert (1, 1, "is a text") == (result.written, result.unstorable, headers_of(dead_letter)["error"])


async def test_older_value_of_a_batch_is_written_if_the_newer_one_cannot_be_stored(
    reading: DeadLetterReading,
) -> None:
    settings = reading.settings()
    harness = Postgres(reading.url)
    await harness.store.initialise()
    sync = StoreSync(settings, settings.read_store(None), Metrics(settings), ManualClock(50))
    records = [Raw(at, key=b"g", value=folded({"likes": value}, at + 1)) for at, value in enumerate([1, 2, "\0", "0\0"])]
    result = await sync.sync_once(CheckpointStep(P0._replace(topic=reading.topic), None, 4), records)
    await sync.close()
    rows = await harness.rows()
    await harness.close()

    assert [("g", "likes", "2", 2)] == [row[:4] for row in rows]
    assert (1, 1, 2) == (result.cells, result.written, result.unstorable)
    assert ["2", "3"] == sorted(headers_of(dead_letter)["source-offset"] for dead_letter in await reading.kept(2))


# Applied after a fix


def config_file(reading: DeadLetterReading, sql: str, source: str = "sql") -> str:
    path = reading.path.with_name("streams.toml")
    path.write_text(
        f'app_id = "{reading.names.app_id}"\n[kafka]\nbootstrap_servers = "{reading.bootstrap}"\n'
        f'[folds.f]\nsource = "{reading.topic}.source"\noutput = "{reading.topic}"\ngroup_key = "id"\nchanged = "m"\n'
        f'keep = "last"\nquiet_period = "1s"\n[read_stores.dashboard]\nurl = "{reading.url}"\ntable = "cells"\nfolds = ["f"]\n'
        f'source = "{source}"\nsource_url = "sqlite:///{reading.path}"\nsql = "{sql}"\n',
        "utf-8",
    )
    return str(path)


async def test_dead_letters_are_listed_and_replayed_only_into_the_store_after_a_fix(reading: DeadLetterReading) -> None:
    harness = Postgres(reading.url)
    await harness.store.initialise()
    settings = reading.settings()
    sync = StoreSync(settings, settings.read_store(None), Metrics(settings), ManualClock(50))
    tp = P0._replace(topic=reading.topic)
    await sync.sync_once(CheckpointStep(tp, None, 1), [Raw(0, key=b"g", value=folded({"likes": "\0", "old": "\0"}, 3))])
    await sync.sync_once(CheckpointStep(tp, 1, 2), [Raw(1, key=b"g", value=b"no record")])
    await harness.store.apply([CellChange(Cell("f", "g", "old"), 9, 90)], CheckpointStep(tp, 2, 2), 0)
    await sync.close()
    reading.path.touch()
    config = config_file(reading, "SELECT 'g', 'likes', 7 UNION ALL SELECT 'g', 'old', 8")
    listed = await asyncio.to_thread(run, "dead-letters", "list", "--store", "dashboard", "--config", config)
    tried = await asyncio.to_thread(run, "dead-letters", "replay", "--store", "dashboard", "--dry-run", "--config", config)
    before = await harness.rows()
    done = [await asyncio.to_thread(run, "dead-letters", "replay", "--store", "dashboard", "--config", config) for _ in range(2)]
    after, progress = await harness.rows(), await harness.store.checkpoints()
    await harness.close()

    assert (0, 2) == (listed.code, listed.text.count(f"{reading.topic}:0:"))
    assert "not-storable" in listed.out
    assert "dry run: 1 would pass now, 1 would be rejected again (not-a-record 1)\n" in tried.out
    assert [("g", "old", "90", 9)] == [row[:4] for row in before]
    assert [(0, "1 replayed, 1 rejected again (not-a-record 1)\n")] * 2 == [(ran.code, ran.out) for ran in done]
    assert "audit replay store=dashboard" in done[0].err
    assert [("g", "likes", "7", 3), ("g", "old", "90", 9)] == [row[:4] for row in after]
    assert 2 == progress[tp]


LATER_MS = 2**43


async def keep(reading: DeadLetterReading, record: Raw, now_ms: int) -> None:
    """Write a dead letter for a value that the store once rejected, and now accepts."""
    settings = reading.settings()
    kept = StoreDeadLetterWriter(settings, settings.read_store(None), Metrics(settings), ManualClock(now_ms))
    await kept.write_once(TP(reading.topic, 0), [RejectedEvent(record, "not-storable", "the column was a number")])
    await kept.close()


async def reset(reading: DeadLetterReading) -> None:
    """Reset the store as ``streams-app reset`` does."""
    settings = reading.settings()
    consumer = AIOKafkaConsumer(bootstrap_servers=reading.bootstrap, enable_auto_commit=False)
    await consumer.start()
    await reset_versions(settings, settings.read_store(None), "f", consumer)
    await consumer.stop()


@pytest.mark.parametrize(
    ("source", "left", "expected"),
    [
        ("carried", "1 not replayed: its fold was reset since", [("after", "3", 9), ("likes", "90", 9)]),
        ("sql", "2 replayed", [("after", "33", 9), ("likes", "90", 9), ("shares", "22", BEFORE_RESET)]),
    ],
)
async def test_dead_letter_from_before_a_reset_overwrites_nothing_folded_later(
    reading: DeadLetterReading, source: str, left: str, expected: list[tuple[str, str, int]]
) -> None:
    harness = Postgres(reading.url)
    await harness.store.initialise()
    await keep(reading, Raw(0, key=b"g", value=folded({"likes": 1, "shares": 2}, 2**50)), 50)
    await reset(reading)
    await harness.store.apply([CellChange(Cell("f", "g", "likes"), 9, 90)], CheckpointStep(P0, None, 1), 0)
    await keep(reading, Raw(1, key=b"g", value=folded({"after": 3}, 9)), LATER_MS)
    reading.path.touch()
    current = {"likes": 11, "shares": 22, "after": 33}
    config = config_file(reading, " UNION ALL ".join(f"SELECT 'g', '{name}', {value}" for name, value in current.items()), source)
    ran = await asyncio.to_thread(run, "dead-letters", "replay", "--store", "dashboard", "--config", config)
    rows = await harness.rows()
    await harness.close()

    assert left in ran.out
    assert expected == [row[1:4] for row in rows]
