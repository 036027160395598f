"""The rules of the house that a program can check: imports, sizes, docstrings, script headers, clocks, tables of the README."""

from __future__ import annotations

import ast
import re
import tomllib
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import click
import pytest
from pydantic import BaseModel
from pydantic_core import PydanticUndefined

from streams_app.cli import COMMANDS, group
from streams_app.durations import parse_duration
from streams_app.fold import Fold
from streams_app.metrics import METRICS
from streams_app.settings import (
    HttpSettings,
    KafkaSettings,
    Limits,
    ReadStoreSettings,
    RedisSettings,
    Settings,
    WorkerSettings,
)

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "streams_app"
MODULES = sorted(PACKAGE.rglob("*.py"))
INCLUDED = {"beyond", "joining"}
"""Lua that scripts share."""

SCRIPTS = sorted(path for path in (PACKAGE / "folding" / "store" / "lua").glob("*.lua") if path.stem not in INCLUDED)
README = ROOT / "README.md"
CHANGELOG = ROOT / "CHANGELOG.md"

MOST_LINES = 330
BANNED_IN_PURE = {"redis", "faust", "aiokafka", "time", "os", "asyncio"}
PURE = [
    "operating/text.py",
    "fold.py",
    "folding/core/chunks.py",
    "folding/core/partition_clock.py",
    "folding/core/record.py",
    "folding/reading/reader.py",
    "codec.py",
    "read_store/merge.py",
    "read_store/record.py",
    "kafka/marks.py",
    "kafka/packed_marks.py",
    "demo/load.py",
]
SECTIONS: dict[str, type[BaseModel]] = {
    "kafka": KafkaSettings,
    "redis": RedisSettings,
    "http": HttpSettings,
    "worker": WorkerSettings,
    "limits": Limits,
    "read_store": ReadStoreSettings,
}
DERIVED = {"folds.<name>.output": "<source>.<name>", "folds.<name>.dead_letters": "<source>.dead"}
"""Defaults that are made of other settings."""


def label(path: Path) -> str:
    return str(path.relative_to(PACKAGE))


# Imports and clocks


def imported(source: str) -> set[str]:
    """First parts of the names of all modules a source imports itself, at any depth of it."""
    found = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            found.add(node.module.partition(".")[0])
    return found


_CLOCKS = {
    "time": {
        "time", "time_ns", "monotonic", "monotonic_ns", "perf_counter", "perf_counter_ns", "process_time", "localtime", "gmtime",
    },
    "datetime": {"now", "utcnow", "today"},
}  # fmt: skip


WAITS = {"kafka/consumer_thread.py": ["loop.time", "loop.time"]}
"""What is left of a wait, by the clock of the loop that waits; nothing is decided by it."""


def clock_reads(source: str) -> list[str]:
    """Expressions of a source that read a clock."""
    tree = ast.parse(source)
    modules: dict[str, str] = {}
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            modules |= {alias.asname or alias.name: alias.name for alias in node.names if alias.name in _CLOCKS}
        elif isinstance(node, ast.ImportFrom) and node.module == "time":
            found += [f"from time import {alias.name}" for alias in node.names if alias.name in _CLOCKS["time"]]
        elif isinstance(node, ast.ImportFrom) and node.module == "datetime":
            modules |= {alias.asname or alias.name: "datetime" for alias in node.names if alias.name in ("datetime", "date")}
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute):
            base = node.value.value if isinstance(node.value, ast.Attribute) else node.value
            module = modules.get(base.id) if isinstance(base, ast.Name) else None
            is_loop = node.attr == "time" and re.search(r"loop(\(\))?$", ast.unparse(node.value)) is not None
            if is_loop or (module and node.attr in _CLOCKS[module]):
                found.append(ast.unparse(node))
    return found


@pytest.mark.parametrize("name", PURE)
def test_pure_modules_import_nothing_that_touches_the_world(name: str) -> None:
    assert set() == imported((PACKAGE / name).read_text("utf-8")) & BANNED_IN_PURE


@pytest.mark.parametrize(
    ("source", "module"),
    [
        ("import redis.asyncio", "redis"),
        ("from aiokafka.structs import TopicPartition", "aiokafka"),
        ("def f():\n    import os.path as p", "os"),
        ("import json, time", "time"),
    ],
)
def test_an_import_is_seen_wherever_it_stands(source: str, module: str) -> None:
    assert module in imported(source)


