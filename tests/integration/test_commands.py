"""``streams-app`` from outside: exit codes, what is said, and what is never said."""

from __future__ import annotations

import asyncio
import json
import os
import re
import sqlite3
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import redis
from redis.asyncio import Redis

from streams_app.cli import COMMANDS
from streams_app.embedded import Valkey
from streams_app.embedded.ports import free_port
from streams_app.folding.arguments import Bounds, arguments_of
from streams_app.folding.batch import FoldEvent, Scoring, chunks_of
from streams_app.folding.keys import shard_keys
from streams_app.folding.scripts import ScriptSet
from streams_app.folding.store import ShardStore
from tests.conftest import KafkaServer, Names, RedisServer
from tests.helpers import create_topics, write_config
from tests.servers.cache import ROOT

CANARY = "canary-7f3a9c"
LIMIT_SECONDS = 120
FOLD = "account-metrics"


@dataclass(frozen=True, slots=True)
class Ran:
    """A command that has ended."""

    code: int
    out: str
    err: str

    @property
    def text(self) -> str:
        return self.out + self.err


def run(*arguments: str, cwd: Path | None = None, **environment: str) -> Ran:
    """Runs a command to its end; the canary must not be in what it says, nor anything only a programmer understands."""
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    command = [sys.executable, "-m", "streams_app", *arguments]
    done = subprocess.run(
        command,
        check=False,
        capture_output=True,
        text=True,
        timeout=LIMIT_SECONDS,
        cwd=cwd,
        env={**os.environ, "PYTHONPATH": path, **environment},
        stdin=subprocess.DEVNULL,
    )
    ran = Ran(done.returncode, done.stdout, done.stderr)
    assert CANARY not in ran.text
    assert "Traceback" not in ran.text, ran.text
    return ran


@dataclass
class Place:
    """Settings and topics of one test."""

    names: Names
    bootstrap: str
    redis_url: str
    folder: Path

    @property
    def topics(self) -> list[str]:
        return [self.names.topic(suffix) for suffix in ("events", "folded", "dead")]

    def config(self, **options: Any) -> str:
        source, output, dead = self.topics
        given = {"app_id": self.names.app_id, "bootstrap": self.bootstrap, "redis_url": self.redis_url}
        path = self.folder / "streams.toml"
        return str(write_config(path, **{**given, "source": source, "output": output, "dead": dead, **options}))

    @property
    def read_store(self) -> str:
        sql = "SELECT account, metric, SUM(value) FROM metrics GROUP BY account, metric"
        return (
            f'[read_store]\nurl = "sqlite:///{self.folder}/read.db"\nfolds = ["{FOLD}"]\n'
            f'source = "sql"\nsource_url = "sqlite:///{self.folder}/write.db"\nsql = "{sql}"\n'
        )

    def write_database(self) -> None:
        with sqlite3.connect(self.folder / "write.db") as connection:
            connection.execute("CREATE TABLE metrics (account TEXT, metric TEXT, value INTEGER)")
        connection.close()


@pytest.fixture
def place(kafka: KafkaServer, redis_server: RedisServer, names: Names, tmp_path: Path) -> Place:
    return Place(names, kafka.bootstrap_servers, redis_server.url, tmp_path)


@pytest.fixture
def away(names: Names, tmp_path: Path) -> Place:
    """No server answers."""
    return Place(names, f"127.0.0.1:{free_port()}", f"redis://127.0.0.1:{free_port()}/0", tmp_path)


# Help and usage


