"""``read-store fill``: groups that no record names, written with the current values of the source."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.helpers.worker.site import Stage
from tests.integration.read_store.compared import Compared, folded

pytestmark = pytest.mark.timeout(300)

VALUES = "SELECT group_key, name, CAST(value AS TEXT) FROM folded_values ORDER BY 1, 2"
VERSIONS = "SELECT group_key, name, version FROM folded_values ORDER BY 1, 2"


@pytest.fixture(params=["sqlite", *(pytest.param(name, marks=pytest.mark.long) for name in ("postgresql", "mysql"))])
def compared(stage: Stage, request: pytest.FixtureRequest) -> Compared:
    url = f"sqlite:///{stage.folder}/both.db" if request.param == "sqlite" else request.getfixturevalue(f"{request.param}_url")
    return Compared(stage, url)


def lines(folder: Path, *given: object) -> str:
    file = folder / "groups.jsonl"
    file.write_text("\n".join(one if isinstance(one, str) else json.dumps(one) for one in given))
    return str(file)


async def test_fill_writes_current_values_of_unrecorded_groups_below_every_record_version(compared: Compared) -> None:
    await compared.prepare(("a", "likes", 1), ("b", "likes", 2), ("b", "shares", 3))
    await compared.send(folded("a", 1, ["likes"]))
    await compared.sync()
    await compared.execute("UPDATE metrics SET value = 9")
    file = lines(
        compared.stage.folder,
        {"account_id": "a", "metrics": ["likes"]}, "", {"account_id": "b", "metrics": ["likes", "shares"]},
    )  # fmt: skip
    filled = [compared.run("fill", file) for _ in range(2)]
    before = await compared.rows(VALUES)
    await compared.execute("UPDATE metrics SET value = 10 WHERE account_id = 'b'")
    await compared.send(folded("b", 1, ["likes"]))  # of the lowest version there is
    await compared.sync()

    assert [(0, "2 lines of 2 in read store dashboard\n")] * 2 == [(ran.code, ran.out) for ran in filled], filled
    assert [("a", "likes", "1"), ("b", "likes", "9"), ("b", "shares", "9")] == before
    assert [("a", "likes", "1"), ("b", "likes", "10"), ("b", "shares", "9")] == await compared.rows(VALUES)
    assert [("a", "likes", 1), ("b", "likes", 1), ("b", "shares", 0)] == await compared.rows(VERSIONS)


async def test_unusable_lines_are_named_and_the_others_are_written(compared: Compared) -> None:
    await compared.prepare(("a", "likes", 1))
    good = {"account_id": "a", "metrics": ["likes"]}
    file = lines(compared.stage.folder, "{", good, [], {"metrics": ["likes"]}, {"account_id": "g" * 3_000, "metrics": ["likes"]})
    ran = compared.run("fill", file)

    assert 1 == ran.code
    assert [("a", "likes", "1")] == (await compared.rows(VALUES))[:1]
    for line in ("line 1: not JSON", "line 3: not an object", "line 4: no usable group field (account_id)"):
        assert line in ran.err
    if compared.url.startswith("postgresql"):
        assert "line 5: likes: group and name have" in ran.err


async def test_unresponsive_source_is_reported_and_fill_can_be_repeated(compared: Compared) -> None:
    await compared.prepare(("a", "likes", 1))
    await compared.execute("ALTER TABLE metrics RENAME TO away")
    file = lines(compared.stage.folder, {"account_id": "a", "metrics": ["likes"]})
    ran = compared.run("fill", file)
    await compared.execute("ALTER TABLE away RENAME TO metrics")

    assert 75 == ran.code, ran
    assert "run it again" in ran.err
    assert 0 == compared.run("fill", file).code


async def test_store_without_a_source_and_a_foreign_fold_are_rejected(stage: Stage) -> None:
    file = lines(stage.folder, {})
    carried = Compared(stage, f"sqlite:///{stage.folder}/carried.db", is_carried=True).run("fill", file)
    other = Compared(stage, f"sqlite:///{stage.folder}/other.db").run("fill", file, "--fold", "other")

    assert (1, 1) == (carried.code, other.code)
    assert "values are in the records alone" in carried.err
    assert "has no fold 'other'" in other.err
