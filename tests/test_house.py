"""The rules of the house that a program can check: imports, sizes, docstrings, script headers, clocks."""

from __future__ import annotations

import ast
import re
import tomllib
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

from streams_app.folding.store.scripts import with_included

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "streams_app"
MODULES = sorted(PACKAGE.rglob("*.py"))
LUA = sorted(PACKAGE.rglob("*.lua"))
SCRIPTS = sorted((PACKAGE / "folding" / "store" / "lua").glob("*.lua"))
CHANGELOG = ROOT / "CHANGELOG.md"

MOST_LINES = 320
BANNED_IN_PURE = {"redis", "faust", "aiokafka", "time", "os", "asyncio"}
PURE_FOLDERS = {"folding/core", "folding/reading"}
"""Whatever their files import, by way of others of ours, too, touches nothing."""


def label(path: Path) -> str:
    return str(path.relative_to(PACKAGE))


# Imports and clocks


def imported(source: str) -> set[str]:
    """Names of all modules, and of what is taken from them, that a source imports itself, at any depth of it."""
    found = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
    return found


def is_for_types(node: ast.If) -> bool:
    return "TYPE_CHECKING" in ast.unparse(node.test)


def at_import(source: str, *, with_types: bool = False) -> str:
    """What of a source runs when it is imported: nothing within functions; for the type checker alone if that is wanted."""
    tree = ast.parse(source)
    for node in ast.walk(tree):
        is_function = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        if is_function or (isinstance(node, ast.If) and is_for_types(node) and not with_types):
            assert isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.If)
            node.body = [ast.Pass()]
    return ast.unparse(tree)


def module_of(path: Path) -> str:
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


OURS = {module_of(path): path for path in MODULES}


def named(source: str) -> set[str]:
    """Modules that a source imports, or takes something from."""
    return {name if name in OURS else name.rpartition(".")[0] or name for name in imported(source)}


NEEDS = {module: named(at_import(path.read_text("utf-8"))) for module, path in OURS.items()}
"""Module → modules that are imported with it."""

NAMES = {module: named(at_import(path.read_text("utf-8"), with_types=True)) for module, path in OURS.items()}
"""The same with what is imported for the type checker alone."""


def reached(module: str) -> set[str]:
    """What is imported with a module, by way of others of ours, too."""
    found: set[str] = set()
    waiting = [module]
    while waiting:
        new = NEEDS.get(waiting.pop(), set()) - found
        found |= new
        waiting += new
    return found


FLOORS = [
    "settings", "delivery", "kafka/patches", "kafka", "folding", "folding/core", "folding/reading", "folding/store",
    "folding/shard", "folding/agents", "read_store", "tuning", "operating", "checking", "embedded", "demo", "cli",
]  # fmt: skip
"""Folders from the lowest to the highest: each may import what stands before it."""


def rooms() -> dict[str, set[str]]:
    """Room → rooms that its modules name in imports."""
    found: dict[str, set[str]] = {}
    for module in OURS.keys() - {"streams_app"}:
        needed = NAMES[module] & (OURS.keys() - {"streams_app"})
        found.setdefault(room(module), set()).update({room(other) for other in needed} - {room(module)})
    return found


def room(module: str) -> str:
    """The folder of a module; a file of the package itself is a room of its own."""
    folder = OURS[module].parent
    return module if folder == PACKAGE else label(folder)


def says_it_is_pure(path: Path) -> bool:
    return "(pure" in (ast.get_docstring(ast.parse(path.read_text("utf-8"))) or "").partition("\n")[0]


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


PURE = [path for path in MODULES if label(path.parent) in PURE_FOLDERS or says_it_is_pure(path)]


@pytest.mark.parametrize("path", PURE, ids=label)
def test_what_is_pure_reaches_nothing_that_touches_the_world(path: Path) -> None:
    needed = imported(path.read_text("utf-8")) | reached(module_of(path))

    assert set() == {name.partition(".")[0] for name in needed} & BANNED_IN_PURE


def test_no_circle_of_files() -> None:
    list(TopologicalSorter({module: (NAMES[module] & OURS.keys()) - {module} for module in OURS}).static_order())


def test_no_circle_of_folders() -> None:
    list(TopologicalSorter(rooms()).static_order())


