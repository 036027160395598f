"""``streams-app groups list`` from outside."""

from __future__ import annotations

import asyncio
import json
import os
import signal

import pytest
from redis.asyncio import Redis

from streams_app.embedded import Valkey
from streams_app.folding.core.closing import Bounds
from streams_app.folding.core.event import FoldEvent
from streams_app.folding.store.keys import shard_keys
from streams_app.folding.store.shard_store import ShardStore
from streams_app.operations.groups import stored_shards
from tests.helpers.cli.commands import CANARY, FOLD, Place, Ran, run
from tests.helpers.folding.scripts import open_in as opened
from tests.helpers.operations.forgetting import Application
from tests.helpers.waiting import wait_until

BOUNDS = Bounds(1_000, 3_600_000)


async def open_in(place: Place, client: Redis, partition: int, events: list[FoldEvent]) -> ShardStore:
    """Fold events as a worker would; return the shard, owned by ``me``."""
    return await opened(place.names.app_id, FOLD, place.topics[0], client, partition, events, BOUNDS)


@pytest.fixture
async def open_groups(place: Place, redis_client: Redis) -> None:
    """Return two partitions with groups: ``anna`` (3 events) and ``7``; ``"7"``, silent for longest."""
    shards = {
        0: [FoldEvent(0, 5_000, b"sanna", {"likes": 1}), FoldEvent(1, 5_400, b"sanna", {"shares": 1}),
            FoldEvent(2, 5_600, b"j7", {"likes": 1}), FoldEvent(3, 5_900, b"sanna", {"likes": 2})],
        3: [FoldEvent(10, 1_000, b"s7", {"likes": 1}), FoldEvent(11, 90_000, b"s\xc3\xa9t\xc3\xa9", {"likes": 1})],
    }  # fmt: skip
    for partition, events in shards.items():
        await open_in(place, redis_client, partition, events)


@pytest.mark.usefixtures("open_groups")
async def test_groups_are_listed_as_json_longest_quiet_first(place: Place) -> None:
    ran = await asyncio.to_thread(run, "groups", "list", "--json", "--config", place.config())
    rows = [json.loads(line) for line in ran.out.splitlines()]

    assert (ran.code, ran.err) == (0, "")
    assert [("7", 3, 1, 10), ("7", 0, 1, 2), ("anna", 0, 3, 0), ("été", 3, 1, 11)] == [
        (row["group"], row["partition"], row["events"], row["first_offset"]) for row in rows
    ]
    assert ["7", 7, "anna", "été"] == [row["key"] for row in rows]
    assert {(FOLD, place.topics[0])} == {(row["fold"], row["source"]) for row in rows}
    anna = rows[2]
    assert (5_900, 1_000, 6 * 3_600_000 - 900) == (anna["last_event_ms"], anna["quiet_in_ms"], anna["hold_in_ms"])
    assert rows[0]["quiet_in_ms"] < 0


@pytest.mark.usefixtures("open_groups")
async def test_groups_are_listed_as_a_table_for_people(place: Place) -> None:
    ran = await asyncio.to_thread(run, "groups", "list", "--config", place.config())
    lines = ran.out.splitlines()

    assert (ran.code, ran.err) == (0, "")
    assert len(lines) == 5
    assert lines[0].split("  ")[0] == "GROUP"
    assert ['"7"', "7"] == [line.split()[0] for line in lines[1:3]]
    assert " due " in lines[1]
    (anna,) = (line for line in lines if line.startswith("anna "))
    assert {FOLD, f"{place.topics[0]}-0", "3", "1970-01-01", "00:00:05Z"} <= set(anna.split())
    assert "1.0 s" in anna
    assert "5 h 59 min" in anna


@pytest.mark.long
async def test_list_shows_any_key_without_breaking(place: Place, redis_client: Redis) -> None:
    keys = ["[/x]", "[red]x[/red]", ":smile:", "a\nb", "\x1b[31mred", "\u202eabc", "漢字", "k" * 300]
    events = [FoldEvent(number, 1_000 + number, b"s" + key.encode(), {"[/y]\n": 1}) for number, key in enumerate(keys)]
    await open_in(place, redis_client, 0, events)
    config = place.config()
    table = await asyncio.to_thread(run, "groups", "list", "--config", config)
    ascii_only = await asyncio.to_thread(run, "groups", "list", "--config", config, PYTHONIOENCODING="ascii")
    as_json = await asyncio.to_thread(run, "groups", "list", "--json", "--config", config)
    shown = [line.split("  ")[0] for line in table.out.splitlines()[1:]]
    explained = await asyncio.to_thread(run, "groups", "explain", shown[3], "--config", config)

    assert (0, 0, 0, 0) == (table.code, ascii_only.code, as_json.code, explained.code), table.err + ascii_only.err + explained.err
    expected = ["[/x]", "[red]x[/red]", ":smile:", '"a\\nb"', '"\\u001b[31mred"', '"\\u202eabc"', "漢字"]
    assert expected == shown[:-1]
    assert ("kkk", "…", True) == (shown[-1][:3], shown[-1].strip("k"), len(shown[-1]) <= 120)
    assert keys == [json.loads(line)["key"] for line in as_json.out.splitlines()]
    assert all(line.isprintable() for ran in (table, as_json, explained) for line in ran.out.splitlines())
    assert '"a\\nb" of fold account-metrics is open' in explained.out
    assert '("[/y]\\n")' in explained.out


async def test_group_in_the_outbox_is_explained(place: Place, redis_client: Redis) -> None:
    store = await open_in(place, redis_client, 0, [FoldEvent(0, 5_000, b"sanna", {"likes": 1})])
    await store.seal("me", 0, 5_000, BOUNDS, quiet=False, everything=True, limit=10, partitions=4)
    ran = await asyncio.to_thread(run, "groups", "explain", "anna", "--config", place.config())

    assert (ran.code, ran.err) == (0, "")
    assert "1 record of the group, not acknowledged yet by the broker" in " ".join(ran.out.split())


