"""``streams-app forget``: what it removes from the state in Redis, and what it leaves to other keys, byte by byte."""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any, cast
from zlib import crc32

import pytest
from redis.asyncio import Redis

from streams_app.delivery.batch import TP
from streams_app.delivery.scripts import FencedError
from streams_app.folding.core.auto_quiet import AutoQuietGoal, LearnedGaps, packed_gaps, unpacked_gaps
from streams_app.folding.core.event import FoldEvent
from streams_app.journal.core.block import decode, encode
from streams_app.journal.core.entry import Row
from streams_app.journal.store.journal_store import JournalShardReader, JournalStore, NoEventsReply
from streams_app.live.core.operations import Change
from streams_app.live.core.state import Item
from streams_app.live.store.keys import presence_keys, view_keys
from streams_app.live.store.view_store import LiveScripts, ViewMetadata, ViewStart, ViewStore
from streams_app.operations.forget.part import Forgetting, ForgottenKey, TopicBounds
from streams_app.operations.forget.state import FoldPart, JournalPart, ViewPart
from streams_app.read_store.core.merge import Cell, CellChange
from streams_app.read_store.core.store import CheckpointStep
from streams_app.read_store.registry import open_store
from streams_app.subscribers.state.keys import SubscriberKeys
from tests.conftest import KafkaServer, Names, RedisServer
from tests.helpers.folding.scripts import open_in
from tests.helpers.journal.journals import JournalShard, row
from tests.helpers.kafka.topics import create_topics, produce
from tests.helpers.operations.forgetting import BOUNDS, PERSON, Application, in_files

CLOCK_MS = 1_700_000_000_000


@pytest.fixture
async def application(
    kafka: KafkaServer, redis_server: RedisServer, redis_client: Redis, names: Names
) -> AsyncIterator[Application]:
    source, output, dead = (names.topic(suffix) for suffix in ("events", "folded", "dead"))
    given = {
        "app_id": names.app_id,
        "redis": {"url": redis_server.url},
        "kafka": {"bootstrap_servers": kafka.bootstrap_servers},
        "folds": [{
            "name": "f", "source": source, "output": output, "dead_letters": dead, "group_key": "g", "changed": "m",
            "quiet_period": "1s",
        }],
        "journals": [{"name": "days", "source": source, "key": "g"}],
        "live": [
            {"name": "news", "kind": "list", "source": source, "page": "g", "item": "m", "expiry": "1h", "dead_letters": dead,
                "public": True},
            {"name": "here", "kind": "presence", "expiry": "1m", "public": True},
        ],
    }  # fmt: skip
    await create_topics(kafka.bootstrap_servers, [source, output, dead], partitions=1)
    yield Application(redis_client, given)


async def produced(application: Application, events: int, topic: str = "") -> None:
    settings = application.settings
    await produce(settings.kafka.bootstrap_servers, topic or settings.folds[0].source, [(b"k", b"{}")] * events)


async def test_open_groups_requests_and_records_of_a_key_are_removed_and_those_of_other_keys_stay(application: Application) -> None:
    await produced(application, 6)
    store = await application.open_groups(PERSON, "anna")
    await store.seal("me", 1, 5_001, BOUNDS, quiet=False, everything=True, limit=10, partitions=1)
    await application.open_groups(PERSON, "ben", PERSON, "anna", first=2)
    member = b"s" + PERSON.encode()
    await application.client.hset(store.keys.drop, member, b"2 []")
    await application.client.hset(store.keys.dropped, member, b"0 1 0 1 0 []")
    await application.client.hset(f"{store.keys.ids_prefix}s{PERSON}", "digest", 2)
    await application.client.sadd(store.keys.flush, member, b"sanna")
    expected = {"open groups": 1, "events in open groups": 2, "records not yet sent": 1, "requests of operators": 3}
    plan = await application.plan()
    assert await application.traces()
    receipt = await application.forget()

    assert (expected, expected) == (dict(plan.found["fold f"]), dict(receipt.found["fold f"]))
    assert [] == await application.traces()
    assert [b"sben", b"sanna"] == await application.client.zrange(store.keys.first, 0, -1)
    assert 1 == await application.client.zcard(store.keys.outbox)
    assert {} == {where: counts for where, counts in (await application.forget()).found.items() if any(counts.values())}


AUTO_QUIET = {"auto": "knee", "at_least": "10s", "default": "1m", "at_most": "30m"}


