"""``read-store verify`` as a person runs it: what it finds, what it leaves alone during changes, and what it repairs."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest
from aiokafka import AIOKafkaProducer
from click.testing import CliRunner

from streams_app.cli import group
from streams_app.delivery.batch import TP
from streams_app.errors import BehindError
from streams_app.operations import verify
from streams_app.read_store.registry import open_store
from tests.helpers.cli.commands import Ran, run
from tests.helpers.waiting import wait_until
from tests.helpers.worker.site import LIMIT_SECONDS, Stage, metric
from tests.integration.read_store.compared import Compared, folded

pytestmark = pytest.mark.timeout(240)

KEYS = ("group", "name", "what", "store", "source", "store_version")


@pytest.fixture(params=["sqlite", *(pytest.param(name, marks=pytest.mark.long) for name in ("postgresql", "mysql"))])
def compared(stage: Stage, request: pytest.FixtureRequest) -> Compared:
    url = f"sqlite:///{stage.folder}/both.db" if request.param == "sqlite" else request.getfixturevalue(f"{request.param}_url")
    return Compared(stage, url)


async def test_wrong_deleted_and_missing_values_are_reported_and_repaired(compared: Compared) -> None:
    await compared.prepare(("a", "likes", 1), ("a", "shares", 2), ("b", "likes", 3))
    await compared.send(folded("a", 10, ["likes", "shares", "never"]), folded("b", 11, ["likes"]), (b"x", b"no record"))
    await compared.sync()
    equal = compared.run("verify")
    await compared.execute("UPDATE metrics SET value = 7 WHERE metric = 'shares'")
    await compared.execute("DELETE FROM metrics WHERE account_id = 'b'")
    await compared.execute("DELETE FROM folded_values WHERE name = 'likes' AND group_key = 'a'")
    code, found = compared.verify()
    shown = compared.run("verify", "--wait", "0", "--limit", "2")
    repaired, _ = compared.verify("--repair")
    after, left = compared.verify()

    assert (0, "") == (equal.code, equal.err)
    assert "read store dashboard: 4 cells and 3 folded records compared, no differences\n1 record of" in equal.out
    assert [
        ("a", "likes", "missing", None, 1, None), ("a", "shares", "wrong", 2, 7, 10), ("b", "likes", "gone", 3, None, 11),
    ] == sorted(tuple(one[key] for key in KEYS) for one in found)  # fmt: skip
    assert (1, 1, 0, 0, []) == (code, shown.code, repaired, after, left)
    assert "2 of 3 differences are shown; --limit shows more" in shown.err
    assert ["GROUP", "NAME", "WHAT", "IN", "THE", "STORE", "IN", "THE", "SOURCE", "FOLD"] == shown.out.splitlines()[0].split()


async def test_query_of_other_names_is_reported_by_worker_check_and_verify(compared: Compared) -> None:
    await compared.prepare(("a", "total", 1), ("b", "total", 2), ("b", "n_likes", 3))
    await compared.send(folded("a", 10, ["likes"]), folded("b", 11, ["likes"]))
    log = await compared.sync()
    verified = compared.run("verify", "--wait", "0")
    checked = run("check", "--config", str(compared.config))

    expected = "for 2 groups (likes), but other names (n_likes, total)"
    assert 1 == log.count("the read store gets only NULL")
    assert expected in log
    assert "NULL in the store: likes 100 % (2 of 2)\nthe store has no value at all" in verified.out
    assert f"the source returns no value for any name that was requested {expected}" in " ".join(checked.out.split())


async def test_value_only_the_server_can_reject_is_reported_as_such_and_the_others_are_repaired(
    stage: Stage, postgresql_url: str
) -> None:
    compared = Compared(stage, postgresql_url)
    await compared.prepare(("a", "likes", 1), ("b", "likes", 1))
    await compared.send(folded("a", 10, ["likes"]), folded("b", 11, ["likes"]))
    assert 0 == compared.run("rebuild").code
    await compared.execute("ALTER TABLE metrics ALTER value TYPE json USING '2'")
    await compared.execute("UPDATE metrics SET value = '[1e200000]' WHERE account_id = 'a'")
    code, found = compared.verify("--repair")

    assert 1 == code
    assert [("a", "refused"), ("b", "wrong")] == sorted((one["group"], one["what"]) for one in found)
    assert [("a", "1"), ("b", "2")] == await compared.rows("SELECT group_key, value::text FROM folded_values ORDER BY 1")


async def test_value_that_violates_a_constraint_is_reported_as_such_and_the_others_are_repaired(compared: Compared) -> None:
    compared.configure('shape = "groups"\ncolumns = { likes = "likes" }\n')
    versions, key, number = compared.types
    await compared.execute(
        f"CREATE TABLE folded_values (fold {key} NOT NULL, group_key {key} NOT NULL, likes {number} CHECK (likes < 5), "
        f"versions {versions} NOT NULL DEFAULT ('{{}}'), updated_ms {number} NOT NULL DEFAULT 0, PRIMARY KEY (fold, group_key))"
    )
    await compared.prepare(("a", "likes", 1), ("b", "likes", 1), ("c", "likes", 9))
    await compared.send(folded("a", 10, ["likes"]), folded("b", 11, ["likes"]), folded("c", 12, ["likes"]))
    await compared.sync()
    await compared.execute("UPDATE metrics SET value = CASE account_id WHEN 'b' THEN 4 ELSE 9 END")
    code, found = compared.verify()
    shown = compared.run("verify", "--wait", "0")
    untouched = await compared.rows("SELECT group_key, likes FROM folded_values ORDER BY group_key")
    repaired, still_different = compared.verify("--repair")

    whats = {"a": ("refused", 1), "b": ("wrong", 1), "c": ("refused", None)}
    assert [(1, whats)] * 2 == [
        (code, {one["group"]: (one["what"], one["store"]) for one in each})
        for code, each in ((code, found), (repaired, still_different))
    ]
    assert [["a", "likes", "refused", "1"], ["c", "likes", "refused", "-"]] == [
        line.split()[:4] for line in shown.out.splitlines() if "refused" in line
    ]
    assert [("a", 1), ("b", 1)] == untouched
    assert [("a", 1), ("b", 4)] == await compared.rows("SELECT group_key, likes FROM folded_values ORDER BY group_key")


async def test_verify_needs_no_write_access(stage: Stage, postgresql_url: str) -> None:
    compared = Compared(stage, postgresql_url)
    await compared.prepare(("a", "likes", 1), ("b", "likes", 2))
    await compared.send(folded("a", 10, ["likes"]), folded("b", 10, ["likes"]))
    await compared.sync()
    await compared.execute("UPDATE metrics SET value = 7")
    compared.url = f"{postgresql_url}?default_transaction_read_only=on"
    compared.configure()
    code, found = compared.verify()

    assert (1, [("a", "wrong"), ("b", "wrong")]) == (code, sorted((one["group"], one["what"]) for one in found))


@pytest.mark.parametrize("is_carried", [False, True])
async def test_stalled_store_that_is_behind_is_reported_with_its_own_exit_code(
    stage: Stage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_carried: bool
) -> None:
    monkeypatch.setattr(verify, "IDLE_SECONDS", 1.0)

    def record(group: str, version: int) -> tuple[bytes, bytes]:
        return folded(group, version, {"likes": 1} if is_carried else ["likes"])

    compared = Compared(stage, f"sqlite:///{tmp_path}/both.db", is_carried=is_carried)
    await compared.prepare(("a", "likes", 1), ("b", "likes", 1))
    await compared.send(record("a", 10))
    await compared.sync()
    level = compared.run("verify", "--wait", "0")
    await compared.send(record("b", 11), record("c", 12))

    async def verified(*arguments: str) -> Ran:  # in this process, so that it does not wait for 10 s
        words = ["read-store", "verify", "--config", str(compared.config), "--wait", "0", *arguments]
        ran = await asyncio.to_thread(CliRunner().invoke, group, words)
        assert isinstance(ran.exception, BehindError), ran
        return Ran(ran.exception.exit_code, ran.stdout, f"error: {ran.exception}")

    behind = await verified()
    await compared.execute("UPDATE folded_values SET value = 5")
    repaired = await verified("--repair")
    await compared.sync()
    after = compared.run("verify", "--wait", "0")

    assert [0, 3, 3, 0] == [one.code for one in (level, behind, repaired, after)]
    assert "no differences" in behind.out
    assert "1 difference\n1 repaired\n" in repaired.out
    for one in (behind, repaired):
        assert "error: read store dashboard is 2 records behind and stands still" in one.err


@pytest.mark.apache
async def test_log_that_ends_with_a_transaction_marker_does_not_count_as_lag(stage: Stage, tmp_path: Path) -> None:
    compared = Compared(stage, f"sqlite:///{tmp_path}/both.db", is_carried=True)
    await compared.prepare()
    async with AIOKafkaProducer(bootstrap_servers=stage.bootstrap, transactional_id=stage.output) as producer:
        async with producer.transaction():
            await producer.send_and_wait(stage.output, b"x", b"a", partition=0)
    store = open_store(compared.declared)
    await store.set_checkpoint(TP(stage.output, 0), 1, 0)
    await store.close()

    assert 0 == compared.run("verify").code


@pytest.mark.parametrize("shape", ["cells", "groups"])
async def test_group_the_store_cannot_hold_is_reported_and_the_others_are_compared(
    stage: Stage, postgresql_url: str, shape: str
) -> None:
    odd = ["c\0d", "\0", "g" * 3_000, '{"\0":1}']
    compared = Compared(stage, postgresql_url, is_carried=True)
    compared.configure(f'shape = "{shape}"\n' + ('columns = { likes = "likes" }\n' if shape == "groups" else ""))
    await compared.prepare()
    names = {"likes": 1} if shape == "groups" else {"likes": 1, "n\0": 2, "n" * 3_000: 3}
    await compared.send(folded("a", 9, names), *(folded(group, 10, {"likes": 1}) for group in odd), folded("b", 11, {"likes": 1}))
    await compared.sync()
    await compared.execute("DELETE FROM folded_values WHERE group_key = 'b'")
    code, found = compared.verify()
    repaired, unrepaired = compared.verify("--repair")
    after, left = compared.verify()

    not_storable = {("likes", "refused"), *((name, "refused") for name in names if name != "likes")}
    assert (1, 1, 1) == (code, repaired, after)
    assert (
        {*not_storable, ("likes", "missing")}
        == {(one["name"], one["what"]) for one in found}
        == {(one["name"], one["what"]) for one in unrepaired}
    )
    assert {*odd, *(["a"] if shape == "cells" else [])} == {one["group"] for one in left}
    assert not_storable == {(one["name"], one["what"]) for one in left}


@pytest.mark.long
async def test_record_is_compared_with_its_carried_value_and_never_with_a_newer_one(stage: Stage, tmp_path: Path) -> None:
    compared = Compared(stage, f"sqlite:///{tmp_path}/read.db", is_carried=True)
    assert 0 == compared.run("init").code
    await compared.send(folded("a", 10, {"likes": 1, "shares": 1}), folded("a", 12, {"likes": 2, "saves": [1]}))
    await compared.sync()
    equal, _ = compared.verify()
    await compared.execute("UPDATE folded_values SET value = 9 WHERE name = 'likes'")
    await compared.execute("UPDATE folded_values SET value = 9, version = 99 WHERE name = 'shares'")
    await compared.execute("DELETE FROM folded_values WHERE name = 'saves'")
    code, found = compared.verify("--repair")
    after, left = compared.verify()

    assert [("likes", "wrong", 9, 2), ("saves", "missing", None, "[1]")] == sorted(
        (one["name"], one["what"], one["store"], one["source"]) for one in found
    )
    assert (0, 0, 0, []) == (equal, code, after, left)


@pytest.mark.long
async def test_difference_of_an_open_group_is_not_reported(stage: Stage, tmp_path: Path) -> None:
    compared = Compared(stage, f"sqlite:///{tmp_path}/both.db", quiet_period="1h")
    await compared.prepare(("account_0", "n0", 1), ("account_1", "n1", 1))
    await compared.send(folded("account_0", 10, ["n0"]), folded("account_1", 11, ["n1"]))
    await compared.sync()
    with stage.worker(compared.config) as worker:
        await worker.wait_ready()
        await compared.execute("UPDATE metrics SET value = 2")
        await stage.send(1)  # of account_0
        await wait_until(lambda: metric(worker, "streams_app_open_groups") == 1, LIMIT_SECONDS, "the group is open")
        ran = compared.run("verify", "--json", "--wait", "0.2")

    assert [("account_1", "n1")] == [(one["group"], one["name"]) for one in map(json.loads, ran.out.splitlines())]
    assert "1 more cell differed and changed meanwhile, or the groups are still open" in ran.err


@pytest.mark.long
async def test_missing_prerequisite_of_verify_is_reported(stage: Stage, tmp_path: Path) -> None:
    compared = Compared(stage, f"sqlite:///{tmp_path}/both.db")
    (tmp_path / "both.db").touch()
    without_tables = compared.run("verify")
    await compared.prepare()
    await compared.execute("DROP TABLE metrics")
    await compared.execute("INSERT INTO folded_values VALUES ('account-metrics', 'a', 'likes', 1, 1, 1)")
    without_source = compared.run("verify")

    assert (1, 75) == (without_tables.code, without_source.code)
    assert "no table folded_values and no table folded_values_progress; run `streams-app read-store init" in without_tables.err
    assert "no such table: metrics" in without_source.err
