"""Settings, records, programs and queries shown in README and docs/ work as described."""

from __future__ import annotations

import json
import re
import sqlite3
from pathlib import Path
from typing import Any

import pytest

from streams_app.read_store.registry import open_source, open_store
from streams_app.settings import Settings
from streams_app.testing import FoldTester, SubscriberTester
from tests.checkout.pages import PAGES, ROOT, fenced, name_of
from tests.checkout.reference import REFERENCE


def test_readme_settings_are_those_of_the_examples_and_load() -> None:
    file = ROOT / "examples" / "streams.toml"

    assert file.read_text("utf-8") == fenced(ROOT / "README.md", "toml")[0]
    assert "post-metric-updated.account-metrics" == Settings.load(file, {}).fold("account-metrics").output


@pytest.mark.parametrize("section", fenced(ROOT / "docs" / "reference" / "read-stores.md", "toml"))
def test_settings_of_every_read_store_are_five_lines_and_load(section: str, tmp_path: Path) -> None:
    file = tmp_path / "streams.toml"
    file.write_text((ROOT / "examples" / "streams.toml").read_text("utf-8") + section, "utf-8")
    declared = Settings.load(file, {}).read_store(None)

    assert 5 == len(section.splitlines())
    assert {"dashboard"} == {declared.name for _ in (open_store(declared), open_source(declared))}


def test_readme_is_two_screens_and_offers_two_commands() -> None:
    lines = (ROOT / "README.md").read_text("utf-8").splitlines()

    assert len(lines) <= 130
    assert ["demo", "test"] == [line.split()[1] for line in lines if line.startswith("make ")]


def test_readme_record_follows_from_its_settings_and_event() -> None:
    kit = FoldTester(Settings.load(ROOT / "examples" / "streams.toml", {}).fold("account-metrics"))
    readme = (ROOT / "README.md").read_text("utf-8")
    (event,) = re.findall(r"Produce events like `(.+?)` with key `account_1`", readme)
    (shown,) = fenced(ROOT / "README.md", "json")
    kit.send(event.encode(), key=b"account_1")
    (record,) = kit.advance("16m")
    wanted = json.loads(shown)

    assert wanted.keys() == record.value.keys()
    assert wanted["fold"].keys() == record.value["fold"].keys()


@pytest.mark.parametrize("page", [page for page in PAGES if page.parent.name != "how-to"], ids=name_of)
def test_every_documented_program_runs(page: Path) -> None:
    for program in fenced(page, "python"):
        names: dict[str, Any] = {}
        exec(program, names)
        for name, value in names.items():
            if name.startswith("test_"):
                value()


def test_functions_in_python_fold_an_event() -> None:
    program, _ = fenced(REFERENCE / "python.md", "python")
    names: dict[str, Any] = {}
    exec(program, names)
    kit = FoldTester(names["app"].settings.fold("account-metrics"))
    kit.send({"account": "Anna", "changes": {"likes": 2, "shares": 0}})
    (record,) = kit.advance("16m")

    assert {"account_id": "anna", "metrics": ["likes"]} == {key: record.value[key] for key in ("account_id", "metrics")}


def test_subscriber_of_the_how_to_page_is_called_with_the_record_of_the_readme_and_publishes() -> None:
    (program,) = fenced(ROOT / "docs" / "how-to" / "call-a-function.md", "python")
    names: dict[str, Any] = {}
    exec(program, names)
    fold = FoldTester(Settings.load(ROOT / "examples" / "streams.toml", {}).fold("account-metrics"))
    with SubscriberTester(*names["catalogue"].subscribers) as kit:
        kit.connect(fold)
        fold.send({"account_id": "account_1", "metrics": {"likes": 2}}, key=b"account_1")
        kit.advance("16m")
        (shown,) = kit.published(names["account_shown"])

        assert "account_1" == shown.data.account_id


def test_reference_query_selects_the_changes() -> None:
    (query,) = fenced(REFERENCE / "settings.md", "sql")
    with sqlite3.connect(":memory:") as connection:
        connection.execute("CREATE TABLE post_metrics (account_id, metric, value)")
        connection.executemany(
            "INSERT INTO post_metrics VALUES (?, ?, ?)", [("a", "likes", 2), ("a", "likes", 3), ("b", "likes", 1)]
        )
        rows = connection.execute(query, {"groups": '["a"]', "names": '["likes", "shares"]'}).fetchall()
    connection.close()

    assert [("a", "likes", 5)] == rows
