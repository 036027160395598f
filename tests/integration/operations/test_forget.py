"""``streams-app forget``: what it removes from the state in Redis, and what it leaves to other keys, byte by byte."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any
from zlib import crc32

import pytest

from streams_app.delivery.batch import TP
from streams_app.delivery.scripts import FencedError
from streams_app.folding.core.auto_quiet import AutoQuietGoal, LearnedGaps, packed_gaps, unpacked_gaps
from streams_app.folding.core.event import FoldEvent
from streams_app.journal.store.journal_store import JournalStore
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
from tests.helpers.folding.scripts import open_in
from tests.helpers.journal.journals import JournalShard, row
from tests.helpers.operations.forgetting import BOUNDS, PERSON, Application, in_files, of_others, produced, rows_in

CLOCK_MS = 1_700_000_000_000


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
