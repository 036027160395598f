"""``streams-app journal``, as a person runs it."""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest
import redis.asyncio

from streams_app.journal.core.entry import Row, row_of
from tests.conftest import KafkaServer, Names, RedisServer
from tests.helpers.cli.commands import run
from tests.helpers.journal.journal_desk import Desk, desk_settings, event, three_days
from tests.helpers.journal.journals import at, row
from tests.helpers.kafka.records import Raw
from tests.helpers.kafka.topics import create_topics, produce
from tests.helpers.waiting import wait_until

# Reading


async def test_entries_gaps_and_the_end_are_printed(desk: Desk) -> None:
    await three_days(desk)
    await desk.shard.gap(9)
    await desk.shard.append([row("a", 10, 2, b"\x1b[31m\n"), row("a", 11, 2, None)])
    ran = desk("read", "a")

    assert (
        0,
        [
            '2026-08-18 00:00:00Z  0-0  {"account_id": "a", "changed": ["likes"]}',
            '2026-08-19 00:00:00Z  0-2  {"account_id": "a", "changed": ["shares"]}',
            '2026-08-20 00:00:00Z  0-3  {"account_id": "a", "changed": []}',
            "-- offsets 4 to 9 of partition 0 are not kept: the topic had removed them before a worker read them",
            "2026-08-20 00:00:00Z  0-10  \\u001b[31m\\n",
            "2026-08-20 00:00:00Z  0-11  (no value: a tombstone)",
        ],
        "a: 5 events, all that is there now; --from accounts:0-11 continues after it\n",
    ) == (ran.code, ran.out.splitlines(), ran.err)
    assert "a: no event, all that is there now\n" == desk("read", "a", "--from", "0-11").err


async def test_limit_json_and_the_next_cursor_are_supported(desk: Desk) -> None:
    await three_days(desk)
    ran = desk("read", "a", "--limit", "1", "--json")
    entry = json.loads(ran.out)
    rest = desk("read", "a", "--from", entry["cursor"], "--json")

    assert ("accounts:0-0", at(0), '{"account_id": "a", "changed": ["likes"]}') == (entry["cursor"], entry["at_ms"], entry["value"])
    assert "a: 1 event, there may be more; --from accounts:0-0 continues after it\n" == ran.err
    assert ["accounts:0-2", "accounts:0-3"] == [json.loads(line)["cursor"] for line in rest.out.splitlines()]


async def test_removed_older_events_are_reported_in_every_output(desk: Desk) -> None:
    await three_days(desk)
    whole = desk("read", "a")
    await desk.shard.store.drop(0)
    text, as_json, other = desk("read", "a"), desk("read", "a", "--json", "--limit", "1"), desk("read", "x", "--from", "0-3")

    assert "older removed" not in whole.err
    assert "a: 2 events, all that is there now; begins at 0-2, older removed; --from accounts:0-3 continues after it\n" == text.err
    assert ("a: 1 event, there may be more; begins at 0-2, older removed", True) == (
        as_json.err.split("; --from")[0], json.loads(as_json.out)["older_removed"],
    )  # fmt: skip
    assert "x: no event, all that is there now; begins at 0-2, older removed\n" == other.err


async def test_key_beyond_the_limit_points_to_events_without_a_key(desk: Desk) -> None:
    value = json.dumps({"account_id": "x" * 513}).encode()
    stored, _ = row_of(Raw(0, at(0), b"k", value), desk.settings.journals[0], desk.settings.limits)
    await desk.shard.append([stored])

    assert f"key of more than 512 bytes (limits.key_bytes; this one has {513}) are kept without a key: journal read --unkeyed" in (
        desk("read", "x" * 513).err
    )
    assert "limits.key_bytes" not in desk("read", "x" * 512).err
    assert 1 == len(desk("read", "--unkeyed").out.splitlines())


async def test_cursor_below_the_floor_ends_with_1_and_the_floor_and_from_floor_continues(desk: Desk) -> None:
    await three_days(desk)
    await desk.shard.store.drop(0)
    ran = desk("read", "a", "--from", "0-0")

    assert (1, "", "error: offsets 1 to 1 of partition 0 are removed: it begins at 0-2; --from-floor continues there\n") == (
        ran.code, ran.out, ran.err,
    )  # fmt: skip
    went_on = desk("read", "a", "--from", "0-0", "--from-floor")
    assert (0, "-- offsets 1 to 1 of partition 0 are not kept: the journal has removed them: keep, max_bytes, or journal drop") == (
        went_on.code, went_on.out.splitlines()[0],
    )  # fmt: skip
    assert 3 == len(went_on.out.splitlines())