@pytest.mark.parametrize("path", [path for path in MODULES if path.name != "clock.py"], ids=label)
def test_no_clock_is_read_outside_clock_py(path: Path) -> None:
    assert WAITS.get(label(path), []) == clock_reads(path.read_text("utf-8"))


@pytest.mark.parametrize("path", SCRIPTS, ids=label)
def test_no_script_reads_the_clock_of_redis(path: Path) -> None:
    assert None is re.search(r"call\(\s*['\"]TIME['\"]|os\.time|os\.clock", path.read_text("utf-8"), re.IGNORECASE)


@pytest.mark.parametrize(
    "source",
    [
        "import time\ntime.time()",
        "import time as t\nt.monotonic_ns()",
        "from time import perf_counter",
        "import datetime\ndatetime.datetime.now()",
        "from datetime import datetime\ndatetime.utcnow()",
        "from datetime import date as d\nd.today()",
        "import asyncio\nasyncio.get_running_loop().time()",
        "import time\nread = time.time",
    ],
)
def test_a_read_of_a_clock_is_seen_however_it_is_written(source: str) -> None:
    assert 1 == len(clock_reads(source))


def test_what_reads_no_clock_is_left_alone() -> None:
    source = "import time\nfrom datetime import datetime\ntime.sleep(1)\ndatetime.fromtimestamp(0)\nredis.time()\nrow.now()"

    assert [] == clock_reads(source)


# Files


@pytest.mark.parametrize("path", MODULES, ids=label)
def test_every_file_is_short(path: Path) -> None:
    assert len(path.read_text("utf-8").splitlines()) <= MOST_LINES


@pytest.mark.parametrize("path", MODULES, ids=label)
def test_every_module_says_what_it_is_for(path: Path) -> None:
    assert ast.get_docstring(ast.parse(path.read_text("utf-8")))


@pytest.mark.parametrize("path", MODULES, ids=label)
def test_every_exception_to_a_check_carries_its_reason(path: Path) -> None:
    lines = path.read_text("utf-8").splitlines()
    bare = [line.strip() for line in lines if re.search(r"#\s*(noqa(: ?[A-Z0-9, ]+)?|type: ignore(\[[\w, -]+\])?)\s*$", line)]

    assert [] == bare


# Scripts

_SLOT = re.compile(r"^-- (KEYS|ARGV)\[(\d+)\]\s+(\w+)\s+(\S.*)$")
_BOUND = re.compile(r"(KEYS|ARGV)\[(\d+)\]")
_TYPES = ("hash", "zset", "set", "list", "string", "stream", "prefix of ")
_OTHER_WORDS = {("seal", "all"): "everything", ("finish", "ranges"): "packed"}
"""Where an argument of the method has, for a reason, another word than the slot of the script."""

Slots = dict[tuple[str, int], str]


def header(text: str) -> tuple[Slots, dict[tuple[str, int], str]]:
    """Names of the slots as the header gives them, and what it says about each."""
    names, about = {}, {}
    for line in text.splitlines():
        if match := _SLOT.match(line):
            slot = match[1], int(match[2])
            assert slot not in names, f"{slot} twice"
            names[slot], about[slot] = match[3], match[4]
    return names, about


def bound(text: str) -> Slots:
    """Names of the slots as the script binds them: in its first lines, packed ones where they are unpacked.

    A script that is refused should not have unpacked thousands of groups.
    """
    found: Slots = {}
    code = [line for line in text.splitlines() if not line.startswith(("#!", "--"))]
    end = code.index("")
    for position, line in enumerate(code):
        if not _BOUND.search(line):
            continue
        assert position < end or "= cmsgpack.unpack(ARGV" in line, f"bound too late: {line}"
        names, _, values = line.removeprefix("local ").partition(" = ")
        parts = re.split(r",\s*(?![^(]*\))", values)
        for name, value in zip(re.split(r",\s*", names), parts, strict=True):
            for kind, number in _BOUND.findall(value):
                slot = kind, int(number)
                assert slot not in found, f"{slot} twice"
                found[slot] = name.strip()
    return found


