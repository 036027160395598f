"""What README and docs/ say is so: tables, commands, links, settings, programs."""

from __future__ import annotations

import ast
import json
import re
import shlex
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import click
import pytest

from benchmarks.__main__ import main as bench
from streams_app.cli import group
from streams_app.cli.demo import command as demo
from streams_app.delivery.batch import TP
from streams_app.delivery.dead_letters import Refuser, letter_of, without_content
from streams_app.delivery.refused import Refused
from streams_app.errors import StreamsAppError
from streams_app.metric_table import METRICS
from streams_app.operating.replay import RECEIPT_HEADER
from streams_app.read_store.sources.choice import open_source
from streams_app.read_store.targets.choice import open_store
from streams_app.settings import Settings
from streams_app.testing import FoldTester
from tests.chaos.__main__ import main as chaos
from tests.reference import REFERENCE, settings, written
from tests.test_house import FLOORS

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", ROOT / "streams_app" / "kafka" / "patches" / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
TARGETS = {"demo": demo, "bench": bench, "chaos": chaos}
"""Targets of the Makefile that hand their ARGS to a command."""


def name_of(page: Path) -> str:
    return str(page.relative_to(ROOT))


def fenced(page: Path, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", page.read_text("utf-8"), re.DOTALL | re.MULTILINE)


def calls(page: Path) -> Iterator[str]:
    """What a page tells people to type: lines of blocks without a language, and code within lines."""
    text = page.read_text("utf-8")
    for block in fenced(page, ""):
        yield from (line.split(" #")[0].strip() for line in block.splitlines() if line.startswith(("streams-app ", "make ")))
    prose = re.sub(r"^```.*?^```$", "", text, flags=re.DOTALL | re.MULTILINE)
    yield from re.findall(r"`((?:streams-app|make) [^`]+)`", prose)


def fault_of(words: list[str], command: click.Command) -> str | None:
    """What is wrong with a call; None: it is one that the command understands."""
    while isinstance(command, click.Group) and words:
        inner = command.get_command(click.Context(command), words[0])
        if inner is None:
            return f"no command {words[0]!r}"
        command, words = inner, words[1:]
    known = {option for one in command.params for option in one.opts} | {"--help", "--version"}
    # -7d is a value: so long ago.
    unknown = [word for word in words if re.match(r"-\D", word) and word not in known]
    return f"no option {unknown[0]}" if unknown else None


def fault_in(call: str) -> str | None:
    """The same for a call as it is typed: of ``streams-app`` or of ``make``."""
    program, *words = shlex.split(call)
    if program == "streams-app":
        return fault_of(words, group)
    target, *settings = words
    if not re.search(rf"^{re.escape(target)}:", (ROOT / "Makefile").read_text("utf-8"), re.MULTILINE):
        return f"no target {target!r}"
    given = [word.removeprefix("ARGS=") for word in settings if word.startswith("ARGS=")]
    return fault_of(shlex.split(given[0]), TARGETS[target]) if given else None


def anchors(page: Path) -> set[str]:
    """Where links into a page may point: its headings, as GitHub names them."""
    headings = re.findall(r"^#+ (.+)$", page.read_text("utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


def columns(page: Path, heading: str, column: int = 0) -> list[str]:
    """The cells of one column of the table that follows a line."""
    _, _, rest = page.read_text("utf-8").partition(f"\n{heading}\n")
    table = re.search(r"(?:^\|.*\n)+", rest, re.MULTILINE)
    assert table, f"no table below {heading!r}"
    return [re.split(r"(?<!\\)\|", row)[1:-1][column] for row in table[0].splitlines()[2:]]


def quoted(cells: list[str]) -> list[str]:
    return [name for cell in cells for name in re.findall(r"`([^`]+)`", cell)]


# Tables


def test_the_tables_of_the_reference_are_those_of_the_code() -> None:
    text = REFERENCE.read_text("utf-8")

    assert written(text) == text, "run `make docs`, which is `python -m tests.reference`"


def test_a_table_that_differs_is_noticed() -> None:
    text = REFERENCE.read_text("utf-8")
    changed = text.replace("| `kafka.partitions` | `4` |", "| `kafka.partitions` | `5` |")

    assert text != changed
    assert text == written(changed)


def test_a_page_without_the_place_of_a_table_is_an_error() -> None:
    with pytest.raises(ValueError, match="<!-- commands -->"):
        written("")


def test_the_reference_has_every_exit_code() -> None:
    classes = [StreamsAppError]
    for one in classes:
        classes += one.__subclasses__()

    assert {"0", *(str(one.exit_code) for one in classes)} == set(quoted(columns(REFERENCE, "## Exit codes")))


def test_the_reference_has_every_header_of_a_dead_letter() -> None:
    refused = Refused(SimpleNamespace(offset=0, key=b"k", value=b"v"), "not-json", "")
    smallest = without_content(without_content(letter_of(Refuser("fold", "f", "app", "dead"), TP("s", 0), refused, 0)))
    told = quoted(columns(REFERENCE, "Headers, all of them text:"))

    assert sorted([*(name for name, _ in smallest.headers), "store", "error", "fold-id", RECEIPT_HEADER]) == sorted(told)


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_every_setting_and_metric_that_the_docs_name_is_one(page: Path) -> None:
    text = page.read_text("utf-8")
    known = {name.strip("`") for name, _, _ in settings(Settings)}
    sections = "|".join(sorted({name.partition(".")[0] for name in known if "." in name}))
    metrics = {metric.name for metric in METRICS}

    assert set() == set(re.findall(rf"`((?:{sections})\.[a-z_]+)`", text)) - known
    assert set() == set(re.findall(r"\bstreams_app_[a-z_]+\b", text)) - metrics


def test_every_broken_variant_that_internals_names_is_one() -> None:
    sources = "".join(path.read_text("utf-8") for path in (ROOT / "tests" / "chaos").glob("mutants*.py"))
    told = quoted(
        columns(ROOT / "docs" / "internals.md", "rebalances, retention). A variant that is not caught fails the tests.", -1)
    )

    assert told
    assert [] == [name for name in told if f'"{name}",' not in sources]


def test_internals_names_the_folders_in_the_order_in_which_they_may_import() -> None:
    text = (ROOT / "docs" / "internals.md").read_text("utf-8")
    (sentence,) = re.findall(r"those that stand before it: (.*?)\. Files below", text, re.DOTALL)

    assert [floor.rpartition("/")[2] for floor in FLOORS if floor != "kafka/patches"] == re.findall(r"`(\w+)`", sentence)


def logged() -> set[str]:
    """What a worker logs, but for debugging: without its ``key=value``, and with … for what is put in."""
    found = set()
    for path in (ROOT / "streams_app").rglob("*.py"):
        if path.parent.name in ("demo", "embedded"):
            continue
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            match node:
                case ast.Call(func=ast.Attribute(value=ast.Name(id="logger"), attr=level), args=args) if level != "debug":
                    text = ast.literal_eval(args[level == "log"])
                    found.add(re.sub(r"%[.0-9]*[a-z]", "…", re.split(r"[ ,;(]*\b[a-z_]+=", text)[0]))
    return {text for text in found if re.search("[a-z]", text)}


def test_every_line_of_the_log_is_explained_and_no_other() -> None:
    told = quoted(columns(ROOT / "docs" / "operations.md", "Where a line has a number or a name, it is … here."))
    told = [text.replace("no progress …", "…") for text in told if "=" not in text and text != "new"]

    lines = logged()

    assert [] == sorted(line for line in lines if not line.startswith(tuple(told)))
    assert [] == [text for text in told if not any(line.startswith(text) for line in lines)]


# Commands and links


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_every_command_in_the_docs_is_one(page: Path) -> None:
    assert [] == [(call, fault) for call in calls(page) if (fault := fault_in(call))]


def test_every_command_that_the_code_names_is_one() -> None:
    sources = [path.read_text("utf-8") for path in (ROOT / "streams_app").rglob("*.py")]
    named = {call for source in sources for call in re.findall(r"`(streams-app [a-z -]+)", source)}

    assert len(named) > len(TARGETS)
    assert [] == [(call, fault) for call in sorted(named) if (fault := fault_in(call))]


@pytest.mark.parametrize(
    ("call", "fault"),
    [
        ("streams-app worker", None),
        ("streams-app groups flush --fold NAME --all", None),
        ("streams-app topics burn", "no command 'burn'"),
        ("streams-app check --fast", "no option --fast"),
        ("make test", None),
        ('make chaos ARGS="--runs 1"', None),
        ('make chaos ARGS="--turns 1"', "no option --turns"),
        ("make coffee", "no target 'coffee'"),
    ],
)
def test_a_command_is_known_by_its_words_and_options(call: str, fault: str | None) -> None:
    assert fault == fault_in(call)


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_every_link_leads_somewhere(page: Path) -> None:
    prose = re.sub(r"^```.*?^```$|`[^`]*`(?!\])", "", page.read_text("utf-8"), flags=re.DOTALL | re.MULTILINE)
    dead = []
    for link in re.findall(r"\]\(([^)\s]+)\)", prose):
        if link.startswith("https://"):
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        if not target.exists() or (anchor and anchor not in anchors(target)):
            dead.append(link)

    assert [] == dead


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_every_file_and_folder_that_the_docs_name_is_there(page: Path) -> None:
    named = re.findall(r"`((?:streams_app|tests|deploy|examples|benchmarks|docs|\.ci)/[\w./*-]+)`", page.read_text("utf-8"))

    assert [] == [name for name in named if not list(ROOT.glob(name.rstrip("/")))]


# Settings and programs


def test_the_settings_of_the_readme_are_the_file_of_the_examples_and_load() -> None:
    file = ROOT / "examples" / "streams.toml"

    assert [file.read_text("utf-8")] == fenced(ROOT / "README.md", "toml")
    assert "post-metric-updated.account-metrics" == Settings.load(file, {}).fold("account-metrics").output


@pytest.mark.parametrize("section", fenced(ROOT / "docs" / "read-stores.md", "toml"))
def test_the_settings_of_every_read_store_are_five_lines_and_load(section: str, tmp_path: Path) -> None:
    file = tmp_path / "streams.toml"
    file.write_text((ROOT / "examples" / "streams.toml").read_text("utf-8") + section, "utf-8")
    declared = Settings.load(file, {}).read_store(None)

    assert 5 == len(section.splitlines())
    assert {"dashboard"} == {declared.name for _ in (open_store(declared), open_source(declared))}


def test_the_record_of_the_readme_is_what_its_settings_make_of_the_event() -> None:
    kit = FoldTester(Settings.load(ROOT / "examples" / "streams.toml", {}).fold("account-metrics"))
    readme = (ROOT / "README.md").read_text("utf-8")
    (event,) = re.findall(r"Produce events like `(.+?)` with key `account_1`", readme)
    (shown,) = fenced(ROOT / "README.md", "json")
    kit.send(event.encode(), key=b"account_1")
    (record,) = kit.advance("16m")
    wanted = json.loads(shown)

    assert wanted.keys() == record.value.keys()
    assert wanted["fold"].keys() == record.value["fold"].keys()


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_every_program_in_the_docs_runs(page: Path) -> None:
    for program in fenced(page, "python"):
        names: dict[str, Any] = {}
        exec(program, names)
        for name, value in names.items():
            if name.startswith("test_"):
                value()


def test_functions_of_the_readme_fold_an_event() -> None:
    (program,) = fenced(ROOT / "README.md", "python")
    names: dict[str, Any] = {}
    exec(program, names)
    kit = FoldTester(names["app"].settings.fold("account-metrics"))
    kit.send({"account": "Anna", "changes": {"likes": 2, "shares": 0}})
    (record,) = kit.advance("16m")

    assert {"account_id": "anna", "metrics": ["likes"]} == {key: record.value[key] for key in ("account_id", "metrics")}


def test_the_query_of_the_reference_asks_for_what_changed() -> None:
    (query,) = fenced(REFERENCE, "sql")
    with sqlite3.connect(":memory:") as connection:
        connection.execute("CREATE TABLE post_metrics (account_id, metric, value)")
        connection.executemany(
            "INSERT INTO post_metrics VALUES (?, ?, ?)", [("a", "likes", 2), ("a", "likes", 3), ("b", "likes", 1)]
        )
        rows = connection.execute(query, {"groups": '["a"]', "names": '["likes", "shares"]'}).fetchall()
    connection.close()

    assert [("a", "likes", 5)] == rows