async def test_unquoted_key_matches_both_number_and_text(desk: Desk) -> None:
    await desk.shard.append([event(0, 0, "17"), Row(b"j17", 1, at(0), b"number"), event(2, 0, "x"), event(3, 0, "17")])

    assert ["0-0", "0-1", "0-3"] == [line.split()[2] for line in desk("read", "17").out.splitlines()]
    assert ["0-0", "0-3"] == [line.split()[2] for line in desk("read", '"17"').out.splitlines()]


async def test_unkeyed_events_are_read_separately(desk: Desk) -> None:
    of_b = Row(b"", 1, at(0), None, (("\0", b"b\n"),))
    await desk.shard.append([Row(b"", 0, at(0), b"no JSON \xff"), of_b, event(2)])

    assert [
        "2026-08-18 00:00:00Z  0-0  no JSON \\xff",
        '2026-08-18 00:00:00Z  0-1  key "b\\n": (no value: a tombstone)',
    ] == desk("read", "--unkeyed").out.splitlines()
    assert ["b\n"] == [json.loads(line)["key"] for line in desk("read", "--unkeyed", "--from", "0-0", "--json").out.splitlines()]


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["a", "--from", "3"], 2, "write a cursor as in 3-1041"),
        (["a", "--from", "yesterday"], 2, "write a cursor as in 3-1041"),
        (["a", "--from", "-99999d"], 2, "'-99999d' is before 1970"),
        (["a", "--from", "2099-01-01"], 2, "2099-01-01 00:00:00Z is in the future"),
        (["a", "--from", "orders:0-1"], 2, "the cursor is of journal orders, not of accounts"),
        (["a", "--from", "7-1"], 2, "partition 7 of the cursor does not exist"),
        ([], 1, "name a KEY, or --unkeyed"),
        (["a", "--unkeyed"], 1, "name a KEY, or --unkeyed"),
        (["a", "--limit", "0"], 1, "--limit"),
        (["a", "--journal", "acounts"], 1, "did you mean 'accounts'?"),
        (["a", "--fold", "x"], 1, "is not a fold id: the header fold-id of a record, as in"),
        (["a", "--fold", "f:events:0:9-1"], 1, "is not a fold id"),
        (["a", "--fold", "g:events:0:1-9"], 1, "'g'"),
        (["a", "--fold", "f:other:0:1-9"], 1, "the record is of other, journals.accounts of events"),
        (["a", "--fold", "f:events:0:1-9", "--follow"], 1, "--fold requires a KEY"),
        (["a", "--fold", "f:events:7:1-9"], 1, "partition 7 does not exist: the source has partitions 0 to 0"),
        (["a", "--from", ""], 2, "write a cursor as in 3-1041"),
        (["a", "--from", "99999-1"], 2, "partition 99999 of the cursor does not exist: no source has more than 10,000"),
    ],
)
async def test_invalid_input_is_rejected_with_an_explanation(desk: Desk, arguments: list[str], code: int, message: str) -> None:
    await three_days(desk)
    ran = desk("read", *arguments)

    assert (code, "") == (ran.code, ran.out)
    assert message in ran.err


async def test_unread_journal_is_reported(desk: Desk) -> None:
    await desk.shard.wipe()
    ran = desk("read", "a")

    assert (0, "") == (ran.code, ran.out)
    assert "not read yet by a worker, or lost by Redis: partition 0 of events" in ran.err