def calls(source: str) -> dict[str, tuple[list[str], list[str]]]:
    """Script → its keys and its arguments, as the store writes them."""
    found = {}
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Subscript) and "_scripts" in ast.unparse(node.func.value):
            assert isinstance(node.func.slice, ast.Constant)
            given: dict[str, list[str]] = {"keys": [], "args": []}
            for keyword in node.keywords:
                assert isinstance(keyword.value, ast.List)
                given[str(keyword.arg)] = [ast.unparse(element) for element in keyword.value.elts]
            found[str(node.func.slice.value)] = given["keys"], given["args"]
    return found


CALLS = calls((PACKAGE / "folding" / "store" / "shard_store.py").read_text("utf-8"))


@pytest.mark.parametrize("path", SCRIPTS, ids=label)
def test_the_header_of_a_script_is_complete(path: Path) -> None:
    text = path.read_text("utf-8")
    names, about = header(text)
    for kind in ("KEYS", "ARGV"):
        numbers = [number for slot_kind, number in names if slot_kind == kind]
        assert list(range(1, len(numbers) + 1)) == numbers
    assert all(text.startswith(_TYPES) for (kind, _), text in about.items() if kind == "KEYS"), about
    assert text.startswith("#!lua")
    for word in ("Returns", "Cost"):
        assert re.search(rf"^-- {word} +\S", text, re.MULTILINE), f"no {word}"


@pytest.mark.parametrize("path", SCRIPTS, ids=label)
def test_a_script_binds_every_slot_of_its_header_once_before_its_work(path: Path) -> None:
    text = path.read_text("utf-8")
    names, _ = header(text)
    local = bound(text)

    assert names.keys() == local.keys()
    # ``group_prefix`` may be bound to ``prefix``.
    assert {} == {slot: (name, local[slot]) for slot, name in names.items() if not f"_{name}".endswith(f"_{local[slot]}")}


@pytest.mark.parametrize("path", SCRIPTS, ids=label)
def test_the_store_calls_a_script_with_what_its_header_says(path: Path) -> None:
    names, _ = header(path.read_text("utf-8"))
    keys, args = CALLS[path.stem]

    assert [f"keys.{name}" for (kind, _), name in names.items() if kind == "KEYS"] == keys
    wanted = [name for (kind, _), name in names.items() if kind == "ARGV"]
    assert len(wanted) == len(args)
    words = [_OTHER_WORDS.get((path.stem, name), name) for name in wanted]
    assert [] == [(word, given) for word, given in zip(words, args, strict=True) if word not in given]


def test_every_script_is_called_and_every_call_has_a_script() -> None:
    assert {path.stem for path in SCRIPTS} == CALLS.keys()


# Version, README


def test_the_version_is_in_the_changelog() -> None:
    version = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["version"]

    assert re.search(rf"^#+ .*{re.escape(version)}", CHANGELOG.read_text("utf-8"), re.MULTILINE)


def rows(text: str, marker: str) -> list[list[str]]:
    """Cells of the tables between two markers, without heads and rulers.

    Raises:
        AssertionError: A marker is missing.
    """
    match = re.search(rf"<!-- {marker} -->(.*?)<!-- /{marker} -->", text, re.DOTALL)
    assert match, f"no <!-- {marker} --> … <!-- /{marker} -->"
    found: list[list[str]] = []
    for line in match[1].splitlines():
        if line.startswith("|"):
            cells = [cell.replace("\\|", "|").strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]]
            if set("".join(cells)) <= set("-: "):
                found.pop()  # the line above the ruler is the head
            else:
                found.append(cells)
    return found


def named(cell: str) -> str:
    """The first text in backticks."""
    match = re.search(r"`([^`]+)`", cell)
    assert match, f"nothing in backticks: {cell!r}"
    return match[1]


def setting_defaults() -> Iterator[tuple[str, Any]]:
    """Every setting and its default, `PydanticUndefined` where it is required."""
    yield "app_id", Settings.model_fields["app_id"].default
    for section, model in SECTIONS.items():
        for key, field in model.model_fields.items():
            yield f"{section}.{key}", field.default
    for key, field in Fold.model_fields.items():
        if key != "name":
            yield f"folds.<name>.{key}", DERIVED.get(f"folds.<name>.{key}", field.default)


