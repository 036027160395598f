"""Folding in a real worker: backlogs, several folds, kinds of group keys, changed definitions."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest
from aiokafka import AIOKafkaProducer

from tests.helpers.folding.checker import event
from tests.helpers.kafka.topics import read_topic
from tests.helpers.waiting import wait_until
from tests.helpers.worker.site import LIMIT_SECONDS, Site, metrics_of, send_at
from tests.helpers.worker.workers import WorkerProcess

HOUR_MS = 3_600_000


async def test_merged_backlog_is_one_record_a_group_and_nothing_is_missing(site: Site) -> None:
    await site.topics("events", "merged", "events.dead")
    begin_ms = int(time.time() * 1000) - 3 * HOUR_MS
    events = [(f"account_{number % 100}", begin_ms + number * 720, number) for number in range(5_000)]
    await send_at(site, "events", events)
    with site.worker(site.config(site.fold("merged", "events", quiet_period="5m", max_hold="24h"))):
        outcome = await site.outcome("merged", len(events))

    assert len({group for group, _, _ in events}) == len(outcome.values)
    assert {"quiet"} == {value["fold"]["reason"] for value in outcome.values.values()}


async def test_future_dated_or_ancient_event_neither_blocks_nor_hurries_a_group(site: Site) -> None:
    await site.topics("events", "folded", "events.dead", partitions=1)
    with site.worker(site.config(site.fold("folded", "events", quiet_period="2s"))) as worker:
        await worker.wait_ready()
        now_ms = int(time.time() * 1000)
        await site.send("events", [event("now", "a")])
        await site.send("events", [event("future", "a")], timestamp_ms=now_ms + HOUR_MS * 3 // 4)
        await site.send("events", [event("ancient", "a")], timestamp_ms=1)
        await site.send("events", [event("now", "b"), event("future", "b"), event("ancient", "b")])
        outcome = await site.outcome("folded", 6)

    assert [2, 2, 2] == [value["fold"]["events"] for value in outcome.values.values()]
    assert {"quiet"} == {value["fold"]["reason"] for value in outcome.values.values()}


async def test_one_worker_folds_every_kind_of_group_key_from_several_sources(site: Site) -> None:
    cases: dict[str, tuple[Any, list[tuple[bytes | None, dict[str, Any]]], set[tuple[bytes, str]]]] = {
        "field": ("id", [(b"1", {"id": 1}), (b"1", {"id": "1"}), (b"true", {"id": True}), (b"1", {"id": 1})], {
            (b"1", '{"id":1}'), (b"1", '{"id":"1"}'), (b"true", '{"id":true}')}),
        "path": ("a.b", [(b"x", {"a": {"b": "x"}}), (b"{x}\n", {"a": {"b": "{x}\n"}})], {
            (b"x", '{"a.b":"x"}'), (b"{x}\n", '{"a.b":"{x}\\n"}')}),
        "several": (["a", "b.c"], [(b'["x",1]', {"a": "x", "b": {"c": 1}})], {(b'["x",1]', '{"a":"x","b.c":1}')}),
        "key": ("@key", [(b"k", {"id": 9}), (b"k", {"id": 8})], {(b"k", '{"key":"k"}')}),
    }  # fmt: skip
    topics = [part for name in cases for part in (f"{name}-in", name, f"{name}-in.dead")]
    await site.topics(*topics, partitions=1)
    config = site.config("".join(site.fold(name, f"{name}-in", group_key=group) for name, (group, _, _) in cases.items()))
    with site.worker(config) as worker:
        await worker.wait_ready()
        for name, (_, items, _) in cases.items():
            await site.send(f"{name}-in", [(key, json.dumps({**value, "metrics": ["m"]}).encode()) for key, value in items])
        for name, (_, items, expected) in cases.items():
            outcome = await site.outcome(name, len(items))
            found = set()
            for fold_id, value in outcome.values.items():
                fields = {field: part for field, part in value.items() if field not in ("fold", "metrics")}
                found.add((outcome.groups[fold_id], json.dumps(fields, separators=(",", ":"))))
            assert expected == found
        log = worker.log()

    assert "record keys of events differ from their group keys" not in log


async def test_three_folds_of_one_source_have_separate_groups_and_times(site: Site) -> None:
    folds: dict[str, dict[str, Any]] = {
        "post": {"group_key": ["account_id", "post"], "quiet_period": "1s"},
        "account": {"quiet_period": "2s"},
        "account-long": {"quiet_period": "1h", "max_hold": "1h"},
    }
    await site.topics("events", *folds, "events.dead")
    with site.worker(site.config("".join(site.fold(name, "events", **options) for name, options in folds.items()))) as worker:
        await worker.wait_ready()
        items = [event(f"a{number % 3}", f"n{number}", post=number % 6) for number in range(60)]
        await site.send("events", items)
        outcomes = {name: await site.outcome(name, 60) for name in ("post", "account")}
        await folded(worker, "account-long", 60)
        page = json.loads((await worker.get("/groups?fold=account-long"))[1])

    assert {"post": 6, "account": 3} == {name: len(set(outcome.groups.values())) for name, outcome in outcomes.items()}
    assert [[], []] == [outcome.faults({name: key for name, key in _names(items, fold)}) for fold, outcome in outcomes.items()]
    assert 60 == sum(row["events"] for row in page["groups"])


def _names(items: list[tuple[bytes, bytes]], fold: str) -> list[tuple[str, bytes]]:
    """Return the changed name and group of each event."""
    found = []
    for key, value in items:
        decoded = json.loads(value)
        group = key if fold == "account" else json.dumps([decoded["account_id"], decoded["post"]], separators=(",", ":")).encode()
        found += [(name, group) for name in decoded["metrics"]]
    return found


async def test_misrouted_events_are_folded_counted_and_reported_once(site: Site) -> None:
    await site.topics("events", "folded", "events.dead", partitions=1)
    with site.worker(site.config(site.fold("folded", "events"))) as worker:
        await worker.wait_ready()
        for _ in range(3):
            await site.send("events", [(b"elsewhere", event("a", "x")[1]), event("a", "y")])
        await site.outcome("folded", 6)
        _, metrics = await worker.get("/metrics")
        log = worker.log()

    assert 'streams_app_misrouted_events_total{fold="folded"} 3.0' in metrics
    assert 1 == log.count("differ from their group keys")


async def test_last_value_of_each_name_is_carried(site: Site) -> None:
    await site.topics("events", "folded", "events.dead", partitions=1)
    with site.worker(site.config(site.fold("folded", "events", keep="last"))) as worker:
        await worker.wait_ready()
        values: list[dict[str, Any]] = [{"likes": 1, "shares": None}, {"likes": {"a": [1, "x"]}}, {"shares": 2.5}]
        await site.send("events", [(b"a", json.dumps({"account_id": "a", "metrics": value}).encode()) for value in values])
        (record,) = await site.records("folded", 3)

    assert {"likes": {"a": [1, "x"]}, "shares": 2.5} == json.loads(record.value)["metrics"]


async def test_large_and_nested_values_are_emitted_in_parts_that_make_the_whole(site: Site) -> None:
    await site.topics("events", "folded", "events.dead", partitions=1)
    deep: Any = "end"
    for _ in range(100):
        deep = [deep]
    values = {f"n{number}": {"number": number, "text": "é" * 240_000, "deep": deep} for number in range(6)}
    for name, value in values.items():
        await site.send("events", [(b"a", json.dumps({"account_id": "a", "metrics": {name: value}}, ensure_ascii=False).encode())])
    with site.worker(site.config(site.fold("folded", "events", keep="last"))) as worker:
        await worker.wait_ready()
        records = await read_topic(
            site.bootstrap, site.names.topic("folded"), until=lambda found: len(found) >= 6, timeout_seconds=LIMIT_SECONDS
        )

    parts = [json.loads(record.value) for record in records]
    assert [f"#{number}" for number in range(1, 7)] == [part["fold"]["id"][-2:] for part in parts]
    assert {(6, 0)} == {(part["fold"]["events"], part["fold"]["version"] % 2**40 - 5) for part in parts}
    assert values == {name: value for part in parts for name, value in part["metrics"].items()}


@pytest.mark.long
async def test_folds_may_be_added_and_removed_while_workers_with_different_folds_alternate(site: Site) -> None:
    await site.topics("events", "one", "two", "events.dead")
    one, two = site.fold("one", "events", quiet_period="2s"), site.fold("two", "events", quiet_period="3s")
    configs = {"one": site.config(one, "one.toml"), "both": site.config(one + two, "both.toml")}
    sent: dict[str, bytes] = {}

    async def more() -> None:
        items = []
        for _ in range(100):
            name, account = f"n{len(sent)}", f"a{len(sent) % 9}"
            items.append(event(account, name))
            sent[name] = account.encode()
        await site.send("events", items)

    for which in ("one", "both", "one", "both"):
        with site.worker(configs[which]) as worker:
            await worker.wait_ready()
            await more()
            if which == "one":
                await worker.terminate()
            else:
                await wait_until(lambda: 'folded_total{fold="two"} 0.0' not in metrics_of(worker), LIMIT_SECONDS, "fold two folds")
                worker.kill()
    with site.worker(configs["both"]):
        found = [await site.outcome(name, len(sent)) for name in ("one", "two")]

    assert [[], []] == [outcome.faults(sent) for outcome in found]


async def test_open_groups_are_emitted_under_the_definition_they_were_folded_by(site: Site) -> None:
    await site.topics("events", "folded", "events.dead", partitions=1)
    before = site.config(site.fold("folded", "events", quiet_period="1h"), "before.toml")
    after = site.config(site.fold("folded", "events", group_key=["account_id", "post"], changed="names"), "after.toml")
    with site.worker(before) as worker:
        await worker.wait_ready()
        await site.send("events", [event("a", "x")])
        await folded(worker, "folded", 1)
        await worker.terminate()
    await site.send("events", [(b'["a",1]', b'{"account_id": "a", "post": 1, "names": ["y"]}')])
    with site.worker(after) as worker:
        records = await read_topic(
            site.bootstrap, site.names.topic("folded"), until=lambda found: len(found) >= 2, timeout_seconds=LIMIT_SECONDS
        )
        log = worker.log()

    old, new = (json.loads(record.value) for record in records)
    assert ("a", ["x"], "flush") == (old["account_id"], old["metrics"], old["fold"]["reason"])
    assert ("a", 1, ["y"], "quiet") == (new["account_id"], new["post"], new["names"], new["fold"]["reason"])
    assert "definition of the fold changed" in log


@pytest.mark.long
async def test_changed_quiet_period_and_hold_apply_to_open_groups_too(site: Site) -> None:
    await site.topics("events", "quieter", "shorter", "events.dead", partitions=1)
    long = {"quiet_period": "1h", "max_hold": "6h"}
    changed = {"quieter": {"quiet_period": "1s"}, "shorter": {"quiet_period": "2s", "max_hold": "2s"}}
    before = site.config("".join(site.fold(name, "events", **long) for name in changed), "before.toml")
    after = site.config("".join(site.fold(name, "events", **long | options) for name, options in changed.items()), "after.toml")
    with site.worker(before) as worker:
        await worker.wait_ready()
        await site.send("events", [event("a", "x")])
        for name in changed:
            await folded(worker, name, 1)
        await worker.terminate()
    with site.worker(after):
        reasons = {name: [value["fold"]["reason"] for value in (await site.outcome(name, 1)).values.values()] for name in changed}

    assert {"quieter": ["quiet"], "shorter": ["max_hold"]} == reasons


@pytest.mark.apache
async def test_renamed_fold_starts_anew_and_open_groups_of_its_old_name_are_emitted(site: Site) -> None:
    await site.topics("events", "old", "new", "events.dead")
    configs = {name: site.config(site.fold(name, "events", quiet_period="1h"), f"{name}.toml") for name in ("old", "new")}
    sent = {f"n{number}": f"a{number % 7}".encode() for number in range(60)}
    for name, begin, end in (("old", 0, 30), ("new", 30, 50), ("old", 50, 60)):
        with site.worker(configs[name]) as worker:
            await worker.wait_ready()
            await site.send("events", [event(sent[change].decode(), change) for change in list(sent)[begin:end]])
            await folded(worker, name, 50 if name == "new" else 30)
            if name == "new":
                # It has the partitions of the old name, and emits its groups.
                first = await site.outcome("old", 30)
                log = worker.log()
            await worker.terminate()
    with site.worker(configs["new"]):
        old = await site.outcome("old", 60)

    assert {"flush"} == {value["fold"]["reason"] for value in first.values.values()}
    assert "fold is no longer declared, its open groups are emitted unchanged fold=old" in log
    # Under its old name it continued where it had been: every event once.
    assert [] == old.faults(sent)


@pytest.mark.apache
async def test_events_of_an_aborted_transaction_are_not_folded(site: Site) -> None:
    await site.topics("events", "folded", "events.dead", partitions=1)
    producer = AIOKafkaProducer(bootstrap_servers=site.bootstrap, transactional_id=site.names.app_id)
    await producer.start()
    with site.worker(site.config(site.fold("folded", "events"))) as worker:
        await worker.wait_ready()
        topic = site.names.topic("events")
        for number in range(6):
            await producer.begin_transaction()
            for name in ("x", "y"):
                key, value = event("a", f"{name}{number}")
                await producer.send_and_wait(topic, value, key)
            await (producer.commit_transaction() if number % 2 else producer.abort_transaction())
        outcome = await site.outcome("folded", 6)
        # An open transaction holds back the events behind it, and nothing else: open groups are emitted all the same.
        await site.send("events", [event("b", "before")])
        await producer.begin_transaction()
        await producer.send_and_wait(topic, *reversed(event("c", "open")))
        before = await site.outcome("folded", 7)
        await producer.abort_transaction()
        await site.send("events", [event("d", "after")])
        after = await site.outcome("folded", 8)
    await producer.stop()

    assert {f"{name}{number}" for name in "xy" for number in (1, 3, 5)} == set(outcome.ids_of)
    assert "before" in before.ids_of
    assert ("open" in after.ids_of, "after" in after.ids_of) == (False, True)


@pytest.mark.apache
async def test_log_append_time_works_like_create_time(site: Site) -> None:
    await site.topics("events", partitions=1, configs={"message.timestamp.type": "LogAppendTime"})
    await site.topics("folded", "events.dead", partitions=1)
    with site.worker(site.config(site.fold("folded", "events"))) as worker:
        await worker.wait_ready()
        await site.send("events", [event("a", "x"), event("a", "y")], timestamp_ms=1)
        outcome = await site.outcome("folded", 2)

    (value,) = outcome.values.values()
    assert value["fold"]["first_event_ms"] > 1_600_000_000_000


async def folded(worker: WorkerProcess, fold: str, events: int) -> None:
    """Wait until a worker has folded this number of events since its start."""
    wanted = f'folded_total{{fold="{fold}"}} {events}.0'
    await wait_until(lambda: wanted in metrics_of(worker), LIMIT_SECONDS, f"fold {fold} has folded {events} events")