async def test_closed_output_pipe_ends_the_command_quietly(desk: Desk) -> None:
    await desk.shard.append([row("a", offset, 0, b"x" * 1_000) for offset in range(400)])
    command = f"{sys.executable} -m streams_app journal read --config {desk.config} a | head -1"
    process = await asyncio.create_subprocess_shell(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    out, err = await process.communicate()

    assert (1, b"") == (len(out.splitlines()), err)


async def test_follower_prints_new_events_until_it_is_interrupted(desk: Desk, tmp_path: Path) -> None:
    await three_days(desk)
    out = tmp_path / "out"
    with out.open("wb") as stdout:
        command = [sys.executable, "-m", "streams_app", "journal", "read", "--config", str(desk.config), "a", "--follow"]
        process = await asyncio.create_subprocess_exec(*command, stdout=stdout, stderr=subprocess.PIPE)
        try:
            await wait_until(lambda: b"0-3" in out.read_bytes(), 30, "what is there")
            await desk.shard.append([event(4, 3)])
            await wait_until(lambda: b"0-4" in out.read_bytes(), 30, "what comes")
            process.send_signal(signal.SIGINT)
            _, err = await process.communicate()
        finally:
            with suppress(ProcessLookupError):
                process.kill()

    assert (130, b"interrupted") == (process.returncode, err.strip())


# The events of a folded record


async def test_events_of_a_folded_record_are_shown_with_their_changes(desk: Desk) -> None:
    await desk.shard.append(
        [
            event(0, 0, "a", "other record"), event(1, 0, "a", "likes"), event(2, 0, "b", "x"), event(3, 0, "a", "shares", "likes"),
            row("a", 4, 0, b'{"account_id": "a"}'), event(5, 0, "a", "z z"), event(6, 0, "a", "later"),
        ]
    )  # fmt: skip
    ran = desk("read", "a", "--fold", "f:events:0:1-5")

    assert [
        '2026-08-18 00:00:00Z  0-1  {"account_id": "a", "changed": ["likes"]}', "    changed likes",
        '2026-08-18 00:00:00Z  0-3  {"account_id": "a", "changed": ["shares", "likes"]}', "    changed shares, likes",
        '2026-08-18 00:00:00Z  0-4  {"account_id": "a"}', "    not in the record: a dead letter: no-changed",
        '2026-08-18 00:00:00Z  0-5  {"account_id": "a", "changed": ["z z"]}', "    changed z z",
    ] == ran.out.splitlines()  # fmt: skip
    assert "f:events:0:1-5: 3 events, 3 changed names (likes, shares, z z)\n" == ran.err


async def test_offsets_of_a_folded_record_below_the_floor_are_counted(desk: Desk) -> None:
    await three_days(desk)
    await desk.shard.store.drop(0)
    ran = desk("read", "a", "--fold", "f:events:0:0-3", "--json")
    lines = [json.loads(line) for line in ran.out.splitlines()]

    assert (1, ["removed", ["shares"], []]) == (ran.code, [line.get("why") or line["changed"] for line in lines])
    assert "2 of its 4 offsets are below the floor" in ran.err


@pytest.mark.parametrize("is_lost", [False, True])
async def test_unread_offsets_of_a_folded_record_are_counted(desk: Desk, is_lost: bool) -> None:
    await three_days(desk)
    if is_lost:
        await desk.shard.wipe()
    ran = desk("read", "a", "--fold", "f:events:0:2-7")
    first, left = (2, 6) if is_lost else (4, 4)

    assert (75, f"-- offsets {first} to 7 of partition 0 are not kept: no worker has read them yet, or Redis has lost them") == (
        ran.code, ran.out.splitlines()[-1],
    )  # fmt: skip
    assert f"no worker has read {left} of its 6 offsets yet, or Redis has lost them: start a worker" in ran.err


async def test_retention_gap_in_a_folded_record_ends_with_1(desk: Desk) -> None:
    await desk.shard.append([event(0, 0, "a", "likes")])
    await desk.shard.gap(4)
    ran = desk("read", "a", "--fold", "f:events:0:0-4")

    assert (1, True) == (ran.code, "4 of its offsets are not kept, see above" in ran.err)


async def test_follower_from_a_moment_and_from_its_cursor_receives_nothing_older(desk: Desk) -> None:
    await desk.shard.append([event(offset) for offset in range(6)])
    first = desk("read", "a", "--from", str(at(0, 3)), "--limit", "1")
    (_, cursor) = first.err.strip().removesuffix(" continues after it").split("--from ")

    assert ["0-3"] == [line.split()[2] for line in first.out.splitlines()]
    assert ["0-4", "0-5"] == [line.split()[2] for line in desk("read", "a", "--from", cursor).out.splitlines()]


async def test_journal_by_another_key_is_rejected(
    redis_client: redis.asyncio.Redis, redis_server: RedisServer, names: Names, tmp_path: Path
) -> None:
    desk = Desk(redis_client, desk_settings(names, redis_server.url, "127.0.0.1:9", key="@key"), tmp_path)
    ran = desk("read", "a", "--fold", "f:events:0:0-3")

    assert (1, True) == (ran.code, "fold f is by account_id, journals.accounts by @key" in ran.err)


# What is there


async def test_days_sizes_and_largest_keys_are_listed(desk: Desk) -> None:
    await three_days(desk)
    listed = desk("list")
    top = desk("list", "--top")
    lines = [json.loads(line) for line in desk("list", "--json").out.splitlines()]

    assert listed.out.startswith("accounts of events: 4 events in 3 segments of 1 partition, 2026-08-18 to 2026-08-20; ")
    assert ["2026-08-20", "2026-08-19", "2026-08-18"] == [line.split()[0] for line in listed.out.splitlines()[2:]]
    assert ["a", "b"] == [line.split()[0] for line in top.out.splitlines()[2:]]
    assert [("2026-08-20", 3, 3), ("2026-08-19", 2, 2), ("2026-08-18", 0, 1)] == [
        (line["day"], line["first"], line["last"]) for line in lines
    ]


async def test_unavailable_redis_is_reported_with_75(names: Names, redis_client: redis.asyncio.Redis, tmp_path: Path) -> None:
    desk = Desk(redis_client, desk_settings(names, "redis://127.0.0.1:9/0", "127.0.0.1:9"), tmp_path)

    assert [75] * 3 == [desk("read", "a").code, desk("list").code, desk("drop", "--before", "2026-08-20").code]


# Tuning


async def test_curve_of_a_journal_matches_a_file_with_the_same_events(desk: Desk, tmp_path: Path) -> None:
    rows = [event(n, n // 40, f"account_{n * 7 % 5}", f"m{n % 3}")._replace(time_ms=at(n // 40, n * n * 1_000)) for n in range(120)]
    await desk.shard.append(rows)
    await desk.shard.pack(40, rows[40:80])
    lines = [json.dumps({**json.loads(one.value or b""), "at": one.time_ms}) for one in rows]
    (tmp_path / "events.jsonl").write_text("\n".join(lines), "utf-8")
    common = ["tune", "--config", str(desk.config), "--json", "--windows", "1s,10s,60s,1h"]
    by_journal = run(*common, "--journal", "accounts")
    by_file = run(*common, "--file", str(tmp_path / "events.jsonl"), "--time", "at")
    last_day = run(*common, "--journal", "accounts", "--from", "2026-08-20")

    assert (0, 120) == (by_journal.code, json.loads(by_journal.out)["events"])
    assert json.loads(by_file.out)["curve"] == json.loads(by_journal.out)["curve"]
    assert 40 == json.loads(last_day.out)["events"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--journal", "x"], "there is no journal 'x'"),
        (["--journal", "accounts", "--live"], "--journal cannot be combined with --live"),
        (["--journal", "accounts", "--file", "f", "--time", "t"], "--journal or --file, not both"),
        (["--journal", "accounts"], "journals.accounts has nothing in Redis"),
    ],
)
async def test_unusable_journal_for_tune_is_rejected_with_the_reason(desk: Desk, arguments: list[str], message: str) -> None:
    await desk.shard.wipe()
    ran = run("tune", "--config", str(desk.config), *arguments)

    assert (1, True) == (ran.code, message in ran.err)


# Compared with Kafka


@pytest.fixture
async def filled(
    kafka: KafkaServer, redis_client: redis.asyncio.Redis, redis_server: RedisServer, names: Names, tmp_path: Path
) -> tuple[Desk, list[Row]]:
    """A topic of ten events, and what its journal has of each."""
    topic = names.topic("events")
    await create_topics(kafka.bootstrap_servers, [topic], partitions=1)
    settings = desk_settings(names, redis_server.url, kafka.bootstrap_servers, source=topic)
    desk = Desk(redis_client, {**settings, "folds": []}, tmp_path)
    await desk.shard.claim()
    values = [json.dumps({"account_id": f"account_{n % 3}", "n": n}).encode() for n in range(9)] + [b"no JSON"]
    await produce(
        kafka.bootstrap_servers, topic, [(b"k", value) for value in values], partition=0, timestamp_ms=at(0), headers=[("h", b"x")]
    )
    records = [Raw(offset, at(0), b"k", value, (("h", b"x"),)) for offset, value in enumerate(values)]
    return desk, [row_of(record, desk.settings.journals[0], desk.settings.limits)[0] for record in records]


async def test_verify_accepts_raw_and_packed_segments_that_match_the_topic(filled: tuple[Desk, list[Row]]) -> None:
    desk, rows = filled
    await desk.shard.append(rows[:6])
    raw = desk("verify")
    await desk.shard.store.close(0)
    await desk.shard.pack(0, rows[:6])
    packed = desk("verify")

    source = desk.settings.journals[0].source
    verdict = f"accounts: 6 events in 1 segment decoded, 6 compared with {source}: nothing is wrong\n"
    assert (0, verdict) == (raw.code, raw.out)
    assert (raw.code, raw.out) == (packed.code, packed.out)


async def test_verify_names_missing_differing_and_damaged_events(filled: tuple[Desk, list[Row]]) -> None:
    desk, rows = filled
    await desk.shard.append([rows[0], rows[1], rows[2]._replace(value=b"other"), *rows[4:]])
    found = desk("verify")
    await desk.shard.damage(0)
    damaged = desk("verify")

    place = "partition 0, 2026-08-18 (offsets from 0 on): "
    assert (1, [f"{place}offset 2 is another event in the topic", f"{place}offset 3 of the topic is missing"]) == (
        found.code, found.out.splitlines()[:-1],
    )  # fmt: skip
    assert found.out.endswith("2 faults\n")
    assert f"{place}the checksum of the block does not match" in damaged.out
    assert f"{place}it has 8 events, and counts 9" in damaged.out