def test_folders_import_downward_only() -> None:
    upward = {
        f"{name} imports {other}"
        for name, needed in rooms().items()
        for other in needed
        if name in FLOORS and other in FLOORS and FLOORS.index(other) > FLOORS.index(name)
    }

    assert set() == upward
    assert set() == {name for name in rooms() if "/" in name or not name.startswith("streams_app.")} - set(FLOORS)


def test_the_delivery_knows_nothing_of_what_stands_on_it() -> None:
    found = {name for module in OURS if module.startswith("streams_app.delivery") for name in NAMES[module] & OURS.keys()}

    assert {"backoff", "clock", "errors", "reasons", "redis_client", "status"} == {
        name.removeprefix("streams_app.") for name in found if not name.startswith("streams_app.delivery.")
    }


def test_numpy_is_imported_with_tuning_alone() -> None:
    found = {module for module in OURS if any(name.partition(".")[0] in ("numpy", "matplotlib") for name in reached(module))}

    assert set() == {module for module in found if not module.startswith("streams_app.tuning.")}


@pytest.mark.parametrize(
    ("source", "module"),
    [
        ("import redis.asyncio", "redis.asyncio"),
        ("from aiokafka.structs import TopicPartition", "aiokafka.structs.TopicPartition"),
        ("from streams_app import clock", "streams_app.clock"),
        ("def f():\n    import os.path as p", "os.path"),
        ("import json, time", "time"),
    ],
)
def test_an_import_is_seen_wherever_it_stands(source: str, module: str) -> None:
    assert module in imported(source)


@pytest.mark.parametrize("path", [path for path in MODULES if path.name != "clock.py"], ids=label)
def test_no_clock_is_read_outside_clock_py(path: Path) -> None:
    assert WAITS.get(label(path), []) == clock_reads(path.read_text("utf-8"))


@pytest.mark.parametrize("path", LUA, ids=label)
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


@pytest.mark.parametrize("path", MODULES + LUA, ids=label)
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


def header(text: str) -> set[str]:
    """Names of the arguments as the header tells them: below the keys, up to an empty line, with the text in one column."""
    lines = text.splitlines()
    begin = next(number for number, line in enumerate(lines) if line.startswith("-- KEYS "))
    column = lines[begin].index("of the shard")
    told = lines[begin + 1 : lines.index("--", begin)]
    return {line[3:column].strip() for line in told} - {""}


def calls(source: str) -> dict[str, set[str]]:
    """Script → names of the arguments with which the store calls it."""
    found = {}
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "self._call":
            (script,) = node.args
            assert isinstance(script, ast.Constant)
            assert isinstance(script.value, str)
            assert script.value not in found, f"{script.value} is called twice"
            found[script.value] = {str(keyword.arg) for keyword in node.keywords}
    return found


CALLS = calls((PACKAGE / "folding" / "store" / "shard_store.py").read_text("utf-8"))


@pytest.mark.parametrize("path", SCRIPTS, ids=label)
def test_a_script_says_what_it_returns_and_what_it_costs(path: Path) -> None:
    text = path.read_text("utf-8")

    assert text.startswith("#!lua")
    assert ["Returns", "Cost"] == re.findall(r"^-- (Returns|Cost) +\S", text, re.MULTILINE)


@pytest.mark.parametrize("path", SCRIPTS, ids=label)
def test_the_store_calls_a_script_with_what_its_header_says_and_the_script_uses_it(path: Path) -> None:
    text = path.read_text("utf-8")
    used = set(re.findall(r"\barg\.(\w+)", re.sub(r"--.*", "", with_included(text))))

    assert header(text) == CALLS[path.stem]
    assert header(text) <= used
    # What ``delivery/lua/fenced.lua`` compares where a script is given it.
    assert used - header(text) <= {"token", "fence"}


def test_every_script_is_called_and_every_call_has_a_script() -> None:
    assert {path.stem for path in SCRIPTS} == CALLS.keys()


def test_the_version_is_in_the_changelog() -> None:
    version = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["version"]

    assert re.search(rf"^#+ .*{re.escape(version)}", CHANGELOG.read_text("utf-8"), re.MULTILINE)