async def test_what_was_learned_from_a_key_for_the_quiet_period_is_removed_and_the_rest_stays(application: Application) -> None:
    application.with_fold(quiet_period=AUTO_QUIET)
    await produced(application, 3)
    store = await application.open_groups("anna")
    goal = AutoQuietGoal.of(application.settings.folds[0])
    assert goal is not None
    gaps = LearnedGaps.nothing(goal)
    gaps.groups = {crc32(b"s" + key.encode()): 5_000 for key in (PERSON, "anna")}
    await application.client.hset(store.keys.meta, "learned", packed_gaps(gaps))
    plan, receipt, repeated = await application.plan(), await application.forget(), await application.forget()
    left = unpacked_gaps(await store.learned()).groups
    what = "times of last events, from which the quiet period is learned"

    assert (1, 1) == (plan.found["fold f"][what], receipt.found["fold f"][what])
    assert {crc32(b"sanna")} == left.keys()
    assert 0 == sum(repeated.found["fold f"].values())
    assert not any("still there" in why for why in receipt.not_yet)


@pytest.mark.parametrize("is_auto", [False, True])
async def test_worker_of_a_fold_whose_quiet_period_sets_itself_claims_again_because_it_may_have_learned_from_the_key(
    application: Application, is_auto: bool
) -> None:
    application.with_fold(quiet_period=AUTO_QUIET if is_auto else "1s")
    await produced(application, 3)
    store = await application.open_groups("anna")
    before = await application.client.hget(store.keys.meta, "token")
    await application.forget()

    assert is_auto == (before != await application.client.hget(store.keys.meta, "token"))


async def test_what_a_worker_has_learned_meanwhile_is_not_overwritten(application: Application) -> None:
    store = await application.open_groups("anna")
    await application.client.hset(store.keys.meta, "learned", "newer")
    rejected = await store.forget("me", [], 0, [], learned=b"older", rest=b"")
    replaced = await store.forget("me", [], 0, [], learned=b"newer", rest=b"")

    assert (True, False, b"") == (rejected.has_changed, replaced.has_changed, await store.learned())


def of_others(rows: list[Row]) -> list[Row]:
    return [one for one in rows if one.key != b"s" + PERSON.encode()]


@pytest.fixture
async def journal(application: Application) -> JournalShard:
    shard = JournalShard(application.client, application.settings)
    await shard.claim()
    return shard


async def rows_in(shard: JournalShard) -> list[Row]:
    """Return every row of a journal, by segment, key and offset."""
    return [
        found
        for segment in await shard.segments()
        if segment.form != "gap"
        for block in cast("Any", await shard.client.zrange(await shard.blocks_key(segment.first), 0, -1))
        for found in decode(block)
    ]


