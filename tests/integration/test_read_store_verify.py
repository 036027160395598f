"""``read-store verify`` as a person runs it: what it finds, what it leaves alone while things change, and what it repairs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.helpers import wait_until
from tests.integration.compared import Compared, folded
from tests.integration.site import LIMIT_SECONDS, Stage, metric

pytestmark = pytest.mark.timeout(240)

KEYS = ("group", "name", "what", "store", "source", "store_version")


@pytest.fixture(params=["sqlite", "postgresql"])
def compared(stage: Stage, request: pytest.FixtureRequest) -> Compared:
    url = f"sqlite:///{stage.folder}/both.db" if request.param == "sqlite" else request.getfixturevalue("postgresql_url")
    return Compared(stage, url)


async def test_what_is_wrong_gone_or_missing_is_told_and_repaired_and_then_nothing_differs(compared: Compared) -> None:
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


async def test_what_the_server_alone_knows_that_it_cannot_hold_is_told_as_that_and_the_others_are_repaired(
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


@pytest.mark.long
async def test_a_value_that_a_constraint_refuses_is_told_as_that_and_the_others_are_repaired(stage: Stage, tmp_path: Path) -> None:
    compared = Compared(stage, f"sqlite:///{tmp_path}/both.db")
    compared.configure('shape = "groups"\ncolumns = { likes = "likes" }\n')
    await compared.execute(
        "CREATE TABLE folded_values (fold TEXT NOT NULL, group_key TEXT NOT NULL, likes INTEGER CHECK (likes < 5), "
        "versions TEXT NOT NULL DEFAULT '{}', updated_ms INTEGER NOT NULL DEFAULT 0, PRIMARY KEY (fold, group_key))"
    )
    await compared.prepare(("a", "likes", 1), ("b", "likes", 1))
    await compared.send(folded("a", 10, ["likes"]), folded("b", 11, ["likes"]))
    await compared.sync()
    await compared.execute("UPDATE metrics SET value = CASE account_id WHEN 'a' THEN 9 ELSE 4 END")
    code, found = compared.verify("--repair")

    assert (1, {"a": "refused", "b": "wrong"}) == (code, {one["group"]: one["what"] for one in found})
    assert [("a", 1), ("b", 4)] == await compared.rows("SELECT group_key, likes FROM folded_values ORDER BY group_key")


@pytest.mark.long
async def test_a_record_is_compared_with_what_it_carries_and_never_with_a_newer_value(stage: Stage, tmp_path: Path) -> None:
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
async def test_what_differs_because_its_group_is_still_open_is_not_told(stage: Stage, tmp_path: Path) -> None:
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
async def test_what_it_needs_and_does_not_get_is_said(stage: Stage, tmp_path: Path) -> None:
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
