"""``streams-app`` from outside: exit codes, messages, and secrets that no message contains."""

from __future__ import annotations

import asyncio
import re
import sqlite3
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from streams_app import cli
from streams_app.cli import COMMANDS
from streams_app.embedded.ports import free_port
from tests.helpers.cli.commands import CANARY, FOLD, WITH_SETTINGS, Place, run
from tests.helpers.kafka.topics import create_topics
from tests.servers.cache import ROOT

# Help and usage


@pytest.mark.parametrize(
    ("words", "purpose"),
    [
        ([], "Event folding for Kafka"),
        (["demo"], "Watch a storm of update events become a trickle"),
        (["worker"], "Run one worker"),
        (["check"], "Check whether a worker can run"),
        (["topics"], "Create the topics the settings name"),
        (["topics", "create"], "Create the topics that are missing"),
        (["groups"], "Show open groups, explain one, emit or drop them now"),
        (["groups", "list"], "List open groups"),
        (["groups", "explain"], "Explain why GROUP has not been emitted."),
        (["groups", "flush"], "Emit GROUP, or all groups, now"),
        (["dead-letters"], "List rejected events, replay them"),
        (["dead-letters", "list"], "List rejected events, the reasons, and whether they were replayed."),
        (["dead-letters", "replay"], "Replay rejected events, only for the fold"),
        (["reset"], "Remove the state of a fold, live view or journal"),
        (["read-store"], "Create, fill, verify"),
        (["read-store", "init"], "Create the missing tables of a read store"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_help_explains_a_command(words: Sequence[str], purpose: str, capsys: pytest.CaptureFixture[str]) -> None:
    for option in ("--help", "-h"):
        code = cli.run([*words, option])
        output = capsys.readouterr()
        assert (code, output.err) == (0, "")
        assert purpose in output.out


def test_help_lists_every_command_on_a_separate_line() -> None:
    out = run("--help").out

    assert [] == [name for name in COMMANDS if not re.search(rf"^  {name} +\S.+\S", out, re.MULTILINE)]


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["fly"], "No such command 'fly'"),
        (["chek"], "No such command 'chek', did you mean 'check'?"),
        (["worker", "--fast"], "No such option"),
        (["groups", "list", "--limit", "0"], "--limit"),
        (["topics"], "Usage: streams-app topics"),
        ([], "Usage: streams-app"),
        (["demo", "--replay", "nothing.jsonl"], "nothing.jsonl"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_usage_error_exits_with_1(words: Sequence[str], expected: str, capsys: pytest.CaptureFixture[str]) -> None:
    code = cli.run([*words])

    assert code == 1
    assert expected in capsys.readouterr().err


def test_process_exits_with_the_code_of_its_command() -> None:
    ran = run("groups", "list", "--limit", "0")

    assert (1, "") == (ran.code, ran.out)
    assert "--limit" in ran.err


def test_version_is_that_of_the_package() -> None:
    ran = run("--version")

    assert ran.code == 0
    assert re.fullmatch(r"streams-app, version \d+\.\d+\.\d+\n", ran.out)


def test_operator_commands_do_not_import_faust() -> None:
    """Importing it takes longer than the rest of a command."""
    modules = (
        "checking.logs, checking.kafka, operations.groups, operations.explain_group, operations.dead_letters, operations.reset_fold"
    )
    program = "\n".join(f"import streams_app.{module}" for module in modules.split(", "))
    command = [sys.executable, "-c", f"{program}\nimport sys\nprint('faust' in sys.modules)"]
    loaded = subprocess.run(command, check=True, capture_output=True, text=True, cwd=ROOT)

    assert "False\n" == loaded.stdout


# Settings


@pytest.mark.parametrize("words", WITH_SETTINGS, ids=" ".join)
def test_all_faults_of_the_settings_are_reported_together(words: Sequence[str], tmp_path: Path) -> None:
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
    """Remove the quotes around the suggestion."""
    return re.sub(r"[:;,]? ?\(?[Dd]id you mean [`'\"]?(\w+)[`'\"]?\?\)?", r", did you mean '\1'?", text)


@pytest.mark.parametrize("words", WITH_SETTINGS, ids=" ".join)
def test_missing_settings_error_says_how_to_name_them(words: Sequence[str], tmp_path: Path) -> None:
    ran = run(*words, cwd=tmp_path)

    assert ran.code == 1
    for part in ("streams.toml", "--config", "STREAMS_APP_CONFIG", "streams-app demo"):
        assert part in ran.err


def test_missing_file_is_named(tmp_path: Path) -> None:
    ran = run("check", "--config", str(tmp_path / "other.toml"))

    assert ran.code == 1
    assert "other.toml" in ran.err


def test_misspelt_variable_is_reported_with_a_similar_one(away: Place) -> None:
    ran = run("check", "--config", away.config(), STREAMS_APP_KAFKA_BOOTSTRAP_SERVER="x:1")

    assert ran.code == 1
    assert "STREAMS_APP_KAFKA_BOOTSTRAP_SERVER: no such setting" in ran.err
    assert "STREAMS_APP_KAFKA_BOOTSTRAP_SERVERS" in ran.err


# Topics


def test_topics_are_created_once_and_then_exist(place: Place) -> None:
    config = place.config()
    first, second = run("topics", "create", "--config", config), run("topics", "create", "--config", config)

    assert (first.code, second.code) == (0, 0)
    assert [f"created  {name}  partitions=4 replicas=1" for name in place.topics] == first.out.splitlines()
    assert [f"exists   {name}" for name in sorted(place.topics)] == second.out.splitlines()


async def test_topics_create_creates_only_missing_topics(place: Place) -> None:
    source, output, dead = place.topics
    await create_topics(place.bootstrap, [output], 1)
    ran = await asyncio.to_thread(run, "topics", "create", "--config", place.config(), STREAMS_APP_KAFKA_PARTITIONS="2")

    assert ran.code == 0
    assert [f"created  {source}", f"created  {dead}"] == [line.partition("  partitions=2")[0] for line in ran.out.splitlines()[:2]]
    assert [f"exists   {output}"] == ran.out.splitlines()[2:]


# Worker


def test_worker_without_its_topics_does_not_start_and_names_the_command(place: Place) -> None:
    ran = run("worker", "--config", place.config())

    assert ran.code == 1
    assert "streams-app topics create" in ran.err
    assert [] == [name for name in place.topics if f"{name!r}" not in ran.err]


async def test_worker_names_only_the_missing_topics(place: Place) -> None:
    source, output, dead = place.topics
    await create_topics(place.bootstrap, [source, output], 1)
    ran = await asyncio.to_thread(run, "worker", "--config", place.config())

    assert ran.code == 1
    assert f"{dead!r} (dead letters of {FOLD}) does not exist" in ran.err
    assert f"{source!r} (source" not in ran.err


@pytest.mark.parametrize("words", [["worker"], ["topics", "create"]], ids=" ".join)
def test_command_without_kafka_asks_for_a_retry(words: Sequence[str], away: Place) -> None:
    ran = run(*words, "--config", away.config())

    assert ran.code == 75
    assert f"cannot reach Kafka at {away.bootstrap}" in ran.err


async def test_worker_without_redis_asks_for_a_restart(place: Place) -> None:
    await create_topics(place.bootstrap, place.topics, 1)
    config = place.config(redis_url=f"redis://127.0.0.1:{free_port()}/0")
    ran = await asyncio.to_thread(run, "worker", "--config", config)

    assert ran.code == 75
    assert "Redis" in ran.err


# Read store


def test_read_store_tables_are_created_once(away: Place) -> None:
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


def test_read_store_in_a_missing_folder_is_a_configuration_error(away: Place) -> None:
    folder = away.folder / "missing"
    config = away.config(extra=away.read_store.replace(f"{away.folder}/read.db", f"{folder}/read.db"))
    ran = run("read-store", "init", "--config", config)

    assert (ran.code, ran.err) == (
        1,
        f"error: read_stores.dashboard.url: there is no folder {folder}; create it, or name another file\n",
    )


def test_read_store_init_without_a_read_store_has_nothing_to_prepare(away: Place) -> None:
    ran = run("read-store", "init", "--config", away.config())

    assert ran.code == 1
    assert "[read_stores.NAME]" in ran.err
