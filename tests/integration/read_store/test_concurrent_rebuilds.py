"""``read-store rebuild`` beside others: two at once, and tables that do not belong to the store."""

from __future__ import annotations

import sqlite3
from collections.abc import Awaitable, Callable, Collection
from contextlib import closing
from dataclasses import dataclass
from typing import Any

import pytest

from streams_app.clock import SystemClock
from streams_app.delivery.batch import TP
from streams_app.errors import TryAgainError
from streams_app.health.metrics import Metrics
from streams_app.operations.folded_topics import FoldedTopics
from streams_app.operations.rebuild import Rebuild
from streams_app.read_store.core.merge import Cell, CellChange
from streams_app.read_store.core.rebuilding import OvertakenError
from streams_app.read_store.core.store import CheckpointStep, NotStorableError, replays_of, reset_of
from streams_app.read_store.registry import open_rebuilding, open_store
from streams_app.read_store.sync.store_sync import StoreSync
from streams_app.settings import Settings
from tests.helpers.worker.site import Stage
from tests.integration.read_store.compared import Compared, folded

pytestmark = pytest.mark.timeout(300)

VALUES = "SELECT group_key, name, CAST(value AS TEXT) FROM {} WHERE value IS NOT NULL ORDER BY 1, 2"
P0 = TP("t", 0)


@dataclass
class Record:
    key: bytes | None
    value: bytes | None
    offset: int = 0
    timestamp: int | None = None


LIKES = CellChange(Cell("account-metrics", "a", "likes"), 5, 1)


@pytest.fixture(params=["sqlite", "postgresql", pytest.param("mysql", marks=pytest.mark.long)])
def compared(stage: Stage, request: pytest.FixtureRequest) -> Compared:
    url = f"sqlite:///{stage.folder}/both.db" if request.param == "sqlite" else request.getfixturevalue(f"{request.param}_url")
    return Compared(stage, url)


async def test_overtaken_rebuild_whose_table_was_removed_switches_nothing(compared: Compared) -> None:
    await compared.prepare()
    store = open_store(compared.declared)
    first, first_new = open_rebuilding(compared.declared)
    second, second_new = open_rebuilding(compared.declared)
    await store.apply([LIKES], CheckpointStep(P0, None, 10), 1)
    await first.prepare()
    await first_new.set_checkpoint(P0, 0, 1)
    await first_new.apply([LIKES], CheckpointStep(P0, 0, 10), 1)
    await second.prepare()
    with pytest.raises(OvertakenError, match="folded_values_new is not the table that this one has filled"):
        await first.switch(())
    left = await compared.rows(VALUES.format("folded_values"))
    await second_new.set_checkpoint(P0, 0, 1)
    await second_new.apply([LIKES], CheckpointStep(P0, 0, 10), 1)
    done = [await second.switch(()) for _ in range(2)]
    with pytest.raises(OvertakenError):
        await first.switch(())
    for each in (first, first_new, second, second_new, store):
        await each.close()

    assert [("a", "likes", "1")] == left == await compared.rows(VALUES.format("folded_values"))
    assert [set(), set()] == done
    assert [("t", 0, 10)] == await compared.rows('SELECT topic, "partition", next_offset FROM folded_values_progress')


async def test_overtaken_rebuild_can_be_repeated(stage: Stage) -> None:
    compared = Compared(stage, f"sqlite:///{stage.folder}/both.db")
    await compared.prepare(("a", "likes", 1))
    await compared.send(folded("a", 10, ["likes"]))

    def overtake(*_: Any) -> None:
        with closing(sqlite3.connect(stage.folder / "both.db")) as connection, connection:
            connection.execute("UPDATE folded_values_new_progress SET next_offset = 7 WHERE topic = ''")

    rebuild = Rebuild(Settings.load(compared.config, {}), compared.declared, SystemClock(), on_progress=overtake)
    with pytest.raises(TryAgainError, match=r"another rebuild of dashboard is in progress: .*; nothing was switched"):
        await rebuild.run()


@pytest.mark.parametrize("name", ["folded_values_new", "folded_values_old"])
async def test_foreign_table_under_a_required_name_is_rejected_before_anything_is_done(compared: Compared, name: str) -> None:
    await compared.prepare()
    await compared.execute(f"CREATE TABLE {name} (something TEXT)")
    await compared.execute(f"INSERT INTO {name} VALUES ('mine')")
    ran = compared.run("rebuild")

    assert 1 == ran.code
    assert f"{name} has no {name}_progress beside it, so it is not the store's; rename it, or name another table" in ran.err
    assert [("mine",)] == await compared.rows(f"SELECT something FROM {name}")
    assert None is await compared.rows_or_none("SELECT * FROM folded_values_new_progress")


async def test_former_table_without_progress_does_not_prevent_the_next_rebuild(compared: Compared) -> None:
    await compared.prepare()
    await compared.execute("DROP TABLE folded_values_progress")
    for _ in range(2):
        rebuilding, new = open_rebuilding(compared.declared)
        await rebuilding.prepare()
        await new.set_checkpoint(P0, 0, 1)
        await rebuilding.switch(())
        await rebuilding.close()
        await new.close()

    assert [("t",)] == await compared.rows("SELECT topic FROM folded_values_old_progress")


async def test_rejection_without_a_cell_is_not_taken_for_success(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    compared = Compared(stage, f"sqlite:///{stage.folder}/both.db")
    await compared.prepare(("a", "likes", 1))
    await compared.send(folded("a", 10, ["likes"]))
    rebuild = Rebuild(Settings.load(compared.config, {}), compared.declared, SystemClock())

    async def reject(*_: Any) -> None:
        raise NotStorableError({})

    monkeypatch.setattr(rebuild._new, "apply", reject)
    with pytest.raises(NotStorableError):
        await rebuild.run()


async def test_dead_letters_replayed_and_a_reset_made_during_a_rebuild_are_in_the_new_table(
    compared: Compared, monkeypatch: pytest.MonkeyPatch
) -> None:
    compared.is_carried = True
    compared.configure()
    await compared.prepare()
    settings, clock = Settings.load(compared.config, {}), SystemClock()
    store, topic = open_store(compared.declared), compared.stage.output
    await store.apply([LIKES, CellChange(Cell("account-metrics", "b", "likes"), 5, 1)], CheckpointStep(P0, None, 10), 1)
    sync = StoreSync(settings, compared.declared, Metrics(settings), clock)
    rebuild = Rebuild(settings, compared.declared, clock)
    try_to_switch = rebuild._try_to_switch
    later: list[Callable[[], Awaitable[object]]] = [
        lambda: sync.replay_records(topic, [Record(*folded("a", 9, {"likes": 7}))]),
        lambda: store.set_checkpoint(reset_of("account-metrics"), 50, 1),
    ]

    async def meanwhile(topics: FoldedTopics) -> Collection[TP]:
        if later:
            await later.pop(0)()
        return await try_to_switch(topics)

    monkeypatch.setattr(rebuild, "_try_to_switch", meanwhile)
    await rebuild.run()
    progress = await store.checkpoints()
    await sync.close()
    await store.close()

    assert [("a", "likes", "7"), ("b", "likes", "1")] == await compared.rows(VALUES.format("folded_values"))
    assert (1, 50) == (progress[replays_of(compared.stage.dead)], progress[reset_of("account-metrics")])