def is_default(cell: str, default: Any) -> bool:
    """Whether a cell says a default: `required`, `none`, or the value as it is written in TOML."""
    text = cell.strip().strip("`").strip()
    if default is PydanticUndefined:
        return text == "required"
    if default is None:
        return text == "none"
    text = text.strip('"')
    if isinstance(default, timedelta):
        try:
            return bool(parse_duration(text) == default)
        except ValueError:
            return False
    if isinstance(default, int):
        return text.replace("_", "") == str(default)
    return text == str(default)


def test_every_section_of_the_settings_is_known_here() -> None:
    assert set(Settings.model_fields) - {"app_id", "folds"} == SECTIONS.keys()


def test_the_readme_lists_every_setting_once_and_no_other() -> None:
    names = [named(row[0]) for row in rows(README.read_text("utf-8"), "settings")]

    assert sorted(name for name, _ in setting_defaults()) == sorted(names)


def test_the_readme_gives_the_default_of_every_setting() -> None:
    cells = {named(row[0]): row[1] for row in rows(README.read_text("utf-8"), "settings")}
    wrong = {name: (cells[name], default) for name, default in setting_defaults() if not is_default(cells[name], default)}

    assert {} == wrong


def test_the_readme_lists_every_metric_once_and_no_other() -> None:
    names = [named(row[0]) for row in rows(README.read_text("utf-8"), "metrics")]

    assert sorted(metric.name for metric in METRICS) == sorted(names)


def test_the_readme_lists_every_command_and_no_other() -> None:
    names = [named(row[0]) for row in rows(README.read_text("utf-8"), "commands")]

    assert {f"streams-app {name}" for name in COMMANDS} == {" ".join(name.split()[:2]) for name in names}
    assert [] == [name for name in names if not is_command(name)]


def is_command(text: str) -> bool:
    """Whether the words of a line name a command, or a command and one of its own."""
    program, *words = text.split()
    if program != "streams-app" or not words:
        return False
    command: click.Command | None = group
    for word in words:
        if not re.fullmatch(r"[a-z][a-z-]*", word):
            break  # an option or an argument
        if not isinstance(command, click.Group):
            return False
        command = command.get_command(click.Context(command), word)
    return command is not None and command is not group


SAMPLE = """
<!-- settings -->
| setting | default | |
|---|---|---|
| `kafka.partitions` | `4` | of new topics \\| here |
| `worker.tick` | `"1s"` | |
<!-- /settings -->
| `no.setting` | `1` | |
"""


def test_a_table_is_read_between_its_markers_without_its_head() -> None:
    expected = [["`kafka.partitions`", "`4`", "of new topics | here"], ["`worker.tick`", '`"1s"`', ""]]

    assert expected == rows(SAMPLE, "settings")


def test_a_missing_marker_is_a_fault() -> None:
    with pytest.raises(AssertionError, match="metrics"):
        rows(SAMPLE, "metrics")


@pytest.mark.parametrize(
    ("cell", "default", "expected"),
    [
        ("`4`", 4, True),
        ("`1_000_000`", 1_000_000, True),
        ("`5`", 4, False),
        ('`"1s"`', timedelta(seconds=1), True),
        ("`1000ms`", timedelta(seconds=1), True),
        ('`"2s"`', timedelta(seconds=1), False),
        ("soon", timedelta(seconds=1), False),
        ('`"names"`', "names", True),
        ('`"last"`', "names", False),
        ("none", None, True),
        ("`0`", None, False),
        ("required", PydanticUndefined, True),
        ("`x`", PydanticUndefined, False),
    ],
)
def test_a_default_is_compared_by_its_value(cell: str, default: Any, expected: bool) -> None:
    assert expected is is_default(cell, default)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("streams-app worker", True),
        ("streams-app worker --config FILE", True),
        ("streams-app topics create", True),
        ("streams-app topics burn", False),
        ("streams-app fly", False),
        ("streams-app", False),
        ("other worker", False),
    ],
)
def test_a_command_is_known_by_its_words(text: str, expected: bool) -> None:
    assert expected is is_command(text)