@pytest.mark.parametrize(
    ("words", "purpose"),
    [
        ([], "Event folding for Kafka"),
        (["demo"], "Watch a storm of update events become a trickle"),
        (["worker"], "Run one worker"),
        (["check"], "Look whether a worker can run"),
        (["topics"], "Create the topics the settings name"),
        (["topics", "create"], "Create the topics that are missing"),
        (["groups"], "Show open groups, explain one, emit them now"),
        (["groups", "list"], "List open groups"),
        (["groups", "explain"], "Why has GROUP not been emitted?"),
        (["groups", "flush"], "Emit GROUP, or all groups, now"),
        (["dead-letters"], "List refused events, put them back"),
        (["dead-letters", "list"], "List what was refused, and why"),
        (["dead-letters", "replay"], "Put refused events back into the source"),
        (["reset"], "Remove a fold's state"),
        (["read-store"], "Prepare the read store"),
        (["read-store", "init"], "Create the tables of the read store"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_help_says_what_a_command_is_for(words: Sequence[str], purpose: str) -> None:
    for option in ("--help", "-h"):
        ran = run(*words, option)
        assert (ran.code, ran.err) == (0, "")
        assert purpose in ran.out


def test_the_help_lists_every_command_with_a_line_of_its_own() -> None:
    out = run("--help").out

    assert [] == [name for name in COMMANDS if not re.search(rf"^  {name} +\S.+\S", out, re.MULTILINE)]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["fly"], "No such command 'fly'"),
        (["worker", "--fast"], "No such option"),
        (["groups", "list", "--limit", "0"], "--limit"),
        (["topics"], "Usage: streams-app topics"),
        ([], "Usage: streams-app"),
        (["demo", "--replay", "nothing.jsonl"], "nothing.jsonl"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_wrong_usage_ends_with_1(words: Sequence[str], said: str) -> None:
    ran = run(*words)

    assert ran.code == 1
    assert said in ran.err


def test_the_version_is_that_of_the_package() -> None:
    ran = run("--version")

    assert ran.code == 0
    assert re.fullmatch(r"streams-app, version \d+\.\d+\.\d+\n", ran.out)


# Settings

WITH_SETTINGS = [["worker"], ["check"], ["topics", "create"], ["groups", "list"], ["read-store", "init"]]


@pytest.mark.parametrize("words", WITH_SETTINGS, ids=" ".join)
def test_every_fault_of_the_settings_is_told_at_once(words: Sequence[str], tmp_path: Path) -> None:
    path = tmp_path / "streams.toml"
    path.write_text(
        'app_id = "a/b"\n[kafka]\nbootstrap_server = "x:1"\nsession_timeout = 10\n'
        f'[redis]\nurl = "http://:{CANARY}@localhost"\n'
        '[folds.metrics]\nsource = "events"\ngroup_key = "id"\nchanged = "fields"\nquiet_perod = "1s"\n',
        "utf-8",
    )
    ran = run(*words, "--config", str(path))

    assert ran.code == 1
    assert ran.out == ""
    assert "kafka.bootstrap_server: unknown key, did you mean 'bootstrap_servers'?" in plain(ran.err)
    assert "folds.metrics.quiet_perod: unknown key, did you mean 'quiet_period'?" in plain(ran.err)
    for part in ("app_id:", "kafka.session_timeout:", "redis.url:", "folds.metrics.quiet_period: is required"):
        assert part in ran.err


def plain(text: str) -> str:
    """Whatever marks the suggestion."""
    return re.sub(r"[:;,]? ?\(?[Dd]id you mean [`'\"]?(\w+)[`'\"]?\?\)?", r", did you mean '\1'?", text)


@pytest.mark.parametrize("words", WITH_SETTINGS, ids=" ".join)
def test_without_settings_a_command_says_how_to_name_them(words: Sequence[str], tmp_path: Path) -> None:
    ran = run(*words, cwd=tmp_path)

    assert ran.code == 1
    for part in ("streams.toml", "--config", "STREAMS_APP_CONFIG", "streams-app demo"):
        assert part in ran.err


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    ran = run("check", "--config", str(tmp_path / "other.toml"))

    assert ran.code == 1
    assert "other.toml" in ran.err


def test_a_variable_with_a_typing_error_is_told_with_a_near_one(away: Place) -> None:
    ran = run("check", "--config", away.config(), STREAMS_APP_KAFKA_BOOTSTRAP_SERVER="x:1")

    assert ran.code == 1
    assert "STREAMS_APP_KAFKA_BOOTSTRAP_SERVER: no such setting" in ran.err
    assert "STREAMS_APP_KAFKA_BOOTSTRAP_SERVERS" in ran.err


# Topics


def test_topics_are_created_once_and_exist_then(place: Place) -> None:
    config = place.config()
    first, second = run("topics", "create", "--config", config), run("topics", "create", "--config", config)

    assert (first.code, second.code) == (0, 0)
    assert [f"created  {name}  partitions=4 replicas=1" for name in place.topics] == first.out.splitlines()
    assert [f"exists   {name}" for name in sorted(place.topics)] == second.out.splitlines()


async def test_only_the_topics_that_are_missing_are_created(place: Place) -> None:
    source, output, dead = place.topics
    await create_topics(place.bootstrap, [output], 1)
    ran = await asyncio.to_thread(run, "topics", "create", "--config", place.config(), STREAMS_APP_KAFKA_PARTITIONS="2")

    assert ran.code == 0
    assert [f"created  {source}", f"created  {dead}"] == [line.partition("  partitions=2")[0] for line in ran.out.splitlines()[:2]]
    assert [f"exists   {output}"] == ran.out.splitlines()[2:]


# Worker


def test_a_worker_without_its_topics_refuses_and_names_the_command(place: Place) -> None:
    ran = run("worker", "--config", place.config())

    assert ran.code == 1
    assert "streams-app topics create" in ran.err
    assert [] == [name for name in place.topics if f"{name!r}" not in ran.err]


async def test_a_worker_names_only_the_topics_that_are_missing(place: Place) -> None:
    source, output, dead = place.topics
    await create_topics(place.bootstrap, [source, output], 1)
    ran = await asyncio.to_thread(run, "worker", "--config", place.config())

    assert ran.code == 1
    assert f"{dead!r} (dead letters of {FOLD}) does not exist" in ran.err
    assert f"{source!r} (source" not in ran.err


@pytest.mark.parametrize("words", [["worker"], ["topics", "create"]], ids=" ".join)
def test_without_kafka_a_command_asks_to_be_tried_again(words: Sequence[str], away: Place) -> None:
    ran = run(*words, "--config", away.config())

    assert ran.code == 75
    assert f"cannot reach Kafka at {away.bootstrap}" in ran.err


async def test_a_worker_without_redis_asks_to_be_started_again(place: Place) -> None:
    await create_topics(place.bootstrap, place.topics, 1)
    config = place.config(redis_url=f"redis://127.0.0.1:{free_port()}/0")
    ran = await asyncio.to_thread(run, "worker", "--config", config)

    assert ran.code == 75
    assert "Redis" in ran.err


# Check


def counted(ran: Ran) -> tuple[int, int]:
    """Errors and warnings: of the last line, which must agree with the lines before."""
    match = re.fullmatch(r"(\d+) errors, (\d+) warnings", ran.out.splitlines()[-1])
    assert match
    counts = int(match[1]), int(match[2])
    assert counts == tuple(len(re.findall(rf"^{level} ", ran.out, re.MULTILINE)) for level in ("error", "warning"))
    return counts


async def test_check_finds_nothing_wrong_once_the_topics_are_there(place: Place) -> None:
    config = place.config()
    await asyncio.to_thread(run, "topics", "create", "--config", config)
    ran = await asyncio.to_thread(run, "check", "--config", config)

    assert ran.code == 0, ran.text
    assert counted(ran)[0] == 0
    for name in place.topics:
        assert re.search(rf"^ok +topic {re.escape(name)} .*has 4 partitions$", ran.out, re.MULTILINE)
    assert "maxmemory-policy is noeviction" in ran.out
    assert "ms apart" in ran.out


def test_check_names_each_topic_that_is_missing_and_the_command(place: Place) -> None:
    ran = run("check", "--config", place.config())

    assert ran.code == 1
    assert counted(ran)[0] == 3
    for name in place.topics:
        assert re.search(
            rf"^error +topic {re.escape(name)} .*does not exist\n +-> streams-app topics create$", ran.out, re.MULTILINE
        )


async def test_check_changes_nothing(place: Place, redis_client: Redis) -> None:
    config = place.config(extra=place.read_store)
    await asyncio.to_thread(run, "check", "--config", config)
    ran = await asyncio.to_thread(run, "check", "--config", config)

    assert "does not exist" in ran.out
    assert [] == [key async for key in redis_client.scan_iter(f"*{place.names.app_id}*")]
    assert [Path(config)] == list(place.folder.iterdir())


async def test_check_warns_of_a_redis_that_may_evict_groups(place: Place) -> None:
    await create_topics(place.bootstrap, place.topics, 1)
    with Valkey.start() as valkey:
        config = place.config(redis_url=valkey.url)
        good = await asyncio.to_thread(run, "check", "--config", config)
        with redis.Redis.from_url(valkey.url) as client:
            client.config_set("maxmemory-policy", "allkeys-lru")
        bad = await asyncio.to_thread(run, "check", "--config", config)

    assert (good.code, bad.code) == (0, 1)
    assert counted(bad)[0] == 1
    assert re.search(
        r"^error +maxmemory-policy is allkeys-lru.*\n +-> CONFIG SET maxmemory-policy noeviction", bad.out, re.MULTILINE
    )


async def test_check_tells_a_persistent_redis_from_one_that_forgets(place: Place, tmp_path: Path) -> None:
    await create_topics(place.bootstrap, place.topics, 1)
    ran = []
    for appendonly in (False, True):
        with Valkey.start(directory=tmp_path / str(appendonly), appendonly=appendonly) as valkey:
            ran.append(await asyncio.to_thread(run, "check", "--config", place.config(redis_url=valkey.url)))

    assert [0, 0] == [each.code for each in ran]
    assert "the append-only file is off" in ran[0].out
    assert re.search(r"^ok +the append-only file is on", ran[1].out, re.MULTILINE)
    assert 1 == counted(ran[0])[1] - counted(ran[1])[1]


async def test_check_without_redis_still_looks_at_kafka(place: Place) -> None:
    await create_topics(place.bootstrap, place.topics, 1)
    port = free_port()
    ran = await asyncio.to_thread(run, "check", "--config", place.config(redis_url=f"redis://:{CANARY}@127.0.0.1:{port}/0"))

    assert ran.code == 1
    assert counted(ran)[0] == 1
    assert f"cannot reach Redis at redis://127.0.0.1:{port}/0" in ran.out
    assert f"Kafka answers at {place.bootstrap}" in ran.out


def test_check_without_kafka_still_looks_at_redis(place: Place, away: Place) -> None:
    ran = run("check", "--config", place.config(bootstrap=away.bootstrap))

    assert ran.code == 1
    assert f"cannot reach Kafka at {away.bootstrap}" in ran.out
    assert "maxmemory-policy is noeviction" in ran.out


@pytest.mark.parametrize(
    "section",
    [
        "[redis]\npassword_file = 'nothing'",
        "[kafka]\nsecurity_protocol = 'SASL_PLAINTEXT'\nsasl_username = 'u'\nsasl_password_file = 'nothing'",
    ],
    ids=["redis", "kafka"],
)
def test_check_with_a_password_file_that_is_not_there_looks_at_the_rest(place: Place, section: str) -> None:
    config = Path(place.config())
    head, _, rest = section.partition("\n")
    config.write_text(config.read_text("utf-8").replace(head, f"{head}\n{rest}", 1), "utf-8")
    ran = run("check", "--config", str(config), cwd=place.folder)

    assert ran.code == 1
    assert "cannot read nothing" in ran.text
    assert counted(ran)[0] >= 1


async def test_check_looks_at_the_read_store(place: Place) -> None:
    config = place.config(extra=place.read_store)
    await asyncio.to_thread(run, "topics", "create", "--config", config)
    place.write_database()
    before = await asyncio.to_thread(run, "check", "--config", config)
    await asyncio.to_thread(run, "read-store", "init", "--config", config)
    after = await asyncio.to_thread(run, "check", "--config", config)

    assert (before.code, after.code) == (1, 0), after.text
    assert "-> streams-app read-store init" in before.out
    assert re.search(r"^ok +read store \(.*\) has its tables", after.out, re.MULTILINE)
    assert re.search(r"^ok +read store: the source \(sql\) answers", after.out, re.MULTILINE)


async def test_check_finds_a_query_that_does_not_work(place: Place) -> None:
    config = place.config(extra=place.read_store.replace("SUM(value)", "SUM(worth)"))
    await asyncio.to_thread(run, "topics", "create", "--config", config)
    place.write_database()
    await asyncio.to_thread(run, "read-store", "init", "--config", config)
    ran = await asyncio.to_thread(run, "check", "--config", config)

    assert ran.code == 1
    assert counted(ran)[0] == 1
    assert "worth" in ran.out


# Groups


@pytest.fixture
async def open_groups(place: Place, redis_client: Redis) -> None:
    """Two partitions: ``anna`` (3 events) and ``7``; ``"7"``, quiet for longest."""
    bounds = Bounds(1_000, 3_600_000, 0, 10_000, 1_000)
    shards = {
        0: [FoldEvent(0, 5_000, b"sanna", {"likes": 1}), FoldEvent(1, 5_400, b"sanna", {"shares": 1}),
            FoldEvent(2, 5_600, b"j7", {"likes": 1}), FoldEvent(3, 5_900, b"sanna", {"likes": 2})],
        3: [FoldEvent(10, 1_000, b"s7", {"likes": 1}), FoldEvent(11, 90_000, b"s\xc3\xa9t\xc3\xa9", {"likes": 1})],
    }  # fmt: skip
    scripts = ScriptSet(redis_client)
    for partition, events in shards.items():
        store = ShardStore(scripts, shard_keys(place.names.app_id, FOLD, place.topics[0], partition))
        fence = events[0].offset - 1
        await store.claim("me", fence, b"eeee", "")
        for chunk in chunks_of(events, events[-1].offset, Scoring(0, 10**12, None, None)):
            await store.fold(
                "me", fence, chunk.to, chunk.clock_ms, chunk.clock_ms, bounds,
                gaps_close=False, partitions=4,
                arguments=arguments_of(chunk, bounds, gaps_close=False, keeps_values=False, partitions=4, epoch=b"eeee"),
            )  # fmt: skip
            fence = chunk.to


@pytest.mark.usefixtures("open_groups")
async def test_groups_are_listed_as_json_longest_quiet_first(place: Place) -> None:
    ran = await asyncio.to_thread(run, "groups", "list", "--json", "--config", place.config())
    rows = [json.loads(line) for line in ran.out.splitlines()]

    assert (ran.code, ran.err) == (0, "")
    assert [("7", 3, 1, 10), ("7", 0, 1, 2), ("anna", 0, 3, 0), ("été", 3, 1, 11)] == [
        (row["group"], row["partition"], row["events"], row["first_offset"]) for row in rows
    ]
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
    assert lines[1].rstrip().split()[0] == "7"
    assert " due " in lines[1]
    (anna,) = (line for line in lines if line.startswith("anna "))
    assert {FOLD, f"{place.topics[0]}-0", "3", "1970-01-01", "00:00:05Z"} <= set(anna.split())
    assert "1.0 s" in anna
    assert "5 h 59 min" in anna


@pytest.mark.usefixtures("open_groups")
async def test_a_limit_keeps_the_groups_that_are_quiet_for_longest(place: Place) -> None:
    ran = await asyncio.to_thread(run, "groups", "list", "--json", "--limit", "2", "--config", place.config())

    assert [("7", 3), ("7", 0)] == [(row["group"], row["partition"]) for row in map(json.loads, ran.out.splitlines())]


@pytest.mark.usefixtures("open_groups")
async def test_groups_of_an_unknown_fold_are_refused_with_a_near_name(place: Place) -> None:
    config = place.config()
    known = await asyncio.to_thread(run, "groups", "list", "--fold", FOLD, "--json", "--config", config)
    unknown = await asyncio.to_thread(run, "groups", "list", "--fold", "acount-metrics", "--config", config)

    assert (known.code, len(known.out.splitlines())) == (0, 4)
    assert unknown.code == 1
    assert FOLD in unknown.err


def test_without_open_groups_the_list_says_so(place: Place) -> None:
    config = place.config()

    assert Ran(0, "no open groups\n", "") == run("groups", "list", "--config", config)
    assert Ran(0, "", "") == run("groups", "list", "--json", "--config", config)


def test_without_redis_the_groups_are_to_be_asked_again(away: Place) -> None:
    ran = run("groups", "list", "--config", away.config(redis_url=away.redis_url.replace("//", f"//:{CANARY}@")))

    assert ran.code == 75
    assert f"cannot reach Redis at {away.redis_url}" in ran.err


@pytest.mark.parametrize(
    "url", ["redis+cluster://127.0.0.1:1/3", f"redis://127.0.0.1:1{CANARY}/0", f"redis://:{CANARY}/x@127.0.0.1:1/0"]
)
def test_a_redis_url_that_no_client_takes_is_a_fault_of_the_settings(away: Place, url: str) -> None:
    ran = run("groups", "list", "--config", away.config(redis_url=url))

    assert ran.code == 1
    assert "redis.url" in ran.err


# Read store


def test_the_tables_of_the_read_store_are_made_once(away: Place) -> None:
    config = away.config(extra=away.read_store)
    first = run("read-store", "init", "--config", config)
    with sqlite3.connect(away.folder / "read.db") as connection:
        connection.execute("INSERT INTO folded_values VALUES ('f', 'g', 'n', 1, 2, 3)")
    second = run("read-store", "init", "--config", config)
    kept = connection.execute("SELECT * FROM folded_values").fetchall()
    connection.close()

    assert (first.code, second.code) == (0, 0)
    assert first.out
    assert first.out != second.out
    assert [("f", "g", "n", 1, 2, 3)] == kept


def test_without_a_read_store_there_is_nothing_to_prepare(away: Place) -> None:
    ran = run("read-store", "init", "--config", away.config())

    assert ran.code == 1
    assert "[read_store]" in ran.err


# Secrets; `run` looks for the canary in all that is said


@pytest.fixture
def guarded() -> Iterator[Valkey]:
    """A Valkey that wants a password."""
    with Valkey.start() as valkey:
        with redis.Redis.from_url(valkey.url) as client:
            client.config_set("requirepass", CANARY)
        yield valkey


@pytest.mark.parametrize("is_right", [True, False])
async def test_the_password_of_redis_is_never_told(place: Place, guarded: Valkey, is_right: bool) -> None:
    url = guarded.url.replace("//", f"//default:{CANARY}{'' if is_right else '-wrong'}@")
    config = place.config(redis_url=url)
    await create_topics(place.bootstrap, place.topics, 1)
    checked = await asyncio.to_thread(run, "check", "--config", config)
    listed = await asyncio.to_thread(run, "groups", "list", "--config", config)

    assert (checked.code, listed.code) == ((0, 0) if is_right else (1, 75)), checked.text + listed.text
    if not is_right:
        ran = await asyncio.to_thread(run, "worker", "--log-level", "debug", "--config", config)
        assert ran.code == 75


async def test_the_password_file_of_redis_is_used_and_never_told(place: Place, guarded: Valkey, tmp_path: Path) -> None:
    secret = tmp_path / "password"
    secret.write_text(f"{CANARY}\n", "utf-8")
    config = place.config(redis_url=guarded.url)
    without = await asyncio.to_thread(run, "groups", "list", "--config", config)
    with_it = await asyncio.to_thread(run, "groups", "list", "--config", config, STREAMS_APP_REDIS_PASSWORD_FILE=str(secret))

    assert (without.code, with_it.code) == (75, 0)


@pytest.mark.parametrize("words", [["check"], ["topics", "create"], ["worker", "--log-level", "debug"]], ids=" ".join)
def test_the_password_of_kafka_is_never_told(words: Sequence[str], away: Place, tmp_path: Path) -> None:
    secret = tmp_path / "password"
    secret.write_text(CANARY, "utf-8")
    ran = run(
        *words,
        "--config",
        away.config(),
        STREAMS_APP_KAFKA_SECURITY_PROTOCOL="SASL_PLAINTEXT",
        STREAMS_APP_KAFKA_SASL_MECHANISM="PLAIN",
        STREAMS_APP_KAFKA_SASL_USERNAME="service",
        STREAMS_APP_KAFKA_SASL_PASSWORD_FILE=str(secret),
    )

    assert ran.code == (1 if words == ["check"] else 75)
    assert f"cannot reach Kafka at {away.bootstrap}" in ran.text


@pytest.mark.parametrize("words", WITH_SETTINGS, ids=" ".join)
def test_a_password_in_a_wrong_setting_is_not_told(words: Sequence[str], away: Place) -> None:
    ran = run(*words, "--config", away.config(redis_url=f"rediss:{CANARY}@localhost", app_id="a b", extra=f'password = "{CANARY}"'))

    assert ran.code == 1
    assert "app_id" in ran.err
