"""After a reset of a fold and a new log of its source, older records of its output topic are no evidence for a store."""

from __future__ import annotations

import json
from typing import Any
from unittest.mock import patch

import pytest

from streams_app.kafka.group_offsets import in_group
from streams_app.operations import reset_read_store
from streams_app.read_store.registry import open_store
from streams_app.settings import Settings
from tests.helpers.cli.commands import run
from tests.helpers.kafka.topics import create_topics, delete_topic, produce
from tests.helpers.read_store.searching import Search
from tests.helpers.waiting import wait_until
from tests.helpers.worker.site import LIMIT_SECONDS, Stage
from tests.integration.read_store.compared import Compared, folded

pytestmark = pytest.mark.timeout(240)

FORMER, NOW = 4 * 2**40, 2**40
"""Versions of a source with four partitions, and of the one with one partition that took its place."""

ROWS = "SELECT group_key, name, CAST(value AS TEXT), version FROM folded_values ORDER BY 1, 2"


@pytest.fixture(params=["sqlite", *(pytest.param(name, marks=pytest.mark.long) for name in ("postgresql", "mysql"))])
def url(stage: Stage, request: pytest.FixtureRequest) -> str:
    return f"sqlite:///{stage.folder}/both.db" if request.param == "sqlite" else request.getfixturevalue(f"{request.param}_url")


async def reset(compared: Compared) -> None:
    """Reset the store as ``streams-app reset`` does; the embedded broker counts a worker that has ended as a member."""
    settings = Settings.load(compared.config, {})
    async with in_group(settings.kafka, settings.app_id) as consumer:
        with patch.object(consumer, "assign", wraps=consumer.assign) as assign:
            await reset_read_store.reset_versions(settings, compared.declared, "account-metrics", consumer)
        assert 1 == assign.call_count  # a second assignment soon after the first may fail in aiokafka


@pytest.mark.parametrize("command", ["verify", pytest.param("rebuild", marks=pytest.mark.long)])
async def test_value_folded_after_a_reset_is_neither_wrong_nor_frozen(stage: Stage, url: str, command: str) -> None:
    compared = Compared(stage, url, is_carried=True)
    await compared.prepare()
    await compared.send(folded("a", FORMER + 5, {"likes": 10, "shares": 1}), folded("b", FORMER + 9, {"likes": 10}))
    await compared.sync()
    await reset(compared)
    await compared.send(folded("a", NOW, {"likes": 20}))
    await compared.sync()
    found = compared.verify()
    repaired = compared.verify("--repair") if command == "verify" else (compared.run("rebuild").code, [])
    kept = await compared.rows(ROWS)
    await compared.send(*(folded(group, NOW + 1, {"likes": 30, "shares": 3}) for group in "ab"))
    await compared.sync()
    after = compared.verify()

    assert [(0, [])] * 3 == [found, repaired, after]
    assert [("a", "likes", "20", NOW), ("a", "shares", "1", -1), ("b", "likes", "10", -1)] == kept
    newest = [(group, name, value, NOW + 1) for group in "ab" for name, value in (("likes", "30"), ("shares", "3"))]
    assert newest == await compared.rows(ROWS)


@pytest.mark.parametrize("command", ["verify", pytest.param("rebuild", marks=pytest.mark.long)])
async def test_row_named_only_by_a_former_record_returns_and_rejects_no_change(stage: Stage, url: str, command: str) -> None:
    compared = Compared(stage, url)
    await compared.prepare(("a", "likes", 1), ("b", "likes", 1))
    await compared.send(folded("a", FORMER, ["likes"]), folded("b", FORMER, ["likes"]))
    await compared.sync()
    await reset(compared)
    await compared.execute("DELETE FROM folded_values WHERE group_key = 'b'")
    assert [("b", "missing")] == [(one["group"], one["what"]) for one in compared.verify()[1]]
    assert 0 == compared.run(command, *(["--repair"] if command == "verify" else [])).code
    assert [("a", "likes", "1"), ("b", "likes", "1")] == [row[:3] for row in await compared.rows(ROWS)]
    await compared.execute("UPDATE metrics SET value = 2")
    await compared.send(folded("a", NOW, ["likes"]), folded("b", NOW, ["likes"]))
    await compared.sync()

    assert [("a", "likes", "2", NOW), ("b", "likes", "2", NOW)] == await compared.rows(ROWS)
    assert (0, []) == compared.verify()


async def test_second_reset_moves_the_former_end_and_a_rebuild_preserves_it(stage: Stage, url: str) -> None:
    compared = Compared(stage, url, is_carried=True)
    await compared.prepare()
    for number, version in enumerate((3 * FORMER, 2 * FORMER)):
        await compared.send(folded("a", version, {"likes": number}))
        await compared.sync()
        await reset(compared)
        assert 0 == compared.run("rebuild").code
    await compared.send(folded("a", NOW, {"likes": 9}))
    await compared.sync()

    assert (0, []) == compared.verify("--repair")
    assert 0 == compared.run("rebuild").code
    assert [("a", "likes", "9", NOW)] == await compared.rows(ROWS)


async def test_repair_never_raises_the_version_of_a_cell(stage: Stage, url: str) -> None:
    compared = Compared(stage, url, is_carried=True)
    await compared.prepare()
    await compared.send(folded("a", NOW + 5, {"likes": 1}))
    await compared.sync()
    await compared.execute(f"UPDATE folded_values SET value = '7', version = {NOW + 2}")

    assert (0, 1) == (compared.verify("--repair")[0], len(await compared.rows(ROWS)))
    assert [("a", "likes", "1", NOW + 2)] == await compared.rows(ROWS)