@pytest.mark.parametrize("neighbours", ["an", "zoe", PERSON + "x", PERSON[:-1]])
async def test_events_of_a_key_leave_raw_and_packed_segments_and_those_of_other_keys_stay(
    application: Application, journal: JournalShard, neighbours: str
) -> None:
    others = ["aa", neighbours, PERSON + "\0"]
    rows = [row(key, at, at // 8, b"%d" % at) for at, key in enumerate([*others, PERSON, *others, PERSON] * 3)]
    await produced(application, len(rows))
    await journal.append(rows)
    first = (await journal.segments())[0]
    await journal.pack(first.first, rows[:8])
    before, about = of_others(await rows_in(journal)), await journal.segments()
    receipt = await application.forget()
    after = await journal.segments()

    assert {"events": 6} == dict(receipt.found["journal days"])
    assert before == await rows_in(journal)
    assert [one.entries - 2 for one in about] == [one.entries for one in after]
    assert not any(key == b"s" + PERSON.encode() for one in after for key, _ in one.largest)
    assert [one.last for one in about] == [one.last for one in after]


async def test_segment_with_nothing_but_the_key_stays_readable(application: Application, journal: JournalShard) -> None:
    await produced(application, 2)
    await journal.append([row(PERSON, 0), row(PERSON, 1)])
    await application.forget()
    (segment,) = await journal.segments()

    assert (0, 0) == (segment.entries, segment.stored_bytes)
    assert NoEventsReply(1, 1, 0) == await journal.reader.read(journal.keys, b"s" + PERSON.encode(), -1)
    assert [] == await application.traces()


async def test_keeper_that_packed_a_segment_meanwhile_does_not_bring_events_back(
    application: Application, journal: JournalShard
) -> None:
    rows = [row(PERSON, 0), row("anna", 1), row("anna", 2, 1)]
    await produced(application, 3)
    await journal.append(rows)
    (segment, _) = await journal.segments()
    packed = replace(segment, form="packed", generation="later", is_closed=True)
    await journal.store.stage(packed, [encode(sorted(rows[:2]), 3)], begins=True)
    await application.forget()
    with pytest.raises(FencedError):
        await journal.store.swap(packed, 1)

    assert [] == await application.traces()


async def test_worker_that_reclaims_the_journal_meanwhile_is_overtaken(
    application: Application, journal: JournalShard, monkeypatch: pytest.MonkeyPatch
) -> None:
    await produced(application, 2)
    await journal.append([row(PERSON, 0), row("anna", 1)])
    remove, times = JournalStore.forget, itertools.count(1)

    async def overtaken(store: JournalStore, *arguments: Any) -> bool:
        if next(times) < 3:
            await journal.claim()
        return await remove(store, *arguments)

    monkeypatch.setattr(JournalStore, "forget", overtaken)
    receipt = await application.forget()

    assert ({"events": 1}, []) == (dict(receipt.found["journal days"]), await application.traces())


async def test_segment_that_is_packed_while_it_is_searched_is_searched_once_more(
    application: Application, journal: JournalShard, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = [row(PERSON, 0), row("anna", 1), row("anna", 2, 1)]
    await produced(application, 3)
    await journal.append(rows)
    scan, times = JournalShardReader.scan, itertools.count()

    async def packed_meanwhile(reader: JournalShardReader, *arguments: Any) -> list[bytes] | None:
        if not next(times):
            await journal.pack(0, rows[:2])
        return await scan(reader, *arguments)

    monkeypatch.setattr(JournalShardReader, "scan", packed_meanwhile)
    plan = await application.plan()
    receipt = await application.forget()

    assert (1, 1) == (plan.found["journal days"]["events"], receipt.found["journal days"]["events"])
    assert [] == await application.traces()


async def test_damaged_block_that_may_have_events_of_the_key_is_reported(application: Application, journal: JournalShard) -> None:
    rows = [row("anna", 0), row(PERSON, 1), row("zoe", 2), row("zoe", 3, 1)]
    await produced(application, 4)
    await journal.append(rows)
    await journal.pack(0, rows[:3])
    await journal.damage(0)
    receipt = await application.forget()

    assert 1 == sum("journal days: still there: 1 damaged blocks" in one for one in receipt.not_yet)


async def live_shard(application: Application) -> ViewStore:
    app_id, view = application.settings.app_id, application.settings.live[0]
    keys = view_keys(app_id, view.name, view.source, 0)
    store = ViewStore(LiveScripts(application.client), keys, "me", has_data=True, expiry_ms=3_600_000, keep=10)
    await store.claim("d", "id", 1, begin=ViewStart(-1, CLOCK_MS, ViewMetadata()))
    return store


async def test_page_of_the_key_and_items_with_its_name_are_removed_and_the_owner_is_fenced(application: Application) -> None:
    await produced(application, 1)
    store, here = await live_shard(application), presence_keys(application.settings.app_id, "here").here_prefix
    items = [Item(PERSON, CLOCK_MS + 1, b"payload"), Item("other", CLOCK_MS + 2, b"kept")]
    changes = [Change("page", (), items), Change("single", (), items[:1]), Change(PERSON, (), items[1:])]
    await store.apply(-1, 0, changes, ViewMetadata())
    await application.client.zadd(f"{here}{PERSON}", {"tab": CLOCK_MS})
    plan = await application.plan()
    receipt = await application.forget()
    with pytest.raises(FencedError):
        await store.expire(0, CLOCK_MS, moves_clock=False)
    keys = view_keys(application.settings.app_id, "news", application.settings.live[0].source, 0)

    assert {"live view news": {"pages": 1, "items": 3}, "live view here": {"pages": 1}} == {
        where: dict(counts) for where, counts in receipt.found.items() if any(counts.values())
    }
    assert {"pages": 1, "items": 3} == dict(plan.found["live view news"])
    assert ([], [b"page"]) == (await application.traces(), await application.client.hkeys(keys.pages))
    assert {b"other": b"kept"} == await application.client.hgetall(f"{keys.data_prefix}page")


async def test_owner_of_a_fold_is_fenced_only_if_something_of_the_key_was_stored(application: Application) -> None:
    await produced(application, 3)
    store = await application.open_groups("anna")
    await application.forget()
    await store.seal("me", 0, 5_000, BOUNDS, quiet=False, limit=10, partitions=1)
    await application.forget("anna")
    with pytest.raises(FencedError):
        await store.seal("me", 0, 5_000, BOUNDS, quiet=False, limit=10, partitions=1)


async def test_events_that_no_worker_has_read_yet_are_reported(application: Application) -> None:
    await application.open_groups("anna")
    await produced(application, 5)
    receipt = await application.forget()
    topic = application.settings.folds[0].source

    assert f"fold f: {topic}-0 is read up to offset 1 of 5" in receipt.not_yet


async def test_group_that_was_opened_after_the_command_began_stays(application: Application) -> None:
    await produced(application, 2)
    await application.open_groups("anna", "ben", PERSON)
    receipt = await application.forget()

    assert (0, []) == (receipt.found["fold f"]["open groups"], [one for one in receipt.not_yet if "fold" in one])
    assert await application.traces()


@pytest.mark.parametrize("typed", ["17", '"17"'])
async def test_number_and_text_are_two_keys(application: Application, typed: str) -> None:
    await produced(application, 2)
    events = [FoldEvent(0, 5_000, b"s17", {"a": 1}), FoldEvent(1, 5_001, b"j17", {"a": 1})]
    fold = application.settings.folds[0]
    store = await open_in(application.settings.app_id, "f", fold.source, application.client, 0, events, BOUNDS)
    await application.forget(typed)

    assert ([] if typed == "17" else [b"j17"]) == await application.client.zrange(store.keys.first, 0, -1)


@pytest.mark.parametrize("shape", ["cells", "groups"])
async def test_no_byte_of_a_key_stays_in_the_files_of_a_read_store(application: Application, tmp_path: Path, shape: str) -> None:
    layout = {"shape": "groups", "columns": {"likes": "likes"}} if shape == "groups" else {}
    application.with_read_store(url=f"sqlite:///{tmp_path}/read.db", **layout)
    output = application.settings.folds[0].output
    store = open_store(application.settings.read_stores[0])
    await store.initialise()
    keys = [PERSON, *(f"{PERSON[:6]}-{number}" for number in range(3_000))]
    for version in (1, 2):
        changes = [CellChange(Cell("f", key, "likes"), version, version) for key in keys]
        await store.apply(changes, CheckpointStep(TP(output, 0), version - 1 or None, version), 0)
    assert in_files(tmp_path, PERSON)
    others = await store.cells("f", None, 9_000)
    await produced(application, 1, output)
    plan = await application.plan()
    receipt = await application.forget()

    assert ({"values": 1}, {"rows": 1}) == (dict(plan.found["read store rows"]), dict(receipt.found["read store rows"]))
    assert [] == in_files(tmp_path, PERSON)
    assert [pair for pair in others if pair[0].group_key != PERSON] == await store.cells("f", None, 9_000)
    await store.close()


async def test_read_store_that_does_not_answer_is_reported_and_the_rest_is_erased(application: Application, tmp_path: Path) -> None:
    application.with_read_store(url="postgresql://127.0.0.1:9/nothing")
    await application.open_groups(PERSON)
    await produced(application, 1)
    receipt = await application.forget()

    assert 1 == sum(one.startswith("read store rows: ") for one in receipt.not_yet)
    assert [] == await application.traces()


async def test_interrupted_command_is_run_again(
    application: Application, journal: JournalShard, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = [row(PERSON, 0), row("anna", 1), row(PERSON, 2, 1), row("anna", 3, 1)]
    await produced(application, 4)
    await application.open_groups(PERSON, "anna", PERSON)
    await journal.append(rows)
    remove, times = JournalStore.forget, itertools.count()

    async def interrupted(store: JournalStore, *arguments: Any) -> bool:
        if next(times):
            raise KeyError("killed")
        return await remove(store, *arguments)

    with monkeypatch.context() as patched, pytest.raises(KeyError):
        patched.setattr(JournalStore, "forget", interrupted)
        await application.forget()
    assert await application.traces()
    await application.forget()

    assert ([], of_others(rows)) == (await application.traces(), await rows_in(journal))


async def test_state_of_components_that_are_no_longer_declared_is_searched(
    application: Application, journal: JournalShard, tmp_path: Path
) -> None:
    await produced(application, 3)
    store = await application.open_groups(PERSON, "anna")
    view = await live_shard(application)
    await view.apply(-1, 0, [Change(PERSON, (), [Item("i", CLOCK_MS, b"x")])], ViewMetadata())
    here = presence_keys(application.settings.app_id, "here")
    await application.client.mset({here.marker: b"x"})
    await application.client.zadd(f"{here.here_prefix}{PERSON}", {"tab": CLOCK_MS})
    subscriber = SubscriberKeys(application.settings.app_id, "ship", "orders", 0)
    await application.client.hset(subscriber.state[0], "note", "x")
    application.with_read_store(url=f"sqlite:///{tmp_path}/read.db")
    rows = open_store(application.settings.read_stores[0])
    await rows.initialise()
    change = CellChange(Cell("f", PERSON, "likes"), 1, 1)
    await rows.apply([change], CheckpointStep(TP(application.settings.folds[0].output, 0), None, 1), 0)
    await rows.close()
    application.redeclare("g", tmp_path)
    plan = await application.plan()
    receipt = await application.forget()
    source = application.settings.folds[0].source
    gone = f"no longer declared, source {source}"

    assert {
        "live view here": {"pages": 1},
        f"fold f ({gone})": {"open groups": 1, "events in open groups": 1},
        f"live view news ({gone})": {"pages": 1, "items": 1},
        "read store rows": {"rows": 1},
    } == {
        where: {what: number for what, number in counts.items() if number}
        for where, counts in receipt.found.items()
        if any(counts.values())
    }
    assert {"values": 1} == dict(plan.found["read store rows"])
    assert [] == await application.traces()
    assert [b"sanna"] == await application.client.zrange(store.keys.first, 0, -1)
    removal = "its settings, which say what its keys are, are gone; `streams-app reset --journal days --yes` removes it"
    assert f"journal days ({gone}): {removal}" in plan.not_yet and f"journal days ({gone}): {removal}" in receipt.not_yet


async def test_state_of_another_version_is_reported_with_the_command_that_removes_it(application: Application) -> None:
    app_id = application.settings.app_id
    await application.client.hset(f"{{{app_id}/old/t/0}}:v1:meta", mapping={"clock": "1", "fence": "1"})
    receipt = await application.forget()

    assert [
        "fold old (no longer declared, source t): its state has another format; `streams-app reset --fold old --yes` removes it"
    ] == [why for why in receipt.not_yet if "old" in why]


ODD_NEIGHBOURS = [
    "anna", "Anna", "anna ", "\u00e4nna", "ann", "annab", "a*", "a?", "[ab]", "a%", "a_", "a:b", "{a}", "{a", "a}:v2:group:sb",
    "meta", "due", "*", "17", "\\", "a\nb", "a\0b", "", "x" * 500, "x" * 499, "s", "j1", "#1",
]  # fmt: skip


async def test_key_of_any_kind_is_removed_and_every_similar_key_stays(application: Application, journal: JournalShard) -> None:
    settings, tp = application.settings, TP(application.settings.folds[0].source, 0)
    store, view = await application.open_groups(*ODD_NEIGHBOURS), await live_shard(application)
    await journal.append([row(key, at) for at, key in enumerate(ODD_NEIGHBOURS)])
    pages = [key for key in ODD_NEIGHBOURS if key]
    await view.apply(-1, 0, [Change(page, (), [Item("i", CLOCK_MS, b"x")]) for page in pages], ViewMetadata())
    left = list(ODD_NEIGHBOURS)
    for key in ODD_NEIGHBOURS:
        run = Forgetting(settings, application.client, ForgottenKey.of(key), {tp: TopicBounds(0, len(ODD_NEIGHBOURS))})
        parts = FoldPart(run, settings.folds[0]), JournalPart(run, settings.journals[0]), ViewPart(run, settings.live[0])
        removed = [await part.remove(is_last=True) for part in parts]
        left.remove(key)
        members = {b"s" + other.encode() for other in left}
        assert [1, 1, int(bool(key))] == [
            counts[what] for counts, what in zip(removed, ("open groups", "events", "pages"), strict=True)
        ]
        assert members == set(await application.client.zrange(store.keys.first, 0, -1)), key
        assert members == {found.key for found in await rows_in(journal)}, key
        stored = await application.client.hkeys(view_keys(settings.app_id, settings.live[0].name, tp.topic, 0).pages)
        assert {other.encode() for other in left if other} == set(stored), key


async def test_empty_key_is_no_key_of_a_journal_by_record_key(application: Application) -> None:
    application.with_journal(name="days", source=application.settings.folds[0].source, key="@key")
    receipt = await application.forget("")

    assert {} == dict(receipt.found["journal days"])


ODD_KEYS = ["", "*", "nobody", "\udcff", '"\\ud800"', "[", "[" * 9_000, "x" * 60_000, "{a}", "NaN", "1e999"]


async def test_key_that_nothing_has_changes_nothing(application: Application, journal: JournalShard) -> None:
    await produced(application, 1)
    await application.open_groups("anna")
    await journal.append([row("anna", 0)])
    before = await application.everything()
    for key in ODD_KEYS:
        receipt = await application.forget(key)
        assert not any(number for counts in receipt.found.values() for number in counts.values())
        assert not any("still there" in one for one in receipt.not_yet)

    assert before == await application.everything()