async def test_facts_about_a_group_are_printed_as_json(place: Place, redis_client: Redis) -> None:
    await open_in(place, redis_client, 0, [FoldEvent(0, 5_000, b"sanna", {"likes": 1})])
    ran = await asyncio.to_thread(run, "groups", "explain", "anna", "--json", "--config", place.config())
    found = json.loads(ran.out)
    (state,) = found["states"]

    assert (ran.code, ran.err) == (0, "")
    assert ("anna", FOLD, ["likes"]) == (found["group"], found["fold"], state["names"])
    assert ("clock-stopped", "anna", 1, 0) == (state["verdict"], state["key"], state["open"]["events"], state["outbox_records"])
    assert ["quiet_period", "max_hold", "max_changed"] == [bound["bound"] for bound in state["bounds"]]


async def test_drop_without_a_worker_stays_requested_for_the_next_owner(place: Place, redis_client: Redis) -> None:
    store = await open_in(place, redis_client, 0, [FoldEvent(0, 5_000, b"sanna", {"likes": 1})])
    words = ("groups", "drop", "anna", "--yes", "--reason", "a loop", "--timeout", "0.1", "--config", place.config())
    ran = await asyncio.to_thread(run, *words)
    done = await store.seal("me", 0, 5_000, BOUNDS, quiet=False, limit=10, partitions=4)

    assert 75 == ran.code
    assert "no worker has done it within" in ran.err
    assert "unless the group has been emitted by then" in ran.err
    assert "audit" not in ran.err
    assert [(b"sanna", "a loop")] == [(group.member, group.request.reason) for group in done.dropped]


async def test_drop_of_a_group_emitted_meanwhile_says_so(place: Place, redis_client: Redis) -> None:
    store = await open_in(place, redis_client, 0, [FoldEvent(0, 5_000, b"sanna", {"likes": 1})])
    words = ("groups", "drop", "anna", "--yes", "--reason", "a loop", "--config", place.config())
    ran = asyncio.create_task(asyncio.to_thread(run, *words))
    await wait_until(lambda: redis_client.exists(store.keys.drop), 30, "the drop is requested")
    # The group left before its owner saw the request, which then names a fold that is not open any more.
    await redis_client.delete(store.keys.first, store.keys.due, store.keys.open)
    await store.seal("me", 0, 5_000, BOUNDS, quiet=False, limit=10, partitions=4)

    assert (1, True) == (
        (await ran).code,
        "anna was emitted before the worker of its partition took the request" in (await ran).err,
    )


@pytest.mark.long
async def test_unresponsive_redis_times_out(place: Place) -> None:
    with Valkey.start() as silent:
        os.kill(silent.pid, signal.SIGSTOP)
        ran = await asyncio.to_thread(run, "groups", "list", "--config", place.config(redis_url=silent.url))
        os.kill(silent.pid, signal.SIGCONT)

    assert (ran.code, ran.err) == (75, f"error: cannot reach Redis at {silent.url}: it does not answer\n")


@pytest.mark.usefixtures("open_groups")
async def test_limit_keeps_the_groups_that_are_quiet_for_longest(place: Place) -> None:
    ran = await asyncio.to_thread(run, "groups", "list", "--json", "--limit", "2", "--config", place.config())

    assert [("7", 3), ("7", 0)] == [(row["group"], row["partition"]) for row in map(json.loads, ran.out.splitlines())]


@pytest.mark.usefixtures("open_groups")
async def test_groups_of_an_unknown_fold_are_rejected_with_a_similar_name(place: Place) -> None:
    config = place.config()
    declared = await asyncio.to_thread(run, "groups", "list", "--fold", FOLD, "--json", "--config", config)
    unknown = await asyncio.to_thread(run, "groups", "list", "--fold", "acount-metrics", "--config", config)

    assert (declared.code, len(declared.out.splitlines())) == (0, 4)
    assert unknown.code == 1
    assert FOLD in unknown.err


def test_empty_list_says_that_there_are_no_open_groups(place: Place) -> None:
    config = place.config()

    assert Ran(0, "no open groups\n", "") == run("groups", "list", "--config", config)
    assert Ran(0, "", "") == run("groups", "list", "--json", "--config", config)


def test_groups_command_without_redis_asks_for_a_retry(away: Place) -> None:
    ran = run("groups", "list", "--config", away.config(redis_url=away.redis_url.replace("//", f"//:{CANARY}@")))

    assert ran.code == 75
    assert f"cannot reach Redis at {away.redis_url}" in ran.err


@pytest.mark.parametrize(
    "url", ["redis+cluster://127.0.0.1:1/3", f"redis://127.0.0.1:1{CANARY}/0", f"redis://:{CANARY}/x@127.0.0.1:1/0"]
)
def test_unusable_redis_url_is_a_configuration_error(away: Place, url: str) -> None:
    ran = run("groups", "list", "--config", away.config(redis_url=url))

    assert ran.code == 1
    assert "redis.url" in ran.err


async def test_partitions_with_open_groups_are_found_among_hundreds_without(application: Application) -> None:
    fold = application.settings.folds[0]
    for partition in (0, 20, 400, 1_999):
        meta = shard_keys(application.settings.app_id, fold.name, fold.source, partition).meta
        await application.client.hset(meta, mapping={"clock": 5, "fence": partition})
    stored = await stored_shards(application.client, application.settings, None)

    assert [(0, 0), (20, 20), (400, 400), (1_999, 1_999)] == [(shard.partition, shard.fence) for shard in stored]