@pytest.mark.apache
async def test_former_records_change_nothing_after_a_crash_and_later_ones_are_evidence(stage: Stage, url: str) -> None:
    compared = Compared(stage, url, is_carried=True)
    await compared.prepare()
    await compared.send(folded("a", FORMER, {"likes": 1}))
    await compared.sync()
    await compared.send(folded("b", FORMER, {"likes": 1}))
    await reset(compared)  # reads the record that no commit covers
    await compared.send(folded("a", NOW, {"likes": 2}))
    await compared.sync()
    assert [("a", "likes", "2", NOW), ("b", "likes", "1", -1)] == await compared.rows(ROWS)
    await compared.send(folded("c", NOW, {"likes": 2}))
    await ahead_of_its_commit(compared)
    await compared.send(folded("b", NOW, {"likes": 2}))
    await compared.sync()
    assert [(group, "likes", "2", NOW) for group in "abc"] == await compared.rows(ROWS)
    await compared.execute("DELETE FROM folded_values")

    assert [(group, "missing") for group in "abc"] == sorted((one["group"], one["what"]) for one in compared.verify()[1])
    assert 0 == compared.run("rebuild").code
    assert [(group, "likes", "2", NOW) for group in "abc"] == await compared.rows(ROWS)


@pytest.mark.apache
async def test_recreated_output_topic_has_no_former_records(stage: Stage, url: str) -> None:
    compared = Compared(stage, url, is_carried=True)
    await compared.prepare()
    await compared.send(folded("a", FORMER, {"likes": 1}), folded("a", FORMER + 1, {"likes": 2}), folded("a", FORMER + 2, {"x": 1}))
    await compared.sync()
    await reset(compared)
    await delete_topic(stage.bootstrap, stage.output)
    await create_topics(stage.bootstrap, [stage.output])
    compared.sent = 0
    await compared.send(folded("a", NOW, {"likes": 3}))
    store = open_store(compared.declared)

    async def is_there() -> bool:
        return ("a", "likes", "3", NOW) in await compared.rows(ROWS)

    with stage.worker(compared.config) as worker:
        await wait_until(is_there, LIMIT_SECONDS, "the new record is synced")
        await worker.terminate()
    await compared.execute("DELETE FROM folded_values WHERE name = 'likes'")
    code, found = compared.verify()
    await store.close()

    assert (1, [("likes", "missing", 3)]) == (code, [(one["name"], one["what"], one["source"]) for one in found])


async def test_opensearch_value_folded_after_a_reset_is_neither_wrong_nor_frozen(stage: Stage, search: Search) -> None:
    compared = Compared(stage, f"opensearch+http://127.0.0.1:{search.port}", is_carried=True)
    compared.configure(f'table = "{search.table}"\nshape = "{search.shape}"\n')
    await compared.send(folded("a", FORMER, {"likes": 10}), folded("b", FORMER, {"likes": 10}))
    await compared.sync()
    await reset(compared)
    await compared.send(folded("a", NOW, {"likes": 20}))
    await compared.sync()
    repaired, rebuilt = compared.verify("--repair"), compared.run("rebuild").code
    kept = search.cells()
    await compared.send(folded("a", NOW + 1, {"likes": 30}), folded("b", NOW + 1, {"likes": 30}))
    await compared.sync()

    assert ((0, []), 0) == (repaired, rebuilt)
    assert {("a", "likes"): (20, NOW), ("b", "likes"): (10, -1)} == kept
    assert {(group, "likes"): (30, NOW + 1) for group in "ab"} == search.cells()


@pytest.mark.apache
async def test_source_recreated_with_fewer_partitions_freezes_no_cell(stage: Stage, url: str) -> None:
    groups = [f"g{number}" for number in range(30)]

    def events(value: int) -> list[tuple[bytes, bytes]]:
        return [(group.encode(), json.dumps({"account_id": group, "metrics": {"likes": value}}).encode()) for group in groups]

    compared = Compared(stage, url, is_carried=True)
    await recreate(stage, partitions=4)
    await compared.prepare()
    await fold(compared, events(1), 1)
    await recreate(stage, partitions=1)
    command = ("reset", "--fold", "account-metrics", "--config", str(compared.config), "--yes")
    assert 0 == run(*command).code
    await fold(compared, events(2), 2)
    assert (0, []) == compared.verify("--repair")
    await fold(compared, events(3), 3)

    assert (0, []) == compared.verify()


async def ahead_of_its_commit(compared: Compared) -> None:
    """Leave the state of a worker that crashes between a transaction of the store and the commit."""
    settings = Settings.load(compared.config, {})
    store = open_store(compared.declared)
    async with in_group(settings.kafka, settings.app_id) as consumer:
        log_bounds = await reset_read_store._log_bounds_of(settings, compared.declared, "account-metrics", consumer)
        unread = await reset_read_store._unread(compared.declared, log_bounds, store)
        await reset_read_store._sync(settings, compared.declared, consumer, unread)
    await store.close()


async def recreate(stage: Stage, partitions: int) -> None:
    await delete_topic(stage.bootstrap, stage.source)
    await create_topics(stage.bootstrap, [stage.source], partitions=partitions)


async def fold(compared: Compared, events: list[tuple[bytes, bytes]], value: Any) -> None:
    """Run a worker that folds events and syncs their records."""

    async def is_synced() -> bool:
        return [str(value)] * len(events) == [row[2] for row in await compared.rows(ROWS)]

    with compared.stage.worker(compared.config) as worker:
        await worker.wait_ready()
        await produce(compared.stage.bootstrap, compared.stage.source, events)
        await wait_until(is_synced, LIMIT_SECONDS, "everything is folded and synced")
        assert 0 == await worker.terminate()
