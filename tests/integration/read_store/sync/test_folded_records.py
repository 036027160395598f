"""Folded records in every read store target, in any order and with duplicates."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest

from streams_app.health.metrics import Metrics
from streams_app.read_store.sync.store_sync import StoreSync, SyncResult
from streams_app.settings import Settings
from tests.helpers.kafka.records import Raw
from tests.helpers.manual_clock import ManualClock
from tests.helpers.read_store.stores import P0, StoreHarness, sync_on


def folded(offset: int, names: Any, version: int, group: str = "a") -> Raw:
    value = {"id": group, "m": names, "fold": {"name": "f", "version": version}}
    return Raw(offset, key=group.encode(), value=json.dumps(value).encode())


def sync_of(harness: StoreHarness, **given: Any) -> tuple[StoreSync, Metrics]:
    settings = Settings.model_validate(
        {
            "app_id": "t",
            "folds": [{"name": "f", "source": "s", "group_key": "id", "changed": "m", "keep": "last", "quiet_period": "1s"}],
            "read_stores": [{**harness.settings.model_dump(), **given}],
        }
    )
    metrics = Metrics(settings)
    return StoreSync(settings, settings.read_store(None), metrics, ManualClock(50)), metrics


async def test_batch_redelivered_after_a_crash_changes_nothing(harness: StoreHarness) -> None:
    batch = [folded(0, {"likes": 7}, 1), folded(1, {"shares": 2}, 2)]
    (first, _), (restarted, metrics) = sync_of(harness), sync_of(harness)
    await sync_on(first, batch, 2)
    before = await harness.rows()
    result = await sync_on(restarted, batch, 2)
    counted = metrics.registry.get_sample_value(
        "streams_app_read_store_writes_total", {"store": "dashboard", "result": "unchanged"}
    )
    await first.close()
    await restarted.close()

    assert SyncResult(2, 0, 2, 0, 0, 2, 2) == result
    assert (before, 2) == (await harness.rows(), counted)


@pytest.mark.parametrize("seed", range(4))
async def test_deleted_value_is_not_restored_by_an_older_record(harness: StoreHarness, seed: int) -> None:
    choice = random.Random(seed)
    topic = [(version, f"n{version % 6}", None if choice.random() < 0.4 else version) for version in range(60)]
    expected = {name: (value, version) for version, name, value in topic}
    records = [folded(offset, {name: value}, version) for offset, (version, name, value) in enumerate(topic)]
    sync, _ = sync_of(harness)
    shuffled = [*records, *choice.sample(records, 30)]
    choice.shuffle(shuffled)
    for begin in range(0, len(shuffled), 7):
        await sync_on(sync, shuffled[begin : begin + 7], begin + 7)
    seen = {name: (value, version) for _, name, value, version, _ in await harness.rows()}
    await sync.set_checkpoint(P0, 0)
    for begin in range(0, len(records), 7):
        await sync_on(sync, records[begin : begin + 7], begin + 7)
    seen_after = {name: (value, version) for _, name, value, version, _ in await harness.rows()}
    await sync.close()
    shown = {name: (None if value is None else harness.in_rows(value), version) for name, (value, version) in expected.items()}

    assert any(value is None for value, _ in expected.values())
    assert [shown, shown] == [seen, seen_after]


async def test_deleted_group_has_no_values_and_an_older_record_restores_none(harness: StoreHarness) -> None:
    values = {(group, name): 1 for group in ("a", "b") for name in ("likes", "shares", "n1")}

    def current(fold: str, pairs: Any) -> dict[Any, Any]:
        gone = {(group, None): None for group, _ in pairs if group not in {group_with_value for group_with_value, _ in values}}
        return gone | {pair: values[pair] for pair in pairs if pair in values}

    sync, _ = sync_of(harness, source="python", current=current)
    late = folded(3, ["shares"], 5)
    await sync_on(sync, [folded(0, ["likes", "shares"], 1), folded(1, ["n1"], 2), folded(2, ["likes", "shares"], 3, "b")], 3)
    for name in ("likes", "shares", "n1"):
        del values["a", name]
    await sync_on(sync, [folded(4, ["likes"], 7)], 5)
    gone = [row[:4] for row in await harness.rows()]
    values["a", "shares"] = 9
    await sync_on(sync, [late], 6)
    after_older = [row[:4] for row in await harness.rows()]
    await sync_on(sync, [folded(6, ["shares"], 8)], 7)
    after_newer = [row[:4] for row in await harness.rows()]
    await sync.close()
    rest = [("b", "likes", harness.in_rows(1), 3), ("b", "shares", harness.in_rows(1), 3)]

    assert [("a", "likes", None, 7), ("a", "n1", None, 7), ("a", "shares", None, 7), *rest] == gone
    assert gone == after_older
    assert [("a", "likes", None, 7), ("a", "n1", None, 7), ("a", "shares", harness.in_rows(9), 8), *rest] == after_newer


@pytest.mark.parametrize("seed", range(4))
async def test_shuffled_and_duplicated_topic_ends_in_the_same_state_as_in_order(harness: StoreHarness, seed: int) -> None:
    choice = random.Random(seed)
    topic = [
        (version, f"g{choice.randrange(3)}", {f"n{number}": choice.randrange(3) for number in choice.sample(range(5), 2)})
        for version in range(120)
    ]
    expected = {(group, name): (value, version) for version, group, names in topic for name, value in names.items()}
    shuffled = [*topic, *choice.sample(topic, 60)]
    choice.shuffle(shuffled)
    sync, _ = sync_of(harness)
    for begin in range(0, len(shuffled), 9):
        records = [
            folded(offset, names, version, group) for offset, (version, group, names) in enumerate(shuffled[begin : begin + 9])
        ]
        await sync_on(sync, records, begin + 9)
    await sync.close()

    assert {cell: (harness.in_rows(value), version) for cell, (value, version) in expected.items()} == {
        (group, name): (value, version) for group, name, value, version, _ in await harness.rows()
    }
